"""Everything README shows is run: its commands, its strategy file, its matrix."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.plan.matrix import parse_matrix

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# What makes a `bench run` of README quick: the same command on the toy workload. Later options win.
QUICK = ["--workload", "toy", "--dataset", "synthetic", "--batch", "64", "--steps", "2", "--blocks", "1"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def bench_commands() -> list[list[str]]:
    """Every line that calls the installed command, but for the first block, which CI runs as it stands."""
    lines = [line for block in blocks("sh")[1:] for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(".venv/bin/bench ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which README's files lie and its commands run one after another."""
    place = tmp_path_factory.mktemp("readme")
    (strategy,) = blocks("python")
    (place / "my_strategy.py").write_text(strategy, encoding="utf-8")
    return place


def test_the_first_two_commands_are_the_promised_ones() -> None:
    first, second = blocks("sh")[:2]
    assert first == "python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/bench run\n"
    assert second == ".venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest\n"


def test_there_are_commands_to_run() -> None:
    assert len(bench_commands()) >= 10


@pytest.mark.parametrize("words", bench_commands(), ids=lambda words: " ".join(words[1:4]))
def test_a_command_of_readme_works(words: list[str], folder: Path) -> None:
    if words[1] == "smoke":
        words = [*words[:1], "run", "smoke", *words[2:]]
    if words[1] == "run":
        words = [*words, *QUICK]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_the_strategy_file_is_short() -> None:
    (strategy,) = blocks("python")
    assert len(strategy.splitlines()) < 30


def test_the_matrix_of_readme_is_one() -> None:
    (text,) = blocks("toml")
    matrix = parse_matrix(text, name="readme", source="README")
    assert [group["scaling"] for group in matrix.groups] == [("strong",), ("weak",)]


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert missing == []


def test_every_strategy_and_preset_is_described() -> None:
    from bench.plan.matrix import preset_names
    from strategies import BUILT_IN

    for name in [entry.name for entry in BUILT_IN] + preset_names():
        assert f"| `{name}` |" in README, name


def test_every_module_in_the_tree_exists() -> None:
    tree = next(
        block for block in re.findall(r"^```\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL) if "bench/" in block
    )
    for name in re.findall(r"\b(\w+\.py)\b", tree):
        assert any((ROOT / place / name).exists() for place in ("bench", "strategies")), name


def test_the_benchmarks_are_found_by_readme_s_command() -> None:
    """They need a quiet machine, so they are collected here and run by hand."""
    lines = [line for block in blocks("sh")[2:] for line in block.splitlines()]
    (line,) = [line for line in lines if not line.startswith(".venv/bin/bench ")]
    program, *words = shlex.split(line)
    assert program == ".venv/bin/pytest"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--collect-only"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("::test_") >= 8


def test_the_table_is_the_reference_campaign_s_own() -> None:
    """Mend with: bench export --format markdown results/reference/cpu-2-cores-blocks."""
    from bench.view.export import export

    assert export(ROOT / "results" / "reference" / "cpu-2-cores-blocks", "markdown").strip() in README
