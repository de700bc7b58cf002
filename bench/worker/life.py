"""The whole life of one rank, phase by phase."""

from __future__ import annotations

import gc
from pathlib import Path

from bench.floor import REST, TURN, Floor
from bench.heartbeat import Heartbeat
from bench.wire import EpochMeasurement, Measurement, RunSpec, measurement_path
from bench.worker.account import gather_run, write_checkpoint
from bench.worker.build import build_run
from bench.worker.epoch import dealt, gather_epoch, timed_epoch, warm_up
from bench.worker.evaluate import evaluate
from bench.worker.probe import probe
from bench.worker.rank import Rank
from bench.worker.timing import stopwatch


def live(spec: RunSpec, rank: Rank, heartbeat: Heartbeat, launch_seconds: float, floor: Floor) -> Measurement | None:
    """Run the whole life of one rank; the measurement on rank 0, None on the others.

    It begins with the floor, gives it away before each turn of timed steps and before what follows the last one.
    """
    heartbeat.phase("init")
    with stopwatch() as init:
        rank.start_group()
    heartbeat.phase("build")
    with stopwatch() as build:
        run = build_run(spec, rank)
    heartbeat.phase("warmup")
    with stopwatch() as warmup:
        compile_seconds = warm_up(run, heartbeat)
    probe(run)
    # What warm-up left behind is collected now, and the collector does not pause a timed step.
    gc.collect()
    gc.disable()
    run = dealt(run, floor)
    epochs: list[EpochMeasurement] = []
    for number in range(1, spec.epochs + 1):
        if number > 1:
            floor.wait(TURN)
        heartbeat.phase("timed")
        timed = timed_epoch(run, number, heartbeat, floor)
        floor.wait(REST)
        heartbeat.phase("gather")
        measured = gather_epoch(run, number, timed)
        if run.spec.whole_epoch:
            heartbeat.phase("evaluate")
            measured = evaluate(run, measured)
        epochs.append(measured)
    gc.enable()
    heartbeat.phase("checkpoint")
    write_checkpoint(run)
    result = gather_run(
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
