"""Work like the baseline's: a run that is fast because it does other work does not count.

The band is wide on purpose. Plain DDP normalises by each replica's own BatchNorm statistics, so its losses differ
rightly from those of one device at the same global batch, and mixed precision adds its rounding; the first step's
loss is that of equal weights on equal samples and differs little, the last step's has had the whole run to part.
The sharp equalities are tests on models without BatchNorm.
"""

import math
from collections.abc import Mapping
from typing import Any

LOSS_FIRST_TOLERANCE = 0.10
"""Largest relative difference of the first timed step's loss."""

LOSS_LAST_TOLERANCE = 0.25
"""Largest relative difference of the last timed step's loss."""

UPDATE_FACTOR = 4.0
"""How many times larger or smaller the change of the parameters may be than the baseline's, over the same steps.

With BatchNorm statistics of a half of the batch it was 1.26 times as large on ResNet-50, and of smaller shares more."""

FEWEST_CHANGED = 0.9
"""Smallest share of the parameters that the baseline changed. A gradient of about 0 may or may not move a value."""

END_FACTOR = 1 + UPDATE_FACTOR
"""How many times the baseline's own update the state a run ends in may lie from the baseline's.

What two honest runs may lie apart that began alike and whose updates pass: with BatchNorm the update of two halves of a
batch has no direction in common with that of the whole (1.5 times its length apart for ResNet-50 at a batch of 64)."""

LOSS_FLOOR = 0.05
"""Smallest absolute tolerance: where the loss is near 0, a relative band would judge noise."""


def loss_gate(
    loss_first: float | None, loss_last: float | None, base_first: float | None, base_last: float | None
) -> str | None:
    """Why a run whose work is the baseline's does not count, or None where it does.

    Only for the same workload, dataset, seed, global batch and number of steps, and no lossy communication hook.
    A loss that is missing on either side is not judged; one that is not finite does not count.
    """
    pairs = (
        ("first", loss_first, base_first, LOSS_FIRST_TOLERANCE),
        ("last", loss_last, base_last, LOSS_LAST_TOLERANCE),
    )
    for name, loss, base, relative in pairs:
        if loss is not None and not math.isfinite(loss):
            return f"loss of the {name} timed step is not finite"
        if loss is None or base is None or not math.isfinite(base):
            continue
        tolerance = max(relative * abs(base), LOSS_FLOOR)
        if abs(loss - base) > tolerance:
            return (
                f"loss of the {name} timed step is {loss:.4g}, the baseline's {base:.4g}: "
                f"they may differ by {tolerance:.3g} at most"
            )
    return None


def work_gate(run: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """Why a run did not train what the baseline did, or None. The rows of one epoch of each, by column.

    Judged by what was trained (number of values, parameters with a gradient) and by how far it came. What is missing on
    either side is not judged.
    """

    def both(column: str) -> tuple[Any, Any] | None:
        pair = run.get(column), base.get(column)
        return None if any(value in (None, "") for value in pair) else pair

    values, names = both("trainable_values"), both("gradient_names_hash")
    tensors, norms = both("changed_tensors"), both("update_norm")
    if values and values[0] != values[1]:
        return f"{values[0]} values are trained, the baseline trains {values[1]}"
    if names and names[0] != names[1]:
        counts = (
            f"{run.get('gradient_tensors')} parameters had a gradient, {base.get('gradient_tensors')} the baseline's"
        )
        return f"{counts}: they are not the same"
    if tensors and tensors[0] < FEWEST_CHANGED * tensors[1]:
        return f"the timed steps changed {tensors[0]} parameters, the baseline's {tensors[1]}"
    if norms and norms[1] > 0 and not 1 / UPDATE_FACTOR <= norms[0] / norms[1] <= UPDATE_FACTOR:
        return (
            f"the timed steps changed the parameters by {norms[0]:.3g}, the baseline's by {norms[1]:.3g}: "
            f"more than {UPDATE_FACTOR:g} times apart"
        )
    ends = both("end_state")
    apart = _distance(*ends) if ends else None
    if apart is not None and norms and norms[1] > 0 and apart > END_FACTOR * norms[1]:
        return (
            f"the parameters end {apart:.3g} from the baseline's, which changed by {norms[1]:.3g}: "
            f"more than {END_FACTOR:g} times that"
        )
    return None


def _distance(one: str, other: str) -> float | None:
    """About the distance of two states, from their projections on the same directions."""
    first, second = ([float(value) for value in text.split()] for text in (one, other))
    return math.dist(first, second) / math.sqrt(len(first)) if len(first) == len(second) else None
