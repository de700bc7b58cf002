"""One rank's run while it lasts: what `build` made and the later phases use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bench.wire import RunSpec
from bench.worker.batches import Batches
from bench.worker.rank import Rank
from bench.worker.tally import Tally
from bench.worker.timing import BreakdownTimer, ClockTimer, EventTimer, Timer
from bench.workloads.base import Workload
from strategies.base import Strategy


@dataclass(frozen=True)
class BareParameter:
    """A parameter of the bare model as the workload made it: how many values of how many bytes, and if it trains."""

    name: str
    count: int
    element_bytes: int
    trains: bool


@dataclass(frozen=True)
class ProbeRates:
    """What the probe measured of one device: arithmetic in FLOP/s, and memory traffic in B/s."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class RunState:
    """What `build` made and the later phases use.

    parameters: those of the bare model, in its order; empty where the strategy made none on this rank.
    start: the strategy's snapshot of before the first step, until warm-up has gone back to it.
    tally: what is counted of its steps.
    gradients: names of the parameters that had one in the first warm-up step, once it has been; else empty.
    warmup_steps: seconds a step of warm-up, one value once it has been; else empty.
    warmup_losses: this rank's loss of the first warm-up step, where it has one; else empty.
    restored: whether the parameters were what they had been once warm-up was over.
    peaks: by GPU of this rank, the most bytes allocated in timed epochs; empty without one.
    turns: how many timed steps each turn has; empty where all are one turn.
    probes: how fast the machine was before the first timed step, where this rank was to measure it; else empty.
    probe_rss: this process's peak of resident memory in bytes just before and just after that; else empty.
    problems: a line for each thing that could not be had and is no reason to lose the run.
    """

    spec: RunSpec
    rank: Rank
    workload: Workload
    strategy: Strategy
    batches: Batches
    start: dict[str, Any]
    parameters: tuple[BareParameter, ...]
    tally: Tally
    gradients: list[tuple[str, ...]] = field(default_factory=list)
    warmup_steps: list[float] = field(default_factory=list)
    warmup_losses: list[float] = field(default_factory=list)
    restored: list[bool] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    turns: tuple[int, ...] = ()
    probes: list[ProbeRates] = field(default_factory=list)
    probe_rss: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def make_timer(run: RunState) -> Timer:
    """The timer that suits the device, or the one that separates the phases of a step."""
    waits = (run.rank.synchronize, run.rank.barrier)
    if run.spec.breakdown:
        return BreakdownTimer(*waits)
    if run.rank.devices[0].type == "cuda":
        return EventTimer(*waits, lambda: torch.cuda.Event(enable_timing=True))
    return ClockTimer(*waits)
