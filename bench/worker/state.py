"""One rank's run while it lasts: what `build` made and the later phases use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bench.wire import RunSpec
from bench.worker.batches import Batches
from bench.worker.rank import Rank
from bench.worker.timing import BreakdownTimer, ClockTimer, EventTimer, Timer
from bench.workloads.base import Workload
from strategies.base import Strategy


@dataclass(frozen=True)
class RunState:
    """What `build` made and the later phases use."""

    spec: RunSpec
    rank: Rank
    workload: Workload
    strategy: Strategy
    batches: Batches
    start: dict[str, Any]
    steps_taken: list[Any]
    peaks: list[int] = field(default_factory=list)


def make_timer(run: RunState) -> Timer:
    """The timer that suits the device, or the one that separates the phases of a step."""
    waits = (run.rank.synchronize, run.rank.barrier)
    if run.spec.breakdown:
        return BreakdownTimer(*waits)
    if run.rank.devices[0].type == "cuda":
        return EventTimer(*waits, lambda: torch.cuda.Event(enable_timing=True))
    return ClockTimer(*waits)
