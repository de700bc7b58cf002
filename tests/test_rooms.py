"""The rule of the house: a file imports from its own room and from lower lines, and nobody imports the worker."""

from pathlib import Path

import pytest
from imports import imported

import bench

BENCH = Path(bench.__file__).parent
LINES = (
    ("errors", "factors", "files", "homes", "checked", "wire", "lines", "kinship", "heartbeat", "floor", "checkpoint"),
    ("workloads", "data", "machine"),
    ("plan", "results"),
    ("run",),
    ("view",),
    ("cli",),
    ("__main__",),
)
"""Rooms by line, the lowest first. The files of the lowest line are one room."""
LINE_OF = {room: number for number, rooms in enumerate(LINES) for room in rooms}
WORKER_SEES = {*LINES[0], "workloads", "worker"}
FILES = sorted(path for path in BENCH.rglob("*.py") if path != BENCH / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(BENCH).parts[0].removesuffix(".py")


def may_import(room: str, other: str) -> bool:
    if room == "worker" or other == "worker":
        return room == "worker" and other in WORKER_SEES
    return room == other or LINE_OF[other] < LINE_OF[room] or LINE_OF[other] == LINE_OF[room] == 0


def against_the_rule(room: str, source: str) -> list[str]:
    """What a file of this room may not import."""
    names = {name for name in imported(source) if name.startswith("bench.")}
    return sorted(name for name in names if not may_import(room, name.split(".")[1]))


@pytest.mark.parametrize(
    ("room", "planted"),
    [
        ("errors", "from bench.plan.matrix import Matrix"),
        ("wire", "import bench.data"),
        ("data", "from bench.machine import host"),
        ("machine", "from bench.results import csvfile"),
        ("plan", "from bench.results.cells import Baseline"),
        ("results", "from bench.plan import matrix"),
        ("results", "def late():\n    from bench.run.store import Store"),
        ("run", "from bench.view.progress import Reporter"),
        ("run", "from bench.worker.rank import Rank"),
        ("view", "import bench.cli"),
        ("cli", "from bench.worker.__main__ import main"),
        ("worker", "from bench.machine.detect import detect"),
        ("worker", "from bench.results.columns import RUN_COLUMNS"),
        ("worker", "importlib.import_module('bench.run.launch')"),
    ],
)
def test_the_checker_sees_a_planted_fault(room: str, planted: str) -> None:
    assert against_the_rule(room, planted)


@pytest.mark.parametrize(
    ("room", "planted"),
    [
        ("wire", "from bench.files import write_text_atomically"),
        (
            "worker",
            "from bench.workloads.base import Workload\nfrom bench.wire import RunSpec\nimport bench.worker.loop",
        ),
        ("run", "from bench.plan import cells\nfrom bench.data import prepare\nfrom bench.errors import UserError"),
        ("cli", "from bench.view.table import document\nfrom bench.run import campaign"),
    ],
)
def test_the_checker_passes_over_what_is_right(room: str, planted: str) -> None:
    assert against_the_rule(room, planted) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(BENCH).as_posix())
def test_each_file_keeps_the_rule(path: Path) -> None:
    assert against_the_rule(room_of(path), path.read_text(encoding="utf-8")) == []


def test_every_room_has_a_line() -> None:
    assert {room_of(path) for path in FILES} == {*LINE_OF, "worker"}
