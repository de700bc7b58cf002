"""One rank of one run: build the strategy, warm up, go back to the start, time the steps, report.

    python -m bench.worker SPEC.json        # with RANK, LOCAL_RANK and WORLD_SIZE set, as any launcher does

The loop that every strategy runs is `run_steps`. A worker writes no results: rank 0 leaves `measurement.json` in the
run's folder, a failing rank leaves `error-<rank>.json`, and the parent turns them into a row.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.heartbeat import Heartbeat
from bench.process import die_with_parent, report_failure, show_stack_when_asked
from bench.spec import EpochMeasurement, Measurement, RunSpec, heartbeat_path, measurement_path

if TYPE_CHECKING:
    from torch import Tensor

    from bench.rank import Rank
    from bench.timing import Timer, Timing
    from strategies.base import Strategy


def run_steps(
    strategy: Strategy,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    accumulate: int,
    timer: Timer,
    heartbeat: Heartbeat,
) -> tuple[Timing, list[Tensor | None]]:
    """The training loop, the same for every strategy. Returns this rank's times and its losses, left on the device."""
    from strategies.base import split

    losses: list[Tensor | None] = []
    timer.start()
    for step, batch in enumerate(batches, start=1):
        timer.data_ready()
        micro = [strategy.place(*part) for part in split(batch, accumulate)]
        losses.append(strategy.forward_backward(micro))
        timer.gradients_ready()
        strategy.apply()
        timer.step_done()
        heartbeat.step(step)
    return timer.stop(), losses


def measure(spec: RunSpec, rank: Rank, heartbeat: Heartbeat, launch_seconds: float) -> Measurement | None:
    """Run the whole life of one rank; the measurement on rank 0, None on the others."""
    from bench import phases

    heartbeat.phase("init")
    with phases.stopwatch() as init:
        rank.start_group()
    heartbeat.phase("build")
    with phases.stopwatch() as build:
        run = phases.build(spec, rank)
    heartbeat.phase("warmup")
    with phases.stopwatch() as warmup:
        compile_seconds = phases.warm_up(run, heartbeat)
    # What warm-up left behind is collected now, and the collector does not pause a timed step.
    gc.collect()
    gc.disable()
    epochs: list[EpochMeasurement] = []
    for epoch in range(1, spec.epochs + 1):
        heartbeat.phase("timed")
        timing, losses = phases.timed_epoch(run, epoch, heartbeat)
        heartbeat.phase("gather")
        measured = phases.gather_epoch(run, epoch, timing, losses)
        if spec.whole_epoch:
            heartbeat.phase("evaluate")
            measured = phases.evaluate(run, measured)
        epochs.append(measured)
    gc.enable()
    heartbeat.phase("checkpoint")
    phases.write_checkpoint(run)
    result = phases.gather_run(
        run,
        epochs,
        launch_seconds=launch_seconds,
        init_seconds=init.seconds,
        build_seconds=build.seconds,
        warmup_seconds=warmup.seconds,
        compile_seconds=compile_seconds,
    )
    if rank.rank == 0:
        result.write(measurement_path(Path(spec.folder)))
    heartbeat.phase("close")
    run.strategy.close()
    rank.stop_group()
    heartbeat.phase("done")
    return result if rank.rank == 0 else None


def main() -> None:
    """Entry point of a worker process."""
    begun = time.perf_counter_ns()
    spec = RunSpec.read(Path(sys.argv[1]))
    die_with_parent(spec.parent_pid)
    number = int(os.environ["RANK"])
    show_stack_when_asked(Path(spec.folder), number)
    heartbeat = Heartbeat(heartbeat_path(Path(spec.folder)), number)
    heartbeat.phase("start")
    try:
        from bench import phases, workloads
        from bench.rank import Rank

        workloads.load(spec.workload)
        rank = Rank.from_environment(spec)
        # One clock for all processes of a machine: the parent noted it just before it started this one. Another
        # launcher, such as torchrun, notes nothing; start-up then counts from the first line of this function.
        started = int(os.environ.get("STRATEGYBENCH_SPAWN_NS", begun))
        launch_seconds = (time.perf_counter_ns() - started) * 1e-9
        phases.set_numerics(spec.precision)
        measure(spec, rank, heartbeat, launch_seconds)
    except BaseException as error:
        try:
            report_failure(error, spec, number, heartbeat.current)
        finally:
            # No clean-up that could wait for a peer: peers learn of it by the closed connection, the parent by this.
            os._exit(1)
    leave()


def leave() -> None:
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
