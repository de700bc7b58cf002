"""Strategy files that cannot be used: each is named, and the other strategies still run, in real campaigns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from campaigns import TOY, command, here, rows, run, toy

from bench.run.node import LocalNode
from strategies import Registry, RegistryError

GOOD = """
from strategies.ddp import DDP
class Mine(DDP):
    pass
STRATEGIES = {NAME: Mine}
"""


def mine(name: str, body: str = "pass") -> str:
    """A strategy file that holds one subclass of DDP."""
    return GOOD.replace("NAME", repr(name)).replace("pass", body)


TALK = """def __init__(self):
        print("a line when made")
        super().__init__()

    def plan(self, *arguments):
        import os, subprocess
        print("a line in plan", flush=True)
        os.write(1, b"a line past Python")
        subprocess.run(["echo", "a line of a child"], check=True)
        return super().plan(*arguments)
"""

BROKEN = {
    "syntax": "STRATEGIES = {'syntax': Mine\n",
    "importing": "import a_module_that_does_not_exist\nSTRATEGIES = {'importing': 1}\n",
    "unfinished": mine("unfinished").replace("strategies.ddp import DDP", "strategies.base import Strategy as DDP"),
    "other_class": "STRATEGIES = {'other_class': dict}\n",
    "exiting": "import sys\nSTRATEGIES = {'exiting': 1}\nsys.exit('no GPU here')\n",
    "exits_in_plan": mine("exits_in_plan", "def plan(self, *_):\n        raise SystemExit(3)"),
    "exits_when_made": mine("exits_when_made", "def __init__(self):\n        raise SystemExit(3)"),
    "no_precision": mine("no_precision", "default_precision = {}"),
    "no_table": "x = 1\n",
    "talkative": "print('a line\\n' * 100_000)\n" + mine("talkative", TALK),
    "ddp": mine("ddp"),
}
REASONS = {
    "syntax": "syntax.py: SyntaxError: '{' was never closed (line 1)",
    "importing": "importing.py: ModuleNotFoundError: No module named 'a_module_that_does_not_exist'",
    "unfinished": "unfinished.py lacks the method(s) plan",
    "other_class": "other_class.py is not a subclass of strategies.base.Strategy",
    "exiting": "exiting.py: SystemExit: no GPU here",
    "exits_in_plan": "plan() failed: SystemExit: 3",
    "exits_when_made": "it could not be made: SystemExit: 3",
    "no_precision": "it could not be made: KeyError: 'cpu'",
    "no_table": "no_table.py: defines no STRATEGIES = {'name': StrategyClass}",
    "ddp": "ddp.py; rename all but one, or leave out what defines it again",
}


def write(folder: Path, **texts: str) -> dict[str, Path]:
    """One file for each text, by name."""
    made = {name: folder / f"{name}.py" for name in texts}
    for name, text in texts.items():
        made[name].write_text(text)
    return made


def options(*paths: Path) -> list[str]:
    return [word for path in paths for word in ("--strategy-file", str(path))]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, node: LocalNode) -> dict[str, dict[str, str]]:
    """The rows, by strategy, of one campaign over all the broken files, `single`, and a plug-in that works."""
    folder = tmp_path_factory.mktemp("plugins")
    files = write(folder, **BROKEN)
    names = ["single", *BROKEN]
    done = here(
        command("smoke", "--strategies", ",".join(names), "--devices", "1", *TOY, "--out", str(folder / "out"),
                "--quiet", "--json", *options(*files.values())), node
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "a line" not in done.stdout + done.stderr
    # Nothing but the document: another program reads it.
    assert json.loads(done.stdout)["exit_code"] == 1
    found = rows(folder / "out")
    assert sorted(row["strategy"] for row in found) == sorted(names)
    return {row["strategy"]: row for row in found}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_broken_is_a_row_that_says_why(campaign: dict[str, dict[str, str]], name: str) -> None:
    assert campaign[name]["status"] == "crashed"
    assert campaign[name]["reason"].endswith(REASONS[name])


@pytest.mark.parametrize("name", ["single", "talkative"])
def test_the_others_run(campaign: dict[str, dict[str, str]], name: str) -> None:
    assert campaign[name]["status"] == "ok"
    assert float(campaign[name]["samples_per_second"]) > 0


def test_a_name_defined_twice_names_both_places(campaign: dict[str, dict[str, str]]) -> None:
    assert campaign["ddp"]["reason"].startswith("strategy 'ddp': it is defined twice: in strategies.ddp and in /")


def test_two_files_with_one_strategy_name(tmp_path: Path) -> None:
    files = write(tmp_path, one=mine("mine"), two=mine("mine"), three=mine("other"))
    registry = Registry.collect(files.values())
    with pytest.raises(RegistryError, match=r"'mine': it is defined twice: in .*one\.py and in .*two\.py"):
        registry.load("mine")
    assert registry.load("other").__name__ == "Mine"


def test_a_file_named_twice_is_one_file(tmp_path: Path) -> None:
    path = write(tmp_path, one=mine("mine"))["one"]
    assert Registry.collect([path, tmp_path / "." / path.name]).load("mine").__name__ == "Mine"


def test_a_table_with_one_name_twice(tmp_path: Path) -> None:
    path = write(tmp_path, one=mine("mine").replace("'mine': Mine", "'mine': Mine, 'mine': DDP"))["one"]
    with pytest.raises(RegistryError, match=r"'mine': it is defined twice: in .*one\.py and in .*one\.py"):
        Registry.collect([path]).load("mine")


def test_an_unknown_name_tells_of_the_file_that_may_hold_it(tmp_path: Path) -> None:
    files = write(tmp_path, broken=BROKEN["syntax"])
    with pytest.raises(RegistryError, match=r"unknown strategy 'fancy'; known are single, .*broken\.py: SyntaxError"):
        Registry.collect(files.values()).find("fancy")


def test_a_broken_file_called_like_a_strategy_hides_nothing(tmp_path: Path) -> None:
    registry = Registry.collect(write(tmp_path, ddp=BROKEN["syntax"]).values())
    assert registry.load("ddp").__module__ == "strategies.ddp"
    assert registry.find("ddp.py").broken.startswith("SyntaxError")


def test_broken_files_of_one_name_are_all_told_and_hide_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders:
        folder.mkdir()
    broken = [write(folder, mine=BROKEN["syntax"])["mine"] for folder in folders[:3]]
    registry = Registry.collect([*broken, *write(folders[3], good=mine("mine")).values()])
    assert registry.load("mine").__name__ == "Mine"
    assert [entry.module for entry in registry.entries.values() if entry.broken] == [str(path) for path in broken]


def test_two_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    paths = []
    for folder, name in (("a", "first"), ("b", "second")):
        (tmp_path / folder).mkdir()
        paths += write(tmp_path / folder, mine=mine(name)).values()
    registry = Registry.collect(paths)
    first, second = registry.load("first"), registry.load("second")
    assert first is not second
    assert {first.__name__, second.__name__} == {"Mine"}


def test_a_broken_file_that_nobody_asks_for_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    """Only planning is needed to see it: the run is ended by a batch that does not divide."""
    files = write(tmp_path, broken=BROKEN["syntax"])
    arguments = [word for word in toy(tmp_path / "out", *options(*files.values())) if word != "--quiet"]
    done = run([*arguments, "--batch", "15"], timeout=60)
    assert done.returncode == 2
    note, error = done.stderr.splitlines()
    assert note == f"strategy file {files['broken']} is left out: SyntaxError: '{{' was never closed (line 1)"
    assert error.startswith("bench: ddp@2")


def test_a_command_without_a_stdout_runs(tmp_path: Path) -> None:
    """As under a scheduler that closes it: a plug-in's prints are dropped all the same."""
    files = write(
        tmp_path, loud="print('a line')\nfrom strategies.single import Single\nSTRATEGIES = {'loud': Single}\n"
    )
    words = command("smoke", "--strategies", "loud", "--devices", "1", *TOY, "--out", str(tmp_path / "out"))
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *words, *options(*files.values()), "--quiet"]
    done = run(shell)
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "out")
    assert row["status"] == "ok"
