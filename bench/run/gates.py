"""Whether one epoch of a run counts, from what its ranks reported. A fast wrong run is `invalid`, shown, never ranked.

What only other runs can tell, whether the losses are those of the baseline, is judged in `bench.results`.
"""

from __future__ import annotations

from bench.wire import EpochMeasurement
from strategies.places import Plan

PASSED = "passed"

ROTATED_DISTANCE = 0.05
"""How far apart a step may end, relative to it, where ranks read each other's parts.

Gradients that are averaged in bfloat16 in another order differ by 0.4 % at most. Of half a batch alone they were apart
by half of the step and more, with BatchNorm and without."""

ROTATED_LOSS = {"fp32": 1e-4, "tf32": 1e-3, "amp-bf16": 1e-2, "amp-fp16": 1e-2}
"""Largest relative difference of a part's loss, on one rank and on another, with the same weights and kernels."""

SAME_LOSS = {"fp32": 1e-3, "tf32": 1e-2, "amp-bf16": 2e-2, "amp-fp16": 1e-2}
"""Largest relative difference of two losses of the same weights on the same samples: kernels differ between calls."""


def run_gate(
    epoch: EpochMeasurement,
    plan: Plan,
    *,
    expected_samples: int,
    test_count: int,
    same_work: bool = False,
    precision: str = "fp32",
) -> str:
    """`passed`, or what is wrong with one epoch.

    Losses finite, the same parameters on all ranks of a piece, every sample that should have been trained on and no
    more, its loss computed, as many optimizer steps as there were, all of the model trained and changed by it, and
    where there was an evaluation, every test sample once. A fact that a rank did not report is not judged.
    """
    if not epoch.finite:
        return "a loss is not finite"
    for piece, ranks in enumerate(plan.equals()):
        versions = {epoch.parameter_hashes[rank] for rank in ranks}
        if len(versions) > 1:
            of_piece = f" of piece {piece}" if plan.pieces > 1 else ""
            return f"parameters{of_piece} differ between replicas: {len(versions)} versions after the timed region"
    if same_work and epoch.unsettled_hashes:
        for ranks in plan.equals():
            if len({epoch.unsettled_hashes[rank] for rank in ranks}) > 1:
                return "parameters differed between replicas until settle() made them equal, after the timed region"
    if epoch.restored is False:
        return "the parameters did not go back to their start after warm-up"
    unlike = next((part for part in range(plan.read_parts) if len(_taken(epoch, plan, part)) > 1), None)
    if unlike is not None:
        return (
            f"the ranks that read part {unlike} took unlike numbers of samples: {sorted(_taken(epoch, plan, unlike))}"
        )
    if samples(epoch, plan) != expected_samples:
        return f"{samples(epoch, plan)} samples were trained on, {expected_samples} should have been"
    wrong = _untrained(epoch, plan) or (_rotated(epoch, precision) if same_work else "")
    if wrong:
        return wrong
    if epoch.evaluated is not None and epoch.evaluated != test_count:
        return f"{epoch.evaluated} test samples were evaluated, there are {test_count}"
    return PASSED


def leak(epoch: EpochMeasurement, precision: str) -> str:
    """What is wrong where the run did not go back to its start after warm-up, "" where it did or cannot be told."""
    first, again = epoch.warmup_loss_first, epoch.loss_first
    if first is None or again is None or epoch.epoch != 1:
        return ""
    if abs(again - first) <= SAME_LOSS.get(precision, 1e-2) * max(abs(first), abs(again), 1e-6):
        return ""
    return (
        f"the first timed loss is {again:.6g}, that of warm-up on the same samples was {first:.6g}: something that "
        "training changes was not put back after warm-up, or the model draws random numbers in another order"
    )


def _untrained(epoch: EpochMeasurement, plan: Plan) -> str:
    """What of the work was not done, "" where all of it was."""
    return (
        _unlearned_samples(epoch, plan)
        or _missing_steps(epoch, plan)
        or _untrained_model(epoch, plan)
        or _unchanged(epoch, plan)
    )


def _unlearned_samples(epoch: EpochMeasurement, plan: Plan) -> str:
    """Of a part that several ranks read, the loss may live on one of them."""
    if epoch.loss_samples is None:
        return ""
    due = samples(epoch, plan)
    done = sum(max(epoch.loss_samples[rank] for rank in plan.readers(part)) for part in range(plan.read_parts))
    if done == due:
        return ""
    return f"the loss was computed of {done} samples, {due} were handed out (counted in context.loss)"


def _missing_steps(epoch: EpochMeasurement, plan: Plan) -> str:
    if epoch.optimizer_steps is None:
        return ""
    due = max(len(epoch.step_seconds[rank]) for rank in plan.trainers)
    skipped = epoch.skipped_steps
    if skipped >= due:
        return f"all {due} optimizer steps were skipped by the loss scaler"
    # Where a rank serves, the optimizer may be there.
    serves = [rank for rank in range(plan.processes) if rank not in plan.trainers]
    if serves:
        return "" if any(epoch.optimizer_steps) else "no optimizer took a step"
    for rank in plan.trainers:
        taken = epoch.optimizer_steps[rank]
        # What the loss scaler skips is a step of a fused optimizer, which looks for itself, and none of others.
        if taken not in (due, due - skipped):
            return f"the optimizer of rank {rank} took {taken} steps in {due} timed ones"
    return ""


def _untrained_model(epoch: EpochMeasurement, plan: Plan) -> str:
    values = epoch.trainable_values[plan.trainers[0]] if epoch.trainable_values else None
    if values is not None and epoch.trainable_due is not None and values != epoch.trainable_due:
        return f"{values} values are trained, the bare model has {epoch.trainable_due}"
    if epoch.gradient_names is not None and not epoch.gradient_names:
        return "no parameter had a gradient in warm-up"
    return ""


def _unchanged(epoch: EpochMeasurement, plan: Plan) -> str:
    if epoch.update_norms is None:
        return ""
    for rank in plan.trainers:
        norm = epoch.update_norms[rank]
        if norm is None:
            return f"the parameters of rank {rank} are not finite after the timed steps"
        if norm <= 0:
            return f"the timed steps did not change the parameters of rank {rank}"
        # The norm is that of the whole model, whichever piece of it the rank holds.
        if epoch.moved_shares is not None and epoch.moved_shares[rank] == 0:
            return f"the timed steps changed no value that rank {rank} holds"
    return ""


def _rotated(epoch: EpochMeasurement, precision: str) -> str:
    """What differs where ranks read each other's parts; nothing may, but for rounding."""
    apart, loss = epoch.rotated_distance, epoch.rotated_loss
    if apart is not None and apart > ROTATED_DISTANCE:
        return (
            f"a step ends elsewhere where the ranks read each other's parts, by {apart:.2g} of the step: "
            "not all ranks' gradients are in it"
        )
    allowed = ROTATED_LOSS.get(precision, 1e-2)
    if loss is not None and loss > allowed:
        return (
            f"the loss of a part is another on another rank, by {loss:.2g} of it, {allowed:g} may be: "
            "the ranks do not compute with the same copy"
        )
    return ""


def _taken(epoch: EpochMeasurement, plan: Plan, part: int) -> set[int]:
    return {sum(epoch.samples[rank]) for rank in plan.readers(part)}


def samples(epoch: EpochMeasurement, plan: Plan) -> int:
    """Samples that were trained on, counted from the batches that the ranks took; those of one part count once."""
    return sum(sum(epoch.samples[plan.readers(part)[0]]) for part in range(plan.read_parts))
