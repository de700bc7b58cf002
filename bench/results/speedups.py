"""Each cell beside its baseline: the runs of both paired by block, as an interval and as log ratios."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bench.factors import CONTROL, FACTOR_NAMES, INTERRUPTED, MEASURE, OK, Baseline
from bench.results.cells import Key, MeasuredCell, find_reference, judged_cells
from bench.results.race import Out, out_of_the_race
from bench.results.statistics import Interval, paired_log_ratio


@dataclass(frozen=True)
class Judged:
    """A cell beside its baseline and what the pair of them says; both None where there is no baseline."""

    cell: MeasuredCell
    reference: MeasuredCell | None
    interval: Interval | None

    @property
    def is_baseline(self) -> bool:
        return self.reference is self.cell

    @property
    def enters_the_race(self) -> bool:
        """Whether its speedup may be held against others: not that of a twin, which is the baseline once more."""
        return self.reference is not None and self.interval is not None and self.cell["role"] == MEASURE


def judge_all(cells: Sequence[MeasuredCell], baseline: Baseline) -> list[Judged]:
    """Every cell beside the one that it is compared with, in their order."""
    return [_judge(cell, cells, baseline) for cell in cells]


def judged_by(runs: pd.DataFrame, baseline: str | None) -> list[Judged]:
    """The cells of a frame of runs.csv beside the baseline of that spelling. Raises UserError for another spelling."""
    spec = Baseline.parse(baseline)
    return judge_all(judged_cells(runs, spec), spec)


def _judge(cell: MeasuredCell, cells: Sequence[MeasuredCell], baseline: Baseline) -> Judged:
    reference = cell if baseline.matches(cell) and cell.counts else find_reference(cell, cells, baseline.matches)
    return Judged(cell, reference, _compare(cell, reference))


def _compare(cell: MeasuredCell, reference: MeasuredCell | None) -> Interval | None:
    if reference is None or cell.status != OK:
        return None
    own, other = cell.paired_rates(reference)
    return paired_log_ratio(own, other) if own else None


def log_ratios(cell: MeasuredCell, reference: MeasuredCell) -> dict[Key, float]:
    """log(samples/s ÷ the reference's) by what runs are paired by, where both have a run that is ok."""
    own, other = log_rates(cell), log_rates(reference)
    return {pair: own[pair] - other[pair] for pair in own if pair in other}


def log_rates(cell: MeasuredCell) -> dict[Key, float]:
    """log(samples/s) of its runs that are ok, by what runs are paired by."""
    return {run.pair: math.log(rate) for run in cell.ok_runs if (rate := run.samples_per_second)}


def twin_of(item: Judged, judged: Sequence[Judged]) -> MeasuredCell | None:
    """The cell that is this baseline measured once more; None for other cells, and without a twin."""
    twins = (other.cell for other in judged if other.cell["role"] == CONTROL and other.reference is item.cell)
    return next(twins, None) if item.is_baseline else None


def pair_log_ratios(runs: pd.DataFrame, *, baseline: str | None = None, raced: bool = False) -> dict[str, list[float]]:
    """log(samples/s ÷ the baseline's) by block for each judged cell, by its name: what a stop rule predicts from.

    With `raced` of those only that are still in the race.
    """
    judged = judged_by(runs, baseline)
    out = race(judged) if raced else {}
    found = {}
    for item in judged:
        if item.cell.key in out:
            continue
        if item.enters_the_race and not item.is_baseline and item.reference is not None:
            name = " ".join(str(value) for value in map(item.cell.factors.get, FACTOR_NAMES) if value)
            ratios = log_ratios(item.cell, item.reference)
            found[name] = [ratios[pair] for pair in sorted(ratios)]
    return found


# -- the race -------------------------------------------------------------------------------------------------------


def race(judged: Sequence[Judged]) -> dict[Key, Out]:
    """The cells of one campaign that are out of the race, by their keys; derived from its rows alone.

    All blocks but the last are whole, since one is begun when the one before it has ended; the last is whole where each
    cell that raced in it has a run that was not interrupted. Speedups over different baselines do not compare, so cells
    of each baseline race among themselves. A cell that turned out invalid beats nobody: those that it alone had beaten
    race again.
    """
    entrants = [item for item in judged if item.enters_the_race]
    measured = {item.cell.key: _blocks_measured(item.cell) for item in entrants}
    last = max((block for blocks in measured.values() for block in blocks), default=0)
    before = _out_after(entrants, last)
    whole = all(last in measured[key] for key in measured.keys() - before.keys())
    return _out_after(entrants, last + 1) if whole else before


def _blocks_measured(cell: MeasuredCell) -> set[int]:
    return {run.first("block") or 0 for run in cell.runs if run.status != INTERRUPTED}


def _out_after(entrants: Sequence[Judged], blocks_done: int) -> dict[Key, Out]:
    by_reference: dict[Key, dict[Key, dict[int, float]]] = defaultdict(dict)
    for item in entrants:
        if item.reference is not None:
            block_of = {run.pair: run.first("block") or 0 for run in item.cell.runs}
            ratios = log_ratios(item.cell, item.reference)
            by_reference[item.reference.key][item.cell.key] = {block_of[pair]: value for pair, value in ratios.items()}
    found: dict[Key, Out] = {}
    for reference, speedups in by_reference.items():
        found |= out_of_the_race(speedups, blocks_done=blocks_done, staying={reference})
    return found
