"""Two campaigns against each other: which cells became faster or slower, and how sure that is.

Cells are paired by their factors, never by position. The ratio is samples/s of the new campaign over the base, so
above 1 is always faster. The verdict of a cell:

    SAME      the whole interval lies within the margin (1 / (1 + margin) to 1 + margin), or both are the same runs
    FASTER    the interval lies above 1 and p, adjusted after Holm over all tested cells, is under 1 - confidence
    SLOWER    the same below 1: a regression
    UNCLEAR   neither: the runs do not settle it, and with one run on a side there is no interval at all
    MISSING   no ok run on one side; a regression where the base was ok and the new campaign is not

A cell that is unsupported in both has nothing to be compared; the header names it.

Runs are independent, so the interval is Welch's on logs over runs, with Mann-Whitney's p as a check. Where both
folders hold the very same runs (a campaign and its copy), values are paired run by run instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import EXIT_OK, EXIT_REGRESSION, UserError
from bench.factors import FACTOR_NAMES, MEASURE, UNSUPPORTED, Baseline, cell_name
from bench.results.cells import Key, MeasuredCell, judged_cells, sort_key
from bench.results.folder import Campaign
from bench.results.statistics import Interval, holm, mann_whitney, paired_log_ratio, welch_log_ratio

VERDICTS = ("FASTER", "SLOWER", "SAME", "UNCLEAR", "MISSING")
PAIRED_BY = tuple(name for name in FACTOR_NAMES if name != "role")
MAY_DIFFER = frozenset({"strategybench"})
"""Identity facts that say which code was measured, which is what one compares, and not on what."""


@dataclass(frozen=True)
class Verdict:
    """One cell in both campaigns. `ratio` is new samples/s over base; blank figures are None."""

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

    @property
    def name(self) -> str:
        return f"{self.factors['strategy']}@{self.factors['devices']}"


@dataclass(frozen=True)
class Comparison:
    """All verdicts, with `header`: what was compared, and what differs between the machines where that was forced."""

    rows: tuple[Verdict, ...]
    header: tuple[str, ...]
    margin: float
    confidence: float

    @property
    def exit_code(self) -> int:
        """4 where any cell is SLOWER, or was ok in the base and is not in the new campaign; else 0."""
        return EXIT_REGRESSION if any(row.regression for row in self.rows) else EXIT_OK


def compare(
    base: Path, new: Path, *, margin: float = 0.05, confidence: float = 0.95, force: bool = False
) -> Comparison:
    """Compare two results folders.

    Raises UserError for a margin or confidence out of range, a folder that is not a campaign's, no ok run in the
    base, and for different machines, versions or data unless `force`, which lists the differences in the header.
    """
    if not 0 < margin < 1:
        raise UserError(f"--margin is a share between 0 and 1, such as 0.05, not {margin}")
    if not 0.5 <= confidence < 1:
        raise UserError(f"--confidence is a share from 0.5 to under 1, such as 0.95, not {confidence}")
    before, after = Campaign(base), Campaign(new)
    differences = _differences(before, after)
    if differences and not force:
        raise UserError(
            f"{base} and {new} are not comparable: {'; '.join(differences)}\n"
            "measure both on one machine with one set of versions, or give --force to compare all the same"
        )
    sides = [_cells(campaign) for campaign in (before, after)]
    if not any(cell.counts for cell in sides[0].values()):
        raise UserError(f"{base} holds no ok run that could be compared with")
    keys = sorted(sides[0].keys() | sides[1].keys(), key=sort_key)
    never = [key for key in keys if all(_unsupported(side.get(key)) for side in sides)]
    keys = [key for key in keys if key not in never]
    rows = [_measure(key, sides[0].get(key), sides[1].get(key), confidence=confidence) for key in keys]
    header = (
        f"base {base} (commit {_commits(before)}), new {new} (commit {_commits(after)})",
        f"ratio: new samples/s / base, {100 * confidence:g} % interval; SAME within a margin of {100 * margin:g} %",
        *(f"differs, compared by force: {difference}" for difference in differences),
        *([f"not compared, since unsupported in both: {', '.join(map(_place, never))}"] if never else []),
    )
    return Comparison(_decide(rows, margin=margin, confidence=confidence), header, margin, confidence)


def _cells(campaign: Campaign) -> dict[Key, MeasuredCell]:
    """Cells that are measured for their own sake, by the factors that pair them; a machine's cells are pooled."""
    spec = Baseline.parse(campaign.baseline_option)
    found: dict[Key, MeasuredCell] = {}
    for cell in judged_cells(campaign.runs, spec):
        if cell["role"] != MEASURE:
            continue
        key = tuple(cell[name] for name in PAIRED_BY)
        found[key] = replace(found[key], runs=found[key].runs + cell.runs) if key in found else cell
    return found


def _unsupported(cell: MeasuredCell | None) -> bool:
    return cell is not None and cell.status == UNSUPPORTED


def _place(key: Key) -> str:
    factors = dict(zip(PAIRED_BY, key, strict=True))
    return cell_name({**factors, "role": MEASURE})


def _commits(campaign: Campaign) -> str:
    marks = {
        f"{str(row['git_commit'])[:12]}{' and changes' if row['git_dirty'] else ''}"
        for row in campaign.run_rows
        if row["git_commit"]
    }
    return ", ".join(sorted(marks)) or "unknown"


# -- what must agree ------------------------------------------------------------------------------------------------


def _differences(base: Campaign, new: Campaign) -> list[str]:
    """What differs between the machines, versions and data of two campaigns, each as `name: base != new`."""
    return [*_machine_differences(base, new), *_data_differences(base, new)]


def _distinct(campaign: Campaign, column: str) -> list[str]:
    return sorted({str(row[column]) for row in campaign.run_rows if row[column] not in (None, "")})


def _machine_differences(base: Campaign, new: Campaign) -> list[str]:
    ids = [_distinct(campaign, "environment_id") for campaign in (base, new)]
    if ids[0] == ids[1]:
        return []
    facts = [campaign.environment.get("identity") or {} for campaign in (base, new)]
    if all(facts):
        names = sorted(facts[0].keys() | facts[1].keys())
        unlike = [name for name in names if facts[0].get(name) != facts[1].get(name)]
        if unlike:
            return [_difference(n, facts[0].get(n), facts[1].get(n)) for n in unlike if n not in MAY_DIFFER]
    found = [_difference("environment_id", ", ".join(ids[0]), ", ".join(ids[1]))]
    devices = [", ".join(_distinct(campaign, "device_name")) for campaign in (base, new)]
    return found if devices[0] == devices[1] else [*found, _difference("device_name", *devices)]


def _data_differences(base: Campaign, new: Campaign) -> list[str]:
    """Equal names with unlike samples: the fingerprints of a dataset that both campaigns read."""
    prints: list[dict[str, set[str]]] = [{}, {}]
    for side, campaign in zip(prints, (base, new), strict=True):
        for row in campaign.run_rows:
            if row["dataset_fingerprint"]:
                side.setdefault(row["dataset"], set()).add(row["dataset_fingerprint"])
    return [
        _difference(f"fingerprint of {name}", *(", ".join(sorted(side[name])) for side in prints))
        for name in sorted(prints[0].keys() & prints[1].keys())
        if prints[0][name] != prints[1][name]
    ]


def _difference(name: str, base: Any, new: Any) -> str:
    return f"{name}: {base} != {new}"


# -- verdicts -------------------------------------------------------------------------------------------------------


def _measure(key: Key, base: MeasuredCell | None, new: MeasuredCell | None, *, confidence: float) -> Verdict:
    """The figures of one cell, its verdict left at UNCLEAR or MISSING."""
    factors = dict(zip(PAIRED_BY, key, strict=True))
    runs = [cell.ok_runs if cell is not None and cell.counts else [] for cell in (base, new)]
    rates = [[run.samples_per_second or 0.0 for run in side] for side in runs]
    row = Verdict(
        factors=factors,
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
    if not all(runs):
        return row
    # Campaigns of earlier versions are of one id where their folders have one name; they were not begun together.
    values = [
        {(*run.identity, run.first("utc_start")): rate for run, rate in zip(*side, strict=True)}
        for side in zip(runs, rates, strict=True)
    ]
    interval, note = _interval(values[0], values[1], confidence=confidence)
    return replace(
        row,
        verdict="UNCLEAR",
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        p=interval.p,
        p_mann_whitney=mann_whitney(rates[1], rates[0]),
        note=note,
    )


def _absence(side: str, cell: MeasuredCell | None) -> str:
    """Why a side has no ok run."""
    if cell is None:
        return f"not in {side}"
    return "" if cell.counts else f"{cell.status} in {side}{': ' if cell.reason else ''}{cell.reason}"


def _interval(base: Mapping[Key, float], new: Mapping[Key, float], *, confidence: float) -> tuple[Interval, str]:
    """Welch's interval of two campaigns, or the paired one where both sides are the same runs."""
    if base.keys() != new.keys():
        single = "one run on a side: no interval" if min(len(base), len(new)) < 2 else ""
        return welch_log_ratio(list(new.values()), list(base.values()), confidence=confidence), single
    if base == new:
        return Interval(1.0, 1.0, 1.0, None, len(base)), "the same runs"
    order = sorted(base)
    paired = paired_log_ratio([new[run] for run in order], [base[run] for run in order], confidence=confidence)
    return paired, "the same runs with other values, paired"


def _decide(rows: Sequence[Verdict], *, margin: float, confidence: float) -> tuple[Verdict, ...]:
    """Give each row its verdict; Holm's family is the cells that were tested."""
    decided = []
    for row, p in zip(rows, holm([row.p for row in rows]), strict=True):
        verdict = row.verdict
        if row.low is not None and row.high is not None:
            verdict = _verdict(row.low, row.high, p, margin=margin, confidence=confidence)
        decided.append(replace(row, p_holm=p, verdict=verdict, regression=row.regression or verdict == "SLOWER"))
    return tuple(decided)


def _verdict(low: float, high: float, p: float | None, *, margin: float, confidence: float) -> str:
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return "SAME"
    if p is not None and p < 1 - confidence and (low > 1 or high < 1):
        return "FASTER" if low > 1 else "SLOWER"
    return "UNCLEAR"
