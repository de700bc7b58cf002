"""One rank of one run: build the strategy, warm up, go back to the start, time the steps, report.

    python -m bench.worker SPEC.json        # with RANK, LOCAL_RANK and WORLD_SIZE set, as any launcher does

The loop that every strategy runs is `loop.run_steps`. A worker writes no results: rank 0 leaves `measurement.json`
in the run's folder, a failing rank leaves `error-<rank>.json`, and the parent turns them into a row.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from bench.floor import Floor
from bench.heartbeat import Heartbeat
from bench.kinship import PARENT_VARIABLE, adopt_orphans, die_with_parent
from bench.wire import RunSpec, heartbeat_path
from bench.worker.parent import report_failure, show_stack_when_asked


def main() -> None:
    """Entry point of a rank that is a fresh interpreter."""
    die_with_parent(int(os.environ.get(PARENT_VARIABLE, "0")))
    run_rank(Path(sys.argv[1]))


def run_rank(spec_file: Path) -> NoReturn:
    """Be one rank to its end, in a fresh interpreter or forked from one that has torch loaded."""
    begun = time.perf_counter_ns()
    spec = RunSpec.read(spec_file)
    adopt_orphans()
    number = int(os.environ["RANK"])
    show_stack_when_asked(Path(spec.folder), number)
    heartbeat = Heartbeat(heartbeat_path(Path(spec.folder)), number)
    heartbeat.phase("start")
    try:
        take_cores(spec, number)
        from bench import workloads
        from bench.worker.build import set_numerics
        from bench.worker.life import live
        from bench.worker.rank import Rank

        check_origins(spec.origins)
        workloads.load(spec.workload)
        rank = Rank.from_environment(spec)
        # One clock for all processes of a machine: the parent noted it when it asked for the run. Another launcher,
        # such as torchrun, notes nothing; start-up then counts from the first line of this function.
        started = int(os.environ.get("STRATEGYBENCH_SPAWN_NS", begun))
        launch_seconds = (time.perf_counter_ns() - started) * 1e-9
        set_numerics(spec.cell["precision"])
        live(spec, rank, heartbeat, launch_seconds, Floor.from_environment(spec.run_id, number))
    except BaseException as error:
        try:
            report_failure(error, spec, number, heartbeat.current)
        finally:
            # No clean-up that could wait for a peer: peers learn of it by the closed connection, the parent by this.
            os._exit(1)
    leave()


def take_cores(spec: RunSpec, rank: int) -> None:
    """Stay on this rank's own share of the cores, its later threads too. Systems without affinity have none to give."""
    if spec.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec.cores[rank])


def check_origins(origins: Mapping[str, str]) -> None:
    """Raise ImportError where a module is another file than the command's, such as one of the current folder."""
    for name, expected in origins.items():
        module = importlib.import_module(name)
        if str(module.__file__) != expected:
            raise ImportError(f"{name} was imported from {module.__file__}, not from {expected}")


def leave() -> NoReturn:
    """End a process that is done, without the interpreter's tear-down.

    There, threads of the process group that still touch Python abort the process now and then ("terminate called
    without an active exception": 1 in 20 healthy runs with torch 2.14 on two busy cores).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
