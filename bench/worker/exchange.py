"""What a breakdown run measures beside the parts of a step: the exchange of gradients that compute does not hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.worker.state import RunState, make_timer
from bench.worker.stretch import Silent, run_stretch
from bench.worker.timing import Timing
from bench.worker.trace import communication_seconds
from strategies.base import Unsupported

PROFILED_STEPS = 3


def communication(run: RunState, epoch: int, timing: Timing) -> dict[str, Any]:
    """Breakdown runs: the exchange of gradients, in seconds over the timed steps, maxima over ranks.

    `exposed_comm` is what compute does not hide, by difference: forward and backward with the exchange less the same
    steps without it, medians a step, 0 where the noise is larger. `exposed_comm_trace` is the same from the profiler's
    trace of some steps, by overlap, and `comm_trace` all collectives in it.
    """
    if not run.spec.breakdown or timing.forward_backward is None:
        return {}
    after = run.strategy.snapshot()
    try:
        with run.strategy.without_exchange():
            without = _silent_steps(run, epoch, run.spec.steps)
    except Unsupported:
        # Some variants cannot leave the exchange out; their breakdown has no such column.
        return {}
    finally:
        # Replicas drifted apart in this pass: what follows goes on from where the timed epoch ended.
        run.strategy.restore(after)
    difference = _median(timing.forward_backward) - _median(without.forward_backward)
    steps = min(PROFILED_STEPS, run.spec.steps)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (run.rank.devices[0].type == "cuda")
    with profile(activities=activities) as profiled:
        _silent_steps(run, epoch, steps)
    run.strategy.restore(after)
    if run.spec.trace and run.rank.rank == 0:
        profiled.export_chrome_trace(str(Path(run.spec.folder) / "trace.json.gz"))
    ranks = run.rank.gather((difference, *(seconds / steps for seconds in communication_seconds(profiled))))
    by_difference, everything, exposed = (max(column) * run.spec.steps for column in zip(*ranks, strict=True))
    return {"exposed_comm": max(0.0, by_difference), "comm_trace": everything, "exposed_comm_trace": exposed}


def _silent_steps(run: RunState, epoch: int, steps: int) -> Timing:
    """Steps beside the timed ones."""
    batches = run.batches.epoch(epoch, steps=steps)
    return run_stretch(run, batches, timer=make_timer(run), heartbeat=Silent())[0]


def _median(seconds: list[float] | None) -> float:
    """The median of a phase over the steps; 0 on a rank that takes none."""
    return float(torch.tensor(seconds).median()) if seconds else 0.0
