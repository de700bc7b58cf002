"""The loss band: a run that is fast because it does other work than the baseline's does not count.

The band is wide on purpose. Plain DDP normalises by each replica's own BatchNorm statistics, so its losses differ
rightly from those of one device at the same global batch, and mixed precision adds its rounding; the first step's
loss is that of equal weights on equal samples and differs little, the last step's has had the whole run to part.
The sharp equalities are tests on models without BatchNorm.
"""

import math

LOSS_FIRST_TOLERANCE = 0.10
"""Largest relative difference of the first timed step's loss."""

LOSS_LAST_TOLERANCE = 0.25
"""Largest relative difference of the last timed step's loss."""

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
