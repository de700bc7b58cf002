"""Warm-up and the timed region, and what all ranks measured of one epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.floor import FIRST_TURN, TURN, Floor, deal
from bench.heartbeat import Heartbeat
from bench.wire import EpochMeasurement
from bench.worker.batches import Counted
from bench.worker.endstate import end_sample, moved_share, projections
from bench.worker.exchange import communication
from bench.worker.rotation import rotation
from bench.worker.state import RunState, make_timer
from bench.worker.stretch import run_stretch
from bench.worker.timing import ClockTimer, Timing, TurnTimer
from strategies.base import digest

FIRST_EPOCH = 1


def warm_up(run: RunState, heartbeat: Heartbeat) -> float | None:
    """Real steps, untimed; then all that training changes and the random numbers go back to their start.

    Returns the seconds of the first step where the run is compiled, None otherwise.
    """
    timer = ClockTimer(run.rank.synchronize, run.rank.barrier)
    # The samples of the first timed epoch: where everything is put back, its first loss comes again.
    batches = run.batches.epoch(FIRST_EPOCH, steps=run.spec.warmup_steps)
    torch.manual_seed(run.spec.seed + 1 + run.rank.rank)

    before = digest(run.strategy.parameter_sample().items())

    def note_gradients() -> None:
        if not run.gradients:
            run.gradients.append(tuple(run.strategy.gradient_names()))

    timing, losses = run_stretch(run, batches, timer=timer, heartbeat=heartbeat, at_gradients=note_gradients)
    first = losses[:1]
    run.warmup_steps.extend(_without_the_first(timing))
    run.warmup_losses.extend(float(loss) for loss in first if isinstance(loss, Tensor) and loss.numel() == 1)
    run.strategy.restore(run.start)
    run.restored.append(digest(run.strategy.parameter_sample().items()) == before)
    # A second copy of the model would lie beside the first for the whole run, and count as its memory.
    run.start.clear()
    torch.manual_seed(run.spec.seed + 1 + run.rank.rank)
    return timing.steps[0] if run.spec.cell["compile"] != "off" and timing.steps else None


def _without_the_first(timing: Timing) -> list[float]:
    """Seconds a step of warm-up, of all steps but the first, which finds nothing ready yet, where there are more.

    From the whole time: on a GPU the marks of single steps say when they were asked for.
    """
    if len(timing.steps) < 2:
        return timing.steps[:1]
    return [(timing.total - timing.steps[0]) / (len(timing.steps) - 1)]


def dealt(run: RunState, floor: Floor) -> RunState:
    """The run with its steps dealt into turns as it is told, where others live beside it; else it has one turn."""
    speed = {"step_seconds": round(run.warmup_steps[0], 6)} if run.warmup_steps else {}
    told = floor.wait(FIRST_TURN, **speed)
    steps = int(told.get("steps", run.spec.steps))
    spec = replace(run.spec, steps=steps, whole_epoch=bool(told.get("whole_epoch", run.spec.whole_epoch)))
    return replace(run, spec=spec, turns=tuple(deal(steps, int(told.get("turns", 1)))))


@dataclass(frozen=True)
class Timed:
    """What this rank has of a timed epoch: its times, its losses (left on the device), and the samples it took.

    start: the strategy's sample of its parameters before it.
    """

    timing: Timing
    losses: list[Tensor | None]
    samples: list[int]
    start: Mapping[str, Any]


def timed_epoch(run: RunState, epoch: int, heartbeat: Heartbeat, floor: Floor) -> Timed:
    """The timed region: the same loop as warm-up, over the epoch's first `steps` steps, in turns with other runs."""
    gpus = [device for device in run.rank.devices if device.type == "cuda"]
    # Training's own peak: what warm-up tried out and what evaluation needs are no part of it.
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    batches = Counted(run.batches.epoch(epoch, steps=run.spec.steps))
    start = run.strategy.parameter_sample()
    run.tally.start()
    timer = TurnTimer(partial(make_timer, run), run.turns, partial(floor.wait, TURN))
    timing, losses = run_stretch(run, batches, timer=timer, heartbeat=heartbeat)
    before = run.peaks or [0] * len(gpus)
    run.peaks[:] = [max(torch.cuda.max_memory_allocated(gpu), peak) for gpu, peak in zip(gpus, before, strict=True)]
    return Timed(timing, losses, batches.samples, start)


def gather_epoch(run: RunState, epoch: int, timed: Timed) -> EpochMeasurement:
    """What all ranks measured of one epoch, after the clock has stopped."""
    timing, losses = timed.timing, timed.losses
    own = _scalars(losses)
    # Before anything else is computed: a strategy may use the loss or the optimizer in its hooks.
    counted = {"loss_samples": run.tally.samples, "optimizer_steps": run.tally.steps}
    unsettled = digest(run.strategy.parameter_sample().items())
    run.strategy.settle()
    mine: dict[str, Any] = {
        "unsettled": unsettled,
        "restored": all(run.restored),
        **counted,
        "timing": timing,
        "losses": own,
        "warmup_losses": run.warmup_losses,
        "samples": timed.samples,
        "hash": run.strategy.fingerprint(),
        "update": run.strategy.update_norm(timed.start),
        "changed": run.strategy.changed_tensors(timed.start),
        "trainable": run.strategy.trainable_count(),
        "due": sum(one.count for one in run.parameters if one.trains) if run.parameters else None,
        "gradients": run.gradients[:1],
        "skipped": run.strategy.skipped_steps(),
    }
    sample = run.strategy.parameter_sample()
    mine["moved"] = moved_share(timed.start, sample, run.parameters)
    rotated = rotation(run, epoch)
    end = rotated.end if rotated else end_sample(run, sample)
    mine["end"] = projections(end, run.parameters)
    exchange = communication(run, epoch, timing)
    ranks = run.rank.gather(mine)
    by_rank = [rank["losses"] for rank in ranks if rank["losses"]]
    if any(rank["samples"] for rank in ranks) and not by_rank:
        raise TypeError("forward_backward() returned None on every rank; one must return the mean loss")
    finite = all(math.isfinite(loss) for rank in by_rank for loss in rank)
    timings: list[Timing] = [rank["timing"] for rank in ranks]
    return EpochMeasurement(
        epoch=epoch,
        timed_seconds=[timing.total for timing in timings],
        turn_seconds=[timing.turns for timing in timings],
        turn_steps=list(run.turns) or [run.spec.steps],
        step_seconds=[timing.steps for timing in timings],
        data_wait=[timing.data_wait for timing in timings],
        samples=[rank["samples"] for rank in ranks],
        loss_first=_mean([rank[0] for rank in by_rank]) if finite else None,
        loss_last=_mean([rank[-1] for rank in by_rank]) if finite else None,
        warmup_loss_first=_finite_mean([rank["warmup_losses"][0] for rank in ranks if rank["warmup_losses"]]),
        finite=finite,
        skipped_steps=max(rank["skipped"] for rank in ranks),
        parameter_hashes=[rank["hash"] for rank in ranks],
        loss_samples=[rank["loss_samples"] for rank in ranks],
        optimizer_steps=[rank["optimizer_steps"] for rank in ranks],
        update_norms=[rank["update"] if math.isfinite(rank["update"]) else None for rank in ranks],
        unsettled_hashes=[rank["unsettled"] for rank in ranks],
        restored=all(rank["restored"] for rank in ranks),
        changed_tensors=[rank["changed"] for rank in ranks],
        trainable_values=[rank["trainable"] for rank in ranks],
        trainable_due=max((rank["due"] for rank in ranks if rank["due"] is not None), default=None),
        gradient_names=next((list(rank["gradients"][0]) for rank in ranks if rank["gradients"]), None),
        moved_shares=[rank["moved"] for rank in ranks],
        end_state=ranks[0]["end"],
        rotated_distance=rotated.distance if rotated else None,
        rotated_loss=rotated.loss if rotated else None,
        forward_backward=_totals([timing.forward_backward for timing in timings]),
        optimizer=_totals([timing.apply for timing in timings]),
        **exchange,
    )


def _scalars(losses: list[Tensor | None]) -> list[float]:
    """The losses of the ranks that have one, read from the device. Raises TypeError for anything else."""
    for loss in losses:
        if loss is not None and not (isinstance(loss, Tensor) and loss.numel() == 1):
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise TypeError(
                f"forward_backward() returned a {type(loss).__name__}{shape}; a tensor of one value, or None, is due"
            )
    return [float(loss) for loss in losses if loss is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _finite_mean(values: list[float]) -> float | None:
    mean = _mean(values)
    return mean if mean is not None and math.isfinite(mean) else None


def _totals(lists: list[list[float] | None]) -> list[float] | None:
    return [sum(values) for values in lists if values is not None] or None
