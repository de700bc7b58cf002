"""What a run ends with, so small that two runs can be compared by it: some random projections of its parameters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from bench.worker.state import BareParameter, RunState
from strategies.base import sample_of, sampled_count

PROJECTIONS = 8

Sample = Mapping[str, Tensor]


def end_sample(run: RunState, own: Sample) -> Sample | None:
    """Some values of every parameter of the bare model, by name. Collective.

    `own` is this rank's sample, which holds them where its copy is a whole one. Of a copy that is held in pieces they
    are gathered on rank 0, and None is given on the others. None where the strategy samples its parameters in a way of
    its own, and where nobody knows the bare model. Raises ValueError where `bare_state` lacks a parameter of it.
    """
    if run.spec.cell.plan.pieces > 1:
        return gathered_sample(run)
    alike = run.parameters and all(
        one.name in own and len(own[one.name]) == sampled_count(one.count) for one in run.parameters
    )
    return {one.name: own[one.name] for one in run.parameters} if alike else None


def gathered_sample(run: RunState) -> Sample | None:
    """Some values of every parameter of the bare model as it was gathered on rank 0; None on the others. Collective."""
    state = run.strategy.bare_state()
    if run.rank.rank != 0 or not run.parameters:
        return None
    found: Mapping[str, Tensor] = state["model"]
    for one in run.parameters:
        count = found[one.name].numel() if one.name in found else 0
        if count != one.count:
            raise ValueError(f"bare_state() holds {count} values of {one.name}, the bare model has {one.count}")
    return sample_of((one.name, found[one.name]) for one in run.parameters)


def projections(sample: Sample | None, parameters: tuple[BareParameter, ...]) -> list[float] | None:
    """The parameters' projections on PROJECTIONS directions of random signs, the same in every run.

    The mean square of what two states differ in is about the squared distance between them, with a relative standard
    error of sqrt(2 / PROJECTIONS) (Johnson and Lindenstrauss 1984; Achlioptas 2003 for signs). None without a sample,
    and where a value is not finite.
    """
    if sample is None:
        return None
    total = np.zeros(PROJECTIONS)
    for one in parameters:
        values = sample[one.name].numpy()
        if len(values):
            total += math.sqrt(one.count / len(values)) * (_signs(one.name, len(values)) @ values)
    return total.tolist() if np.isfinite(total).all() else None


def _signs(name: str, count: int) -> np.ndarray:
    """(PROJECTIONS, count) of -1 and 1: from a hash, since the streams of random generators change with versions."""
    bits = hashlib.shake_256(name.encode()).digest(PROJECTIONS * (-(-count // 8)))
    return np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(PROJECTIONS, -1)[:, :count] * 2.0 - 1.0


def moved_share(start: Sample, end: Sample, parameters: tuple[BareParameter, ...]) -> float | None:
    """Share of the sampled values of a rank that are other ones now; None where it holds none that is trained."""
    frozen = {one.name for one in parameters if not one.trains}
    names = [name for name in start if name not in frozen]
    held = sum(start[name].numel() for name in names)
    return sum(int((start[name] != end[name]).sum()) for name in names) / held if held else None
