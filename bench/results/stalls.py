"""Runs that stalled, told from their own facts at any number of runs; flagged, never deleted.

A run stalled by the others of its cell where its samples/s lie far below theirs, and so they do once it is paired with
the baseline's run of its block: a machine that was slow for a whole block held up both, and a baseline that stalled
makes the cell's run look fast and not slow. It stalled by its own steps where the mean step is much longer than the
median one, so that a few steps took what is missing.

Half-speed steps all through a run that has no other to compare it with are seen by neither.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from bench.results.cells import Key, MeasuredCell, MeasuredRun
from bench.results.flags import Flag, flagged
from bench.results.speedups import Judged, log_rates, log_ratios, twin_of
from bench.results.statistics import median

STALLED = 0.25
"""Of its speed, or of its steps' time, lost: the floor below which the flag stays quiet."""

STALLED_Z = 3.5
STALLED_STEPS = 3
"""Fewest steps whose mean can tell of a stall: of two it is their median."""

Logs = Mapping[Key, float]
"""A value on the log scale for each run, by what runs are paired by."""


def stalled_runs(judged: Sequence[Judged]) -> dict[Key, Flag]:
    """The flag of each cell that has stalled runs, by the cell's key: which run, by how much, and how that is known."""
    paired = {item.cell.key: _paired(item, judged) for item in judged}
    found = {}
    for item in judged:
        peers = [paired[other.cell.key] for other in judged if other.reference is item.reference]
        by_others = _by_others(item.cell, paired[item.cell.key], peers)
        texts = [text for text in (_worst(by_others), _worst(_by_own_steps(item.cell.ok_runs))) if text]
        if texts:
            found[item.cell.key] = flagged("stalled_run", "; ".join(texts))
    return found


def _paired(item: Judged, judged: Sequence[Judged]) -> Logs:
    """Log ratios to the baseline's runs, of the baseline to its twin's; log rates where there is none."""
    other = twin_of(item, judged) if item.is_baseline else item.reference
    return log_rates(item.cell) if other is None else log_ratios(item.cell, other)


def _by_others(cell: MeasuredCell, paired: Logs, peers: Sequence[Logs]) -> list[tuple[float, str]]:
    """How slow each stalled run was beside the cell's others, on the log scale, and in words."""
    rates, found = log_rates(cell), []
    for run in cell.ok_runs:
        alone = _below_others(rates, run.pair)
        beside = _below_others(paired, run.pair)
        if alone is None or beside is None or max(alone, beside) > math.log(1 - STALLED):
            continue
        # A cell may be noisier than its peers, but of two further runs the difference says little of how noisy.
        own = _noise([paired], run.pair) if len(paired) > 3 else 0.0
        if beside <= -STALLED_Z * max(own, _noise(peers, run.pair)):
            words = f"ran at {100 * math.exp(beside):.0f} % of the speed of its cell's other runs, paired by block"
            found.append((beside, f"{run.first('run_id')} {words}"))
    return found


def _below_others(values: Logs, pair: Key) -> float | None:
    """A run's value less the median of the others'; None where it has none, or there is no other."""
    middle = median([value for other, value in values.items() if other != pair])
    return None if middle is None or pair not in values else values[pair] - middle


def _noise(peers: Iterable[Logs], without: Key) -> float:
    """Standard deviation of a paired value, from these cells' runs in all blocks but the one of the run in question.

    The median size of the difference of two runs of a cell, which a few stalled ones do not move, over what it is for a
    normal distribution of standard deviation 1, 0.6745 √2. 0, so that the floor alone decides, where no cell has two.
    """
    differences = [
        abs(first - second)
        for values in peers
        for first, second in combinations([value for pair, value in values.items() if pair != without], 2)
    ]
    return (median(differences) or 0.0) / (0.6745 * math.sqrt(2))


def _by_own_steps(runs: Sequence[MeasuredRun]) -> list[tuple[float, str]]:
    """The share of its time that each stalled run lost to a few steps, negative as of the others, and in words."""
    found = []
    for run in runs:
        for row in run.rows:
            steps, seconds, middle = (row.get(name) for name in ("timed_steps", "timed_seconds", "step_seconds_median"))
            if not steps or not seconds or not middle or steps < STALLED_STEPS:
                continue
            # Of runs that took turns the seconds are those of the turns, so that what passed between them is no stall.
            lost = seconds - steps * middle
            if lost > STALLED * seconds:
                words = f"{lost:.3g} of its {seconds:.3g} s went to a few of its {steps} steps, the median step being "
                found.append((-lost / seconds, f"in {run.first('run_id')} {words}{middle:.3g} s"))
    return found


def _worst(found: Sequence[tuple[float, str]]) -> str:
    """The words of the worst of these runs, and how many more there are; "" without any."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return min(found)[1] + more if found else ""
