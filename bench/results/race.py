"""Which cells need no further blocks: those that lie surely below the fastest one. A pure function of log speedups.

After each whole block, from the third on, every cell still in the race is held against the leader, the cell with the
largest mean log speedup. Their difference in each block is one of two runs of the same block, in which what the
machine did meanwhile cancels. A cell is out where Student's one-sided t over these differences has
p <= alpha / (k · (k + 1)) / rivals at the k-th look; `rivals` are all entrants but one.

The levels of all looks sum to at most alpha (1/2 + 1/6 + 1/12 + ... = 1), whatever the number of blocks, and each is
shared among the rivals (Bonferroni). The fastest cell is out only where some rival, in truth no faster, passes that
test against it: so with a probability of at most alpha over the whole campaign, however often it is looked.

What was decided after a block rests on the blocks up to it alone. Replayed from the rows of a campaign the race comes
to the same end, which is how a resumed campaign goes on with it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # scipy.stats, which takes a second, is imported when it is first used

ALPHA = 0.05
FIRST_LOOK = 3
"""Whole blocks before the first look: with two, the t of one degree of freedom decides nothing."""

Key = tuple[Any, ...]

_ROUNDING = 1e-12
"""Differences that spread less than this differ by the rounding of a float."""


@dataclass(frozen=True)
class Out:
    """Why a cell is out of the race.

    after_blocks: how many blocks were done. beaten_by: the key of the leader then. ratio: the leader's speedup over
    this cell's. p: one-sided, of the cell being no slower. level: what p had to stay under.
    """

    after_blocks: int
    beaten_by: Key
    ratio: float
    p: float
    level: float


def out_of_the_race(
    log_speedups: Mapping[Key, Mapping[int, float]],
    *,
    blocks_done: int,
    staying: Collection[Key] = (),
    alpha: float = ALPHA,
) -> dict[Key, Out]:
    """The cells that get no further blocks, with the reason, from each cell's log speedup by block (from 0).

    Only blocks below `blocks_done` are read, as one that is not whole yet says different things of different cells.
    `staying` are cells that may lead and are never out, such as the baseline with its log speedup of 0; its twin, which
    is the same cell once more, is no entrant. Cells must be comparable: speedups over one and the same baseline.
    """
    cells = list(log_speedups)
    if len(cells) < 2:
        return {}
    table = np.full((blocks_done, len(cells)), np.nan)
    for column, cell in enumerate(cells):
        for block, value in log_speedups[cell].items():
            if 0 <= block < blocks_done:
                table[block, column] = value
    stays = np.array([cell in staying for cell in cells], dtype=bool)
    found: dict[Key, Out] = {}
    racing = np.ones(len(cells), dtype=bool)
    for done in range(FIRST_LOOK, blocks_done + 1):
        level = level_of_look(done, rivals=len(cells) - 1, alpha=alpha)
        leader, ratios, p_values = against_the_leader(table[:done], racing)
        beaten = racing & ~stays & (p_values <= level)
        for column in np.flatnonzero(beaten).tolist():
            ratio, p = float(np.exp(ratios[column])), float(p_values[column])
            found[cells[column]] = Out(done, cells[leader], ratio, p, level)
        racing &= ~beaten
    return found


def level_of_look(blocks_done: int, *, rivals: int, alpha: float = ALPHA) -> float:
    """The level of one test after that many blocks, of which FIRST_LOOK are the first that are looked at."""
    look = blocks_done - FIRST_LOOK + 1
    return alpha / (look * (look + 1)) / max(rivals, 1)


def against_the_leader(log_speedups: np.ndarray, racing: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """The leader's column, each cell's mean log ratio to it, and the one-sided p of being no slower than it.

    log_speedups: (blocks, cells), NaN where a cell has no run that counts; racing: (cells,) bool. Mean and p are over
    the blocks that a cell has in common with the leader; p is 1 where these are fewer than FIRST_LOOK.
    """
    counts = np.isfinite(log_speedups).sum(axis=0)
    means = np.nansum(log_speedups, axis=0) / np.maximum(counts, 1)
    leader = int(np.argmax(np.where(racing & (counts >= FIRST_LOOK), means, -np.inf)))
    differences = log_speedups[:, [leader]] - log_speedups
    common = np.isfinite(differences)
    n = common.sum(axis=0)
    mean = np.where(common, differences, 0.0).sum(axis=0) / np.maximum(n, 1)
    squares = (np.where(common, differences - mean, 0.0) ** 2).sum(axis=0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    # A difference without any spread is one of generated figures: surely there, or not at all.
    t = mean / np.maximum(error, _ROUNDING)
    p = np.where(np.abs(mean) <= _ROUNDING, 1.0, scipy.stats.t.sf(t, np.maximum(n - 1, 1)))
    p = np.where(n >= FIRST_LOOK, p, 1.0)
    p[leader] = 1.0
    return leader, mean, p
