"""Whether all ranks take part in each other's steps, where no two of them need hold the same.

Ranks that hold a whole copy each are told to have exchanged their gradients by their equal parameters. Of a copy in
pieces nothing need be equal. But it must not matter which rank reads which part of a batch: a step is tried with the
parts as they are, and again from the same state with each part read by another rank. Where gradients are averaged over
all parts, both end in the same state, and where all ranks compute with the same copy, each part has the same loss. No
other run is needed for that, and BatchNorm, whose statistics are of a part, makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.worker.batches import Samples, TrainingBatches
from bench.worker.endstate import Sample, gathered_sample
from bench.worker.state import RunState
from bench.worker.stretch import Silent, run_stretch
from bench.worker.timing import ClockTimer


@dataclass(frozen=True)
class Rotation:
    """What changed with the ranks that read the parts; on rank 0, only the loss on others.

    end: the gathered sample of the state that the run is in, as it was before and is again.
    distance: between the states after the step, relative to the step; None where the step changed nothing.
    loss: largest difference of a part's loss, relative to it, or to LOSS_UNIT where it is smaller.
    """

    end: Sample | None
    distance: float | None
    loss: float | None


LOSS_UNIT = 0.1


def rotation(run: RunState, epoch: int) -> Rotation | None:
    """Try one step twice with the parts dealt otherwise, then go back to where the run was. Collective.

    None where a copy is no more than one piece, or all ranks read the same part.
    """
    plan = run.spec.cell.plan
    if plan.pieces == 1 or plan.read_parts == 1:
        return None
    state = run.strategy.snapshot()
    gpus = [device for device in run.rank.devices if device.type == "cuda"]
    with torch.random.fork_rng(gpus):
        own = _losses(run, _step(run, epoch, 0), 0)
        one = _end_of_step(run, state)
        # Not before the first step: gathering may bring up to date what the step should have gathered itself.
        now = gathered_sample(run)
        others = _losses(run, _step(run, epoch, 1), 1)
        other = _end_of_step(run, state)
    apart = None
    if now and one and other:
        step = _distance(run, now, one)
        apart = _distance(run, one, other) / step if step > 0 else None
    return Rotation(now, apart, _largest_difference(own, others))


def _end_of_step(run: RunState, state: Mapping[str, Any]) -> Sample | None:
    """What the step ended in; then the run goes back to the snapshot."""
    run.strategy.settle()
    found = gathered_sample(run)
    run.strategy.restore(state)
    return found


def _step(run: RunState, epoch: int, shift: int) -> float | None:
    """One step in which this rank reads the part that is `shift` further than its own; its loss, if it has one."""
    spec, place = run.spec, run.rank.place
    torch.manual_seed(spec.seed + 1 + _stands_for(run, shift))
    batches = []
    if place.part is not None:
        part = (place.part + shift) % spec.cell.plan.read_parts
        # Mapped, so that the samples of the other part cost no memory, whatever the run's own pipeline keeps.
        samples = Samples.load(Path(spec.train_inputs), Path(spec.train_targets), torch.device("cpu"))
        read = spec.cell.plan.read_parts
        other = TrainingBatches(samples, run.workload, spec.cell["batch_global"], part, read, spec.seed)
        batches = list(other.epoch(epoch, steps=1))
    timer = ClockTimer(run.rank.synchronize, run.rank.barrier)
    _, losses = run_stretch(run, batches, timer=timer, heartbeat=Silent())
    return next((float(loss) for loss in losses if loss is not None), None)


def _stands_for(run: RunState, shift: int) -> int:
    """The rank that reads this rank's batch otherwise, whose random numbers it draws: those of dropout go with it."""
    plan, rank = run.spec.cell.plan, run.rank.rank
    if run.rank.place.part is None:
        return rank
    others = plan.readers((run.rank.place.part + shift) % plan.read_parts)
    return others[plan.readers(run.rank.place.part).index(rank) % len(others)]


def _losses(run: RunState, loss: float | None, shift: int) -> list[float | None]:
    """The loss of every part, from a rank that read it and has one."""
    plan, ranks = run.spec.cell.plan, run.rank.gather(loss)
    readers = [plan.readers((part - shift) % plan.read_parts) for part in range(plan.read_parts)]
    return [next((ranks[rank] for rank in own if ranks[rank] is not None), None) for own in readers]


def _largest_difference(ones: list[float | None], others: list[float | None]) -> float | None:
    known = [(a, b) for a, b in zip(ones, others, strict=True) if a is not None and b is not None]
    return max((abs(a - b) / max(abs(a), abs(b), LOSS_UNIT) for a, b in known), default=None)


def _distance(run: RunState, one: Sample, other: Sample) -> float:
    """L2 distance of two states, estimated from their samples."""
    squares = [
        p.count * float((one[p.name] - other[p.name]).square().mean()) for p in run.parameters if len(one[p.name])
    ]
    return math.sqrt(math.fsum(squares))
