"""Whether one epoch of a run counts, from what its ranks reported. A fast wrong run is `invalid`, shown, never ranked.

What only other runs can tell, whether the losses are those of the baseline, is judged in `bench.results`.
"""

from __future__ import annotations

from bench.wire import EpochMeasurement
from strategies.places import Plan

PASSED = "passed"


def run_gate(epoch: EpochMeasurement, plan: Plan, *, expected_samples: int, test_count: int) -> str:
    """`passed`, or what is wrong with one epoch.

    Losses finite, the same parameters on all ranks of a piece, every sample that should have been trained on and no
    more, and where there was an evaluation, every test sample once.
    """
    if not epoch.finite:
        return "a loss is not finite"
    for piece, ranks in enumerate(plan.equals()):
        versions = {epoch.parameter_hashes[rank] for rank in ranks}
        if len(versions) > 1:
            of_piece = f" of piece {piece}" if plan.pieces > 1 else ""
            return f"parameters{of_piece} differ between replicas: {len(versions)} versions after the timed region"
    unlike = next((part for part in range(plan.read_parts) if len(_taken(epoch, plan, part)) > 1), None)
    if unlike is not None:
        return (
            f"the ranks that read part {unlike} took unlike numbers of samples: {sorted(_taken(epoch, plan, unlike))}"
        )
    if samples(epoch, plan) != expected_samples:
        return f"{samples(epoch, plan)} samples were trained on, {expected_samples} should have been"
    if epoch.evaluated is not None and epoch.evaluated != test_count:
        return f"{epoch.evaluated} test samples were evaluated, there are {test_count}"
    return PASSED


def _taken(epoch: EpochMeasurement, plan: Plan, part: int) -> set[int]:
    return {sum(epoch.samples[rank]) for rank in plan.readers(part)}


def samples(epoch: EpochMeasurement, plan: Plan) -> int:
    """Samples that were trained on, counted from the batches that the ranks took; those of one part count once."""
    return sum(sum(epoch.samples[plan.readers(part)[0]]) for part in range(plan.read_parts))
