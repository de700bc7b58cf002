"""Real campaigns of the toy workload in real processes: started, awaited, ended, and looked at."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from forked_command import ForkedCommand

from bench.factors import CELL_FACTORS
from bench.run.leftovers import marked
from bench.run.node import LocalNode, can_fork
from bench.wire import CellSpec, RunSpec
from strategies.places import Plan, data_parallel

TOY = ("--workload", "toy", "--dataset", "synthetic", "--batch", "16", "--steps", "3", "--warmup-steps", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench", "run", *arguments]


def toy(out: Path, *arguments: str, strategies: Sequence[str] = ("single", "ddp"), devices: str = "2") -> list[str]:
    """The command of a small campaign into `out`; every option can be given again in `arguments`."""
    basis = ("smoke", "--strategies", ",".join(strategies), "--devices", devices, *TOY, "--timeout", "90", "--quiet")
    return command(*basis, "--out", str(out), *arguments)


def run(
    arguments: Sequence[str], *, timeout: float = 240, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; that of this suite is forked where that makes no difference to the test."""
    if _may_be_forked(arguments, environment):
        process = start(arguments, cwd=cwd, **environment)
        try:
            out, errors = process.communicate(timeout)
        finally:
            process.kill()
        assert process.returncode is not None
        return subprocess.CompletedProcess(arguments, process.returncode, out, errors)
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


COMMAND = [sys.executable, "-m", "bench"]


def _may_be_forked(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Not where something is to be found, or another program is to be run, in place of what is loaded already."""
    return can_fork() and list(arguments[:3]) == COMMAND and "PYTHONPATH" not in environment


def _heed_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


Started = subprocess.Popen[str] | ForkedCommand


def start(arguments: Sequence[str], *, cwd: Path | None = None, **environment: str) -> Started:
    """Start in the background. SIGINT and SIGHUP work whatever ignored them for the tests, such as nohup."""
    if _may_be_forked(arguments, environment):
        return ForkedCommand(arguments[3:], cwd=cwd, environment={**os.environ, **environment})
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        preexec_fn=_heed_signals,
    )


class _SharedNode:
    """A node for one campaign of several that lasts as long as all of them, with its server."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def new_block(self) -> None:
        pass


def here(arguments: Sequence[str], node: LocalNode) -> subprocess.CompletedProcess[str]:
    """The command in this process, its ranks on a node that is up: for tests that look at its files and words."""
    from bench.cli import main
    from bench.run import campaign

    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr(campaign, "LocalNode", lambda: _SharedNode(node))
        patch.setattr(sys, "argv", ["bench", *arguments[len(COMMAND) :]])
        with pytest.raises(SystemExit) as end:
            main()
    return subprocess.CompletedProcess(arguments, int(end.value.code or 0), out.getvalue(), errors.getvalue())


def rows(folder: Path, name: str = "runs.csv") -> list[dict[str, str]]:
    path = folder / name
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_strategy(folder: Path) -> dict[str, dict[str, str]]:
    """The rows by strategy, of attempts that were not repeated; every strategy has exactly one."""
    found = [row for row in rows(folder) if not row["repeated_for"]]
    table = {row["strategy"]: row for row in found}
    assert len(table) == len(found), "a strategy has more than one row"
    return table


def log(folder: Path, strategy: str, rank: int) -> str:
    """What a rank of that strategy's run wrote to stderr."""
    return "".join(path.read_text() for path in folder.glob(f"logs/b00-{strategy}-*/rank{rank}.stderr.log"))


def await_true(condition: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """The condition's value once it is true. Fails the test when that takes longer."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.02)
    return value


def workers(folder: Path) -> list[psutil.Process]:
    """Ranks of a campaign in that folder that are alive, and what they started."""
    return [process for process in marked(folder) if SERVER not in _words(process)]


SERVER = "bench.worker.server"


def _words(process: psutil.Process) -> list[str]:
    """The command of a process that is not a copy of another one: a forked rank has its server's."""
    try:
        parent = process.parent()
        forked = parent is not None and parent.cmdline() == process.cmdline()
        return [] if forked else process.cmdline()
    except psutil.Error:
        return []


def servers(folder: Path) -> list[psutil.Process]:
    """Processes that fork the ranks of a campaign in that folder."""
    return [process for process in marked(folder) if SERVER in _words(process)]


def await_ranks(folder: Path, run: str = "*", *, number: int = 2, phase: str = "") -> list[psutil.Process]:
    """The ranks of the run in progress, once all are there and, where asked, one of them has come to that phase."""
    from bench import heartbeat

    def there() -> list[psutil.Process]:
        found = workers(folder)
        if len(found) != number:
            return []
        beats = [beat for path in folder.glob(f"logs/{run}/heartbeat") for beat in heartbeat.read_beats(path)]
        return found if not phase or any(beat.phase == phase for beat in beats) else []

    return await_true(there, seconds=60, what=f"{number} ranks{f' in {phase}' if phase else ''}")


def assert_none_left(folder: Path, *, seconds: float = 10) -> None:
    await_true(lambda: not workers(folder), seconds=seconds, what=f"ranks of {folder} still alive")


def spec(folder: Path, data: Mapping[str, Any], *, plan: Plan | None = None, **changes: Any) -> RunSpec:
    """A complete RunSpec over the arrays of `data`: two DDP ranks on the CPU, or those of a plan.

    Changes are by name: a factor's is put into the cell, as are `options`, any other is a field of the run.
    """
    plan = plan or data_parallel(2)
    cell = {factor.name: factor.default for factor in CELL_FACTORS}
    cell |= {"strategy": "ddp", "precision": "fp32", "variant": "", "batch_global": 16, "devices": plan.devices}
    cell |= {name: changes.pop(name) for name in list(changes) if name in cell}
    run = {
        "run_id": folder.name,
        "folder": str(folder),
        "rendezvous": str(folder / "rendezvous"),
        "strategy_files": (),
        "device_kind": "cpu",
        "backend": "gloo",
        "threads_per_device": 1,
        "workload": "toy",
        "loader_workers": 0,
        "synthetic": False,
        "seed": 0,
        "warmup_steps": 1,
        "steps": 3,
        "epochs": 1,
        "whole_epoch": False,
        "timeout_seconds": 90.0,
        **{name: str(path) for name, path in data.items()},
    }
    return RunSpec(cell=CellSpec(cell, changes.pop("options", {}), plan.places), **run | changes)


def save_arrays(folder: Path, *, workload: str = "toy", train: int = 64) -> dict[str, Path]:
    """Small arrays as a workload stores them."""
    import numpy as np

    random = np.random.default_rng(0)

    def inputs(count: int) -> Any:
        if workload == "toy":
            return random.standard_normal((count, 10), dtype=np.float32)
        return random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)

    def targets(count: int) -> Any:
        if workload == "toy":
            return random.standard_normal((count, 5), dtype=np.float32)
        return random.integers(0, 10, count, dtype=np.int64)

    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, count in (("train", train), ("test", 32)):
        for what, make in (("inputs", inputs), ("targets", targets)):
            made[f"{part}_{what}"] = folder / f"{part}_{what}.npy"
            np.save(made[f"{part}_{what}"], make(count))
    return made
