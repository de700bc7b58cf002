"""What moved between two campaigns: the machine, the baseline, or a cell relative to its baseline.

A machine may be twice as slow on another day, and every interval of that day still narrow. So a cell of two campaigns
has three ratios, new over base, of which above 1 is always faster:

    absolute    samples/s
    corrected   samples/s ÷ the probe's rate in the same block. The probe has two rates, of arithmetic and of memory
                traffic, and how much of each a workload is nobody knows: the interval holds what both of them give,
                and p is the larger one
    relative    samples/s ÷ the baseline's in the same block: the speedup, free of what both have in common

Each is of independent runs with a noise of their own (Welch on logs), the probe's own noise included.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from bench.factors import FACTOR_NAMES, MEASURE, Baseline
from bench.results.cells import Key, MeasuredCell, MeasuredRun, find_reference, judged_cells
from bench.results.folder import Campaign
from bench.results.statistics import Interval, geometric_mean, mann_whitney, paired_log_ratio, welch_log_ratio

PAIRED_BY = tuple(name for name in FACTOR_NAMES if name != "role")
ABSOLUTE, CORRECTED, RELATIVE = "absolute", "corrected", "relative"
PROBES = {"arithmetic": "probe_flops_per_second", "memory": "probe_bytes_per_second"}
"""What the probe measures, and the column that holds it."""

Values = Mapping[Key, float]
"""Of one campaign, by run."""


@dataclass(frozen=True)
class Contrast:
    """One value of both campaigns, new over base. p_rank: Mann and Whitney's. same_runs: a campaign and its copy."""

    interval: Interval
    p_rank: float | None
    note: str = ""
    same_runs: bool = False


def contrast(base: Values, new: Values, *, confidence: float) -> Contrast | None:
    """Welch's interval of two campaigns, or the paired one where both are the same runs. None without values."""
    if not base or not new:
        return None
    p_rank = mann_whitney(list(new.values()), list(base.values()))
    if base.keys() != new.keys():
        single = "one run on a side: no interval" if min(len(base), len(new)) < 2 else ""
        return Contrast(welch_log_ratio(list(new.values()), list(base.values()), confidence=confidence), p_rank, single)
    if base == new:
        return Contrast(Interval(1.0, 1.0, 1.0, None, len(base)), p_rank, "the same runs", same_runs=True)
    order = sorted(base)
    paired = paired_log_ratio([new[run] for run in order], [base[run] for run in order], confidence=confidence)
    return Contrast(paired, p_rank, "the same runs with other values, paired", same_runs=True)


def hull(found: Iterable[Contrast | None]) -> Contrast | None:
    """What several contrasts of one thing say together: an interval that holds all of theirs, and the largest p."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    intervals = [one.interval for one in known]
    ratio = geometric_mean([interval.ratio for interval in intervals]) or 1.0
    n = min(interval.n for interval in intervals)
    lows = [interval.low for interval in intervals if interval.low is not None]
    highs = [interval.high for interval in intervals if interval.high is not None]
    if not len(lows) == len(highs) == len(known):
        return replace(known[0], interval=Interval(ratio, None, None, None, n))
    ps = [interval.p for interval in intervals if interval.p is not None]
    ranks = [one.p_rank for one in known if one.p_rank is not None]
    together = Interval(ratio, min(lows), max(highs), max(ps, default=None), n)
    return replace(known[0], interval=together, p_rank=max(ranks, default=None))


def within(interval: Interval, margin: float) -> bool:
    """Whether the whole interval lies within 1 / (1 + margin) to 1 + margin."""
    low, high = interval.low, interval.high
    return low is not None and high is not None and 1 / (1 + margin) <= low and high <= 1 + margin


def moved(interval: Interval, margin: float) -> bool:
    """Whether the interval lies on one side of 1, and not within the margin."""
    return interval.excludes_one and not within(interval, margin)


class Side:
    """One campaign as it is compared: its measured cells by the factors that pair them, and what its probe said."""

    def __init__(self, campaign: Campaign) -> None:
        self.cells: dict[Key, MeasuredCell] = {}
        self._probes: dict[str, dict[Key, list[float]]] = {name: defaultdict(list) for name in PROBES}
        self._begun: dict[Key, Key] = {}
        for cell in judged_cells(campaign.runs, Baseline.parse(campaign.baseline_option)):
            for run in cell.runs:
                self._note_probe(run)
            if cell["role"] == MEASURE:
                # One machine's cells under two ids, where a campaign was resumed by force, are one cell here.
                key = tuple(cell[name] for name in PAIRED_BY)
                known = self.cells.get(key)
                self.cells[key] = replace(known, runs=known.runs + cell.runs) if known else cell

    def _note_probe(self, run: MeasuredRun) -> None:
        for name, column in PROBES.items():
            rate = run.first(column)
            if rate is not None and math.isfinite(rate) and rate > 0:
                self._probes[name][run.pair].append(rate)
                self._begun[run.pair] = min(self._begun.get(run.pair, run.moment), run.moment)

    def probe(self, name: str) -> dict[Key, float]:
        """The probe's rate by block: of the baseline's run and its twin's the geometric mean."""
        return {block: geometric_mean(rates) or 0.0 for block, rates in self._probes[name].items()}

    def blocks(self, name: str) -> Values:
        """The same, by a key that only a copy of this campaign has too."""
        return {(*block, self._begun[block]): rate for block, rate in self.probe(name).items()}

    def balance(self) -> Values:
        """FLOP of arithmetic for a byte of memory traffic, by block."""
        arithmetic, memory = (self.blocks(name) for name in PROBES)
        return {block: arithmetic[block] / memory[block] for block in arithmetic.keys() & memory.keys()}

    def rates(self, cell: MeasuredCell | None) -> Values:
        """Samples/s of the runs that count."""
        return self._over(cell, None)

    def corrected(self, cell: MeasuredCell | None, name: str) -> Values:
        """Samples/s ÷ the probe's rate, of the runs in whose block there is one."""
        return self._over(cell, self.probe(name))

    def speedups(self, cell: MeasuredCell | None, reference: MeasuredCell | None) -> Values:
        """Samples/s ÷ the reference's, of the runs in whose block it is ok."""
        runs = reference.ok_runs if reference is not None and reference.counts else []
        return self._over(cell, {run.pair: run.samples_per_second or 0.0 for run in runs})

    def _over(self, cell: MeasuredCell | None, divisors: Mapping[Key, float] | None) -> Values:
        # Campaigns of earlier versions are of one id where their folders have one name; they were not begun together.
        return {
            (*run.identity, run.first("utc_start")): (run.samples_per_second or 0.0)
            / (1.0 if divisors is None else divisors[run.pair])
            for run in (cell.ok_runs if cell is not None and cell.counts else [])
            if divisors is None or run.pair in divisors
        }


@dataclass(frozen=True)
class Machine:
    """How fast the machine itself was, new over base, by what the probe measures; None where a side has no probe.

    steady: all of it lies within the margin. moved: something lies beyond. unclear: neither. unknown: `without` names
    the sides that have no probe. balance: how arithmetic moved against memory; where that is beyond the margin
    (`uneven`), a cell may move against its baseline without its code having changed.
    """

    probes: Mapping[str, Contrast | None]
    state: Literal["steady", "moved", "unclear", "unknown"]
    without: tuple[str, ...] = ()
    balance: Contrast | None = None
    uneven: bool = False

    @classmethod
    def between(cls, base: Side, new: Side, *, margin: float, confidence: float) -> "Machine":
        probes = {name: contrast(base.blocks(name), new.blocks(name), confidence=confidence) for name in PROBES}
        known = [one.interval for one in probes.values() if one is not None]
        if not known:
            sides = (("base", base), ("new", new))
            return cls(probes, "unknown", tuple(name for name, side in sides if not any(map(side.blocks, PROBES))))
        balance = contrast(base.balance(), new.balance(), confidence=confidence)
        uneven = balance is not None and moved(balance.interval, margin)
        if all(within(interval, margin) for interval in known):
            return cls(probes, "steady", (), balance, uneven)
        state: Literal["moved", "unclear"] = "unclear"
        if any(moved(interval, margin) for interval in known):
            state = "moved"
        return cls(probes, state, (), balance, uneven)


@dataclass(frozen=True)
class Ratios:
    """The three ratios of one cell; None where the runs do not give one. `reference` is the baseline's key."""

    absolute: Contrast | None
    corrected: Contrast | None = None
    relative: Contrast | None = None
    reference: Key | None = None

    def by(self, name: str) -> Contrast | None:
        """The ratio of that name, by default the absolute one."""
        return {CORRECTED: self.corrected, RELATIVE: self.relative}.get(name, self.absolute)


def ratios(key: Key, base: Side, new: Side, baseline: Baseline, *, confidence: float) -> Ratios:
    """What both campaigns say of a cell. The baseline is one that counts in both, so that it is the same in both."""
    sides, cells = (base, new), [side.cells.get(key) for side in (base, new)]
    absolute = contrast(base.rates(cells[0]), new.rates(cells[1]), confidence=confidence)
    if absolute is None:
        return Ratios(None)
    corrected = hull(
        contrast(base.corrected(cells[0], name), new.corrected(cells[1], name), confidence=confidence)
        for name in PROBES
    )
    reference = _reference(key, base, new, baseline)
    if reference is None:
        return Ratios(absolute, corrected)
    speedups = [side.speedups(cell, side.cells[reference]) for side, cell in zip(sides, cells, strict=True)]
    return Ratios(absolute, corrected, contrast(*speedups, confidence=confidence), reference)


def _reference(key: Key, base: Side, new: Side, baseline: Baseline) -> Key | None:
    """The key of a cell's baseline; None for the baseline itself, and where no side or only one has it."""
    cell = base.cells[key]
    if baseline.matches(cell):
        return None
    shared = {
        id(base.cells[other]): other
        for other in base.cells.keys() & new.cells.keys()
        if base.cells[other].counts and new.cells[other].counts
    }
    found = find_reference(cell, (base.cells[other] for other in shared.values()), baseline.matches)
    return None if found is None else shared[id(found)]
