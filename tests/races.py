"""Simulated races of many cells on a drifting machine: whether the fastest one stays, and what the race saves."""

from dataclasses import dataclass

import numpy as np
from drifting import IN_TURNS, log_rates
from scipy import stats

from bench.results.race import out_of_the_race

CELLS = 30
MOST_BLOCKS = 30
LEAST_BLOCKS = 5
TARGET = 0.03
"""The half-width, on the log scale, at which `blocks auto` is content on a CPU."""

BASELINE = "baseline"
ALWAYS_RUN = 2
"""The baseline and its twin, in every block."""


@dataclass(frozen=True)
class Race:
    """One simulated campaign. `blocks` until the top was resolved, None where it was not within MOST_BLOCKS.

    The top is resolved after a block, the fifth at the earliest, when each cell is out of the race or its speedup has
    a 95 % interval within TARGET to each side: what `blocks auto` stops at with --race. `raced` and `equal` are the
    runs until then, with the race and with all cells in each of these blocks.
    """

    best_was_out: bool
    blocks: int | None
    raced: int
    equal: int


def spread_of_speedups(random, trials):
    """Log speedups (trials, CELLS) of cells between 0.6 and 2 times the baseline, any ratio of neighbours alike."""
    return random.uniform(np.log(0.6), np.log(2.0), (trials, CELLS))


def races(truths, *, seed, plan=IN_TURNS):
    """One Race for each row of `truths`, (trials, cells) log speedups."""
    random = np.random.default_rng(seed)
    with_baseline = np.hstack([np.zeros((len(truths), 1)), truths])
    # In parts, since the simulation keeps every step of every run.
    for part in np.array_split(with_baseline, max(1, len(truths) // 50)):
        rates = log_rates(random, part, trials=len(part), blocks=MOST_BLOCKS, plan=plan)
        for truth, rate in zip(part, rates, strict=True):
            yield _race(int(np.argmax(truth[1:])), rate[:, 1:] - rate[:, :1])


def _race(best, log_speedups):
    blocks, cells = log_speedups.shape
    by_cell = {cell: dict(enumerate(log_speedups[:, cell])) for cell in range(cells)}
    out = out_of_the_race(
        by_cell | {BASELINE: dict.fromkeys(range(blocks), 0.0)}, blocks_done=blocks, staying={BASELINE}
    )
    last = np.array([out[cell].after_blocks if cell in out else blocks + 1 for cell in range(cells)])
    done = np.arange(1, blocks + 1)
    racing = last[None, :] > done[:, None]
    resolved = np.flatnonzero((~racing | (half_widths(log_speedups) <= TARGET)).all(axis=1) & (done >= LEAST_BLOCKS))
    count = int(done[resolved[0]]) if len(resolved) else None
    used = count or blocks
    # A cell is run in each block up to the one after which it is out.
    raced = int(np.minimum(last, used).sum()) + ALWAYS_RUN * used
    return Race(best in out, count, raced, (cells + ALWAYS_RUN) * used)


def half_widths(log_ratios):
    """Half-width of the 95 % t interval of each column's mean after each block, (blocks, cells); inf after one."""
    done = np.arange(1, len(log_ratios) + 1)[:, None]
    mean = np.cumsum(log_ratios, axis=0) / done
    squares = np.maximum(np.cumsum(log_ratios**2, axis=0) - done * mean**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = stats.t.ppf(0.975, done - 1) * np.sqrt(squares / (done - 1) / done)
    widths[0] = np.inf
    return widths
