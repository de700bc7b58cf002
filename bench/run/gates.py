"""Whether a run counts. A fast wrong run is `invalid`, shown, and never ranked."""

from __future__ import annotations

from collections.abc import Sequence

from bench.results.lossgate import loss_gate
from bench.wire import EpochMeasurement


def run_gate(epoch: EpochMeasurement, *, expected_samples: int, ranks_per_replica: int, test_count: int) -> str:
    """`passed`, or what is wrong with what the ranks reported of one epoch.

    Losses finite, the same parameters in all replicas, every sample that should have been trained on and no more,
    and where there was an evaluation, every test sample once.
    """
    if not epoch.finite:
        return "a loss is not finite"
    groups = {tuple(replica) for replica in _by_replica(epoch.parameter_hashes, ranks_per_replica)}
    if len(groups) > 1:
        return f"parameters differ between replicas: {len(groups)} versions after the timed region"
    if epoch.samples != expected_samples:
        return f"{epoch.samples} samples were trained on, {expected_samples} should have been"
    if epoch.evaluated is not None and epoch.evaluated != test_count:
        return f"{epoch.evaluated} test samples were evaluated, there are {test_count}"
    return "passed"


def _by_replica(hashes: Sequence[str], ranks_per_replica: int) -> list[Sequence[str]]:
    return [hashes[start : start + ranks_per_replica] for start in range(0, len(hashes), ranks_per_replica)]


def baseline_gate(epoch: EpochMeasurement, base: tuple[float | None, float | None] | None) -> str:
    """`passed`, or how the losses differ from those of the baseline (first, last) where the work is the same."""
    if base is None:
        return "passed"
    return loss_gate(epoch.loss_first, epoch.loss_last, *base) or "passed"
