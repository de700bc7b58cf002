"""What the pages in docs/ show is run, as README's commands are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from generated import noisy_campaign, write_campaign
from test_readme import QUICK, ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


def commands() -> list[tuple[str, list[str]]]:
    """Every line of a page's sh blocks that calls the command, in the order of the pages."""
    found = []
    for page in PAGES:
        for block in re.findall(
            r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        ):
            found += [(page.name, shlex.split(line)) for line in block.splitlines() if "bench " in line]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the campaigns that the pages speak of."""
    place = tmp_path_factory.mktemp("docs")
    for day, name in enumerate(("monday", "tuesday")):
        write_campaign(place / "results" / name, noisy_campaign(seed=day, blocks=4))
    return place


def test_there_are_commands_on_the_pages_that_have_some() -> None:
    assert {page for page, _ in commands()} >= {"compare.md", "turns.md"}


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: value if isinstance(value, str) else value[1])
def test_a_command_of_a_page_works(page: str, words: list[str], folder: Path) -> None:
    assert words[0] in ("bench", ".venv/bin/bench"), page
    quick = QUICK if words[1] == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words[1:], *quick],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "results" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
