"""When a campaign has enough blocks. The rule is fixed beforehand, and the reason it stopped is recorded.

A fixed number of blocks is taken as asked. With `blocks = "auto"` and a time target: as many as fit it, and at least
FEWEST_BLOCKS. Without one: at least MIN_BLOCKS, then until every speedup's 95 % interval is within the target to each
side. Where both targets are given, the first that is reached ends the campaign; so do the block and the time limit.
With `race` only the speedups of cells that are still in the race count: the others are no further measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.plan.matrix import Matrix
from bench.results.columns import RUN_COLUMNS
from bench.results.folder import frame
from bench.run.pace import FEWEST_BLOCKS, OVERRUN
from bench.run.reporter import duration

MIN_BLOCKS = 5
PILOT_BLOCKS = FEWEST_BLOCKS
DEFAULT_TARGET = {"cuda": 0.01, "cpu": 0.03}


@dataclass(frozen=True)
class Decision:
    """Whether to stop, why, and what to tell the person who waits."""

    stop: bool
    reason: str = ""
    message: str = ""
    interrupted: bool = False


def decide(
    matrix: Matrix,
    rows: Sequence[Mapping[str, Any]],
    *,
    blocks_done: int,
    seconds: float,
    block_seconds: float | None = None,
    seconds_before: float = 0.0,
) -> Decision:
    """Judge after a whole block, from all rows of the campaign.

    `seconds` is the time since the campaign was begun or resumed, `seconds_before` that of earlier sessions, and
    `block_seconds` that of a block (by default the mean over all blocks done).
    """
    if matrix.time_limit is not None and seconds >= matrix.time_limit:
        return Decision(True, f"time limit of {duration(matrix.time_limit)} reached after {blocks_done} blocks")
    if matrix.blocks:
        many = f"{matrix.blocks} block" + ("s" if matrix.blocks > 1 else "")
        return Decision(blocks_done >= matrix.blocks, f"{many} as asked" if blocks_done >= matrix.blocks else "")
    if blocks_done >= matrix.max_blocks:
        return Decision(True, f"limit of {matrix.max_blocks} blocks reached")
    if blocks_done < PILOT_BLOCKS:
        return Decision(False)
    block_seconds = seconds / blocks_done if block_seconds is None else block_seconds
    if matrix.time_target is not None:
        if seconds_before + seconds + block_seconds > OVERRUN * matrix.time_target:
            return Decision(True, f"{blocks_done} blocks fill the time target of {duration(matrix.time_target)}")
        if matrix.precision_target is None:
            return Decision(False)
    return _by_precision(matrix, rows, blocks_done=blocks_done, block_seconds=block_seconds)


def _by_precision(
    matrix: Matrix, rows: Sequence[Mapping[str, Any]], *, blocks_done: int, block_seconds: float
) -> Decision:
    from bench.results.speedups import pair_log_ratios
    from bench.results.statistics import blocks_needed, moderated_deviations

    runs = frame(list(rows), RUN_COLUMNS)
    target = matrix.precision_target or DEFAULT_TARGET[str(runs["device_kind"].iloc[0])]
    found = pair_log_ratios(runs, baseline=matrix.baseline, raced=bool(matrix.race))
    pairs = [ratios for ratios in found.values() if len(ratios) > 1]
    if not pairs:
        return Decision(True, "no cell can be compared with the baseline, so more blocks would decide nothing")
    widest = max(half_width(ratios) for ratios in pairs)
    if blocks_done >= MIN_BLOCKS and widest <= target:
        return Decision(True, f"every speedup is within {target:.1%} after {blocks_done} blocks")
    # A forecast only: whether to stop is judged by each speedup's own interval.
    needed = max(blocks_needed(deviation, target) or matrix.max_blocks for deviation in moderated_deviations(pairs))
    needed = min(max(needed, MIN_BLOCKS, blocks_done + 1), matrix.max_blocks)
    left = block_seconds * (needed - blocks_done)
    return Decision(
        False,
        message=f"after {blocks_done} blocks the widest interval is ±{widest:.1%}, the target ±{target:.1%}: "
        f"about {needed} blocks in all, {duration(left)} to go",
    )


def half_width(log_ratios: list[float]) -> float:
    """Half the width of a speedup's 95 % interval on the log scale, from its log ratios by block."""
    from bench.results.statistics import paired_log_ratio

    width = paired_log_ratio([math.exp(ratio) for ratio in log_ratios], [1.0] * len(log_ratios)).half_width
    return math.inf if width is None else width
