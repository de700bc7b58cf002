"""Two campaigns against each other: which cells became faster or slower, and how sure that is.

Cells are paired by their factors, never by position. A cell has three ratios, absolute, corrected by the machine's
probe, and relative to its baseline (`bench.results.movement`). By which of them it is judged:

    auto        relative, where both sides have its baseline and that did not itself become faster or slower; for the
                baseline, and where relative is not to be had, absolute where the probe says that the machine stood
                still within the margin, and corrected otherwise. Without a probe a difference may be the machine's,
                so that only SAME can be said
    absolute    samples/s as they are, whatever the machine did
    relative    relative for all cells that have a baseline; the baseline itself is UNCLEAR

The verdict is about that ratio:

    SAME      the whole interval lies within the margin (1 / (1 + margin) to 1 + margin), or both are the same runs
    FASTER    the interval lies above 1 and p, adjusted after Holm over all tested cells, is under 1 - confidence
    SLOWER    the same below 1: a regression
    UNCLEAR   neither: the runs do not settle it, and with one run on a side there is no interval at all
    MISSING   no ok run on one side; a regression where the base was ok and the new campaign is not

A cell that is unsupported in both has nothing to be compared; the header names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import EXIT_OK, EXIT_REGRESSION, UserError
from bench.factors import MEASURE, UNSUPPORTED, Baseline, cell_name
from bench.results.cells import Key, MeasuredCell, sort_key
from bench.results.comparable import differences
from bench.results.folder import Campaign, days
from bench.results.movement import (
    ABSOLUTE,
    CORRECTED,
    PAIRED_BY,
    RELATIVE,
    Contrast,
    Machine,
    Ratios,
    Side,
    moved,
    ratios,
    within,
)
from bench.results.statistics import Interval, holm

VERDICTS = ("FASTER", "SLOWER", "SAME", "UNCLEAR", "MISSING")
AUTO, UNPROVEN = "auto", "unproven"
BY = (AUTO, ABSOLUTE, RELATIVE)
"""What `--by` takes. Inside of auto a cell may turn out `unproven`: judged as absolute, but never as moved."""

NO_PROBE = "without a probe on both sides this may be the machine's; --by absolute takes it as it is"


@dataclass(frozen=True)
class Verdict:
    """One cell in both campaigns; blank figures are None.

    ratio, low and high are absolute: new samples/s over base. `by` is the ratio that the verdict and p are about.
    """

    factors: Mapping[str, Any]
    verdict: str
    regression: bool
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    p_mann_whitney: float | None
    base_runs: int
    new_runs: int
    base_samples_per_second: float | None
    new_samples_per_second: float | None
    note: str
    by: str = ""
    is_baseline: bool = False
    corrected_ratio: float | None = None
    corrected_low: float | None = None
    corrected_high: float | None = None
    relative_ratio: float | None = None
    relative_low: float | None = None
    relative_high: float | None = None

    @property
    def name(self) -> str:
        return f"{self.factors['strategy']}@{self.factors['devices']}"

    @property
    def judged(self) -> tuple[float | None, float | None, float | None]:
        """The ratio that the verdict is about, and its interval."""
        prefix = "" if self.by in ("", ABSOLUTE) else f"{self.by}_"
        ratio, low, high = (getattr(self, f"{prefix}{name}") for name in ("ratio", "low", "high"))
        return ratio, low, high


@dataclass(frozen=True)
class Comparison:
    """All verdicts, with `header`: what was compared, and what differs between the machines where that was forced."""

    rows: tuple[Verdict, ...]
    header: tuple[str, ...]
    margin: float
    confidence: float
    by: str
    machine: Machine

    @property
    def exit_code(self) -> int:
        """4 where any cell is SLOWER, or was ok in the base and is not in the new campaign; else 0."""
        return EXIT_REGRESSION if any(row.regression for row in self.rows) else EXIT_OK


def compare(
    base: Path, new: Path, *, margin: float = 0.05, confidence: float = 0.95, force: bool = False, by: str = AUTO
) -> Comparison:
    """Compare two results folders, each cell `by` one of BY.

    Raises UserError for a margin, confidence or `by` out of range, a folder that is not a campaign's, no ok run in the
    base, and for different machines, versions or data unless `force`, which lists the differences in the header.
    """
    if not 0 < margin < 1:
        raise UserError(f"--margin is a share between 0 and 1, such as 0.05, not {margin}")
    if not 0.5 <= confidence < 1:
        raise UserError(f"--confidence is a share from 0.5 to under 1, such as 0.95, not {confidence}")
    if by not in BY:
        raise UserError(f"--by {by}: give one of {', '.join(BY)}")
    before, after = Campaign(base), Campaign(new)
    unlike = differences(before, after)
    if unlike and not force:
        raise UserError(
            f"{base} and {new} are not comparable: {'; '.join(unlike)}\n"
            "measure both on one machine with one set of versions, or give --force to compare all the same"
        )
    sides = Side(before), Side(after)
    if not any(cell.counts for cell in sides[0].cells.values()):
        raise UserError(f"{base} holds no ok run that could be compared with")
    keys = sorted(sides[0].cells.keys() | sides[1].cells.keys(), key=sort_key)
    never = [key for key in keys if all(_unsupported(side.cells.get(key)) for side in sides)]
    keys = [key for key in keys if key not in never]
    judge = _Judge(*sides, Baseline.parse(before.baseline_option), by=by, margin=margin, confidence=confidence)
    header = (
        f"base {_campaign(base, before)}, new {_campaign(new, after)}",
        f"ratios: new / base, {100 * confidence:g} % intervals; SAME within a margin of {100 * margin:g} %",
        *(f"differs, compared by force: {difference}" for difference in unlike),
        *([f"not compared, since unsupported in both: {', '.join(map(_place, never))}"] if never else []),
    )
    return Comparison(judge.verdicts(keys), header, margin, confidence, by, judge.machine)


def _unsupported(cell: MeasuredCell | None) -> bool:
    return cell is not None and cell.status == UNSUPPORTED


def _place(key: Key) -> str:
    factors = dict(zip(PAIRED_BY, key, strict=True))
    return cell_name({**factors, "role": MEASURE})


def _campaign(folder: Path, campaign: Campaign) -> str:
    measured = days(row["utc_start"] for row in campaign.run_rows)
    return f"{folder} (commit {_commits(campaign)}{', ' if measured else ''}{measured})"


def _commits(campaign: Campaign) -> str:
    marks = {
        f"{str(row['git_commit'])[:12]}{' and changes' if row['git_dirty'] else ''}"
        for row in campaign.run_rows
        if row["git_commit"]
    }
    return ", ".join(sorted(marks)) or "unknown"


# -- verdicts -------------------------------------------------------------------------------------------------------


class _Judge:
    """Measures each cell of two campaigns, and says by which of its ratios it is judged."""

    def __init__(self, base: Side, new: Side, baseline: Baseline, *, by: str, margin: float, confidence: float) -> None:
        self.machine = Machine.between(base, new, margin=margin, confidence=confidence)
        self._base, self._new, self._baseline = base, new, baseline
        self._by, self._margin, self._confidence = by, margin, confidence

    def verdicts(self, keys: Sequence[Key]) -> tuple[Verdict, ...]:
        """A verdict for each cell; Holm's family is the cells that were tested."""
        rows = [self._measured(key) for key in keys]
        return tuple(self._decided(row, p) for row, p in zip(rows, holm([row.p for row in rows]), strict=True))

    def _measured(self, key: Key) -> Verdict:
        """The figures of one cell, its verdict left at UNCLEAR or MISSING."""
        row = _counted(key, self._base.cells.get(key), self._new.cells.get(key))
        row = replace(row, is_baseline=self._baseline.matches({**row.factors, "role": MEASURE}))
        found = self._ratios(key)
        if found.absolute is None:
            return row
        by, note = self._basis(found)
        judged = found.by(by)
        if by == UNPROVEN and judged is not None:
            # Without a p there is no FASTER or SLOWER: a difference might be the machine's.
            judged = replace(judged, interval=replace(judged.interval, p=None), p_rank=None)
            note = NO_PROBE if moved(judged.interval, self._margin) else ""
        return replace(
            row,
            **_figures("", found.absolute),
            **_figures("corrected_", found.corrected),
            **_figures("relative_", found.relative),
            verdict="UNCLEAR",
            by=ABSOLUTE if by == UNPROVEN else by,
            p=judged.interval.p if judged else None,
            p_mann_whitney=judged.p_rank if judged else None,
            note="; ".join(text for text in (judged.note if judged else "", note) if text),
        )

    def _ratios(self, key: Key) -> Ratios:
        return ratios(key, self._base, self._new, self._baseline, confidence=self._confidence)

    def _basis(self, found: Ratios) -> tuple[str, str]:
        """By which ratio a cell is judged, and what is to be said of that choice."""
        if self._by != AUTO:
            lacking = self._by == RELATIVE and found.relative is None
            return self._by, "no baseline beside it that counts in both" if lacking else ""
        if found.reference is None or found.relative is None:
            return self._alone(found), ""
        if self._moved_alone(found.reference):
            return self._alone(found), "judged without the baseline, which itself moved"
        return RELATIVE, ""

    def _alone(self, found: Ratios) -> str:
        """By which ratio a cell is judged that has no baseline to lean on."""
        same_runs = found.absolute is not None and found.absolute.same_runs
        if same_runs or self.machine.state == "steady":
            return ABSOLUTE
        return UNPROVEN if found.corrected is None else CORRECTED

    def _moved_alone(self, baseline: Key) -> bool:
        """Whether a baseline became faster or slower by more than its machine did."""
        found = self._ratios(baseline)
        by = self._alone(found)
        judged = found.by(by)
        return by != UNPROVEN and judged is not None and moved(judged.interval, self._margin)

    def _decided(self, row: Verdict, p: float | None) -> Verdict:
        _, low, high = row.judged
        verdict = row.verdict
        if low is not None and high is not None:
            interval = Interval(1.0, low, high, p, 0)
            verdict = "UNCLEAR"
            if within(interval, self._margin):
                verdict = "SAME"
            elif p is not None and p < 1 - self._confidence and interval.excludes_one:
                verdict = "FASTER" if low > 1 else "SLOWER"
        return replace(row, p_holm=p, verdict=verdict, regression=row.regression or verdict == "SLOWER")


def _counted(key: Key, base: MeasuredCell | None, new: MeasuredCell | None) -> Verdict:
    """One cell as far as its runs can be counted."""
    runs = [cell.ok_runs if cell is not None and cell.counts else [] for cell in (base, new)]
    return Verdict(
        factors=dict(zip(PAIRED_BY, key, strict=True)),
        verdict="MISSING",
        regression=bool(runs[0]) and not runs[1],
        ratio=None,
        low=None,
        high=None,
        p=None,
        p_holm=None,
        p_mann_whitney=None,
        base_runs=len(runs[0]),
        new_runs=len(runs[1]),
        base_samples_per_second=base.middle_rate if base is not None and runs[0] else None,
        new_samples_per_second=new.middle_rate if new is not None and runs[1] else None,
        note="; ".join(text for text in (_absence("base", base), _absence("new", new)) if text),
    )


def _absence(side: str, cell: MeasuredCell | None) -> str:
    """Why a side has no ok run."""
    if cell is None:
        return f"not in {side}"
    return "" if cell.counts else f"{cell.status} in {side}{': ' if cell.reason else ''}{cell.reason}"


def _figures(prefix: str, found: Contrast | None) -> dict[str, Any]:
    """A ratio and its interval, by the names of a verdict's fields."""
    interval = found.interval if found else Interval(1.0, None, None, None, 0)
    ratio = interval.ratio if found else None
    return {f"{prefix}ratio": ratio, f"{prefix}low": interval.low, f"{prefix}high": interval.high}
