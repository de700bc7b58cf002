"""From the rows of runs.csv to runs and cells: what summaries, flags and comparisons judge.

The unit is the run: the rows of one run_id, one for each epoch, become one value. Of several attempts at one cell in
one block the last that was measured counts; a baseline has a run in each cohort of a block. Breakdown rows never enter.
Nothing here depends on the order of the rows.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bench.factors import (
    BY_NAME,
    CELL_COLUMNS,
    CONTROL,
    CRASHED,
    INVALID,
    MEASURE,
    MEASURED_STATUSES,
    OK,
    ONE_BATCH,
    PREFERRED,
    ROLES,
    STRONG,
    WORST_FIRST,
    Baseline,
    rank_in,
    same_setting,
)
from bench.results.lossgate import loss_gate, work_gate
from bench.results.statistics import median

Key = tuple[Any, ...]


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def sort_key(values: Iterable[Any]) -> tuple[tuple[bool, Any], ...]:
    """Orders tuples in which any value may be None: those come first."""
    return tuple((value is not None, "" if value is None else value) for value in values)


@dataclass(frozen=True)
class MeasuredRun:
    """One cell measured once. `rows` are its rows by epoch; `overruled`: a later gate gave status and reason.

    begun: when the first run of its campaign was started, ISO 8601; "" where only its own rows are known.
    """

    rows: tuple[Mapping[str, Any], ...] = field(repr=False)
    status: str
    reason: str
    overruled: bool = False
    begun: str = ""

    def first(self, column: str) -> Any:
        return self.rows[0].get(column)

    def last(self, column: str) -> Any:
        return self.rows[-1].get(column)

    def values(self, column: str) -> list[Any]:
        """The column's values over the epochs, without blanks."""
        return [row[column] for row in self.rows if row.get(column) not in (None, "")]

    def total(self, column: str) -> Any:
        """The sum over the epochs, None where any epoch lacks it."""
        found = self.values(column)
        return sum(found) if len(found) == len(self.rows) else None

    @cached_property
    def pair(self) -> Key:
        """What runs are paired by: block and cohort, apart for each campaign so that pooled campaigns do not mix."""
        return (*self.block, self.first("cohort") or 0)

    @property
    def block(self) -> Key:
        return (self.first("campaign_id") or "", -1 if self.first("block") is None else self.first("block"))

    @property
    def identity(self) -> Key:
        return (self.first("campaign_id") or "", self.first("run_id") or "")

    @cached_property
    def moment(self) -> Key:
        """Orders runs: campaigns by when they were begun, and within one by its plan and never by the wall clock."""
        order = [self.first(name) for name in ("block", "order_in_block", "attempt", "cohort", "run_id")]
        return sort_key([self.begun, self.first("campaign_id"), *order])

    @cached_property
    def samples_per_second(self) -> float | None:
        """timed_samples / timed_seconds, each summed over the run's epochs."""
        samples, seconds = self.total("timed_samples"), self.total("timed_seconds")
        return finite(samples / seconds) if samples and seconds and samples > 0 and seconds > 0 else None

    @property
    def epoch_seconds(self) -> float | None:
        size, rate = self.first("epoch_samples"), self.samples_per_second
        return finite(size / rate) if size and rate else None

    @property
    def ok(self) -> bool:
        return self.status == OK


@dataclass(frozen=True)
class MeasuredCell:
    """One point of the matrix on one machine: runs that agree in all factors, in the order they were measured."""

    key: Key
    factors: Mapping[str, Any] = field(repr=False)
    runs: tuple[MeasuredRun, ...] = field(repr=False)
    superseded: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.factors[name]

    @property
    def ok_runs(self) -> list[MeasuredRun]:
        return [run for run in self.runs if run.ok]

    @property
    def status(self) -> str:
        """ok when any run is ok and none invalid, else the worst."""
        found = {run.status for run in self.runs}
        if INVALID not in found and OK in found:
            return OK
        return next((status for status in WORST_FIRST if status in found), CRASHED)

    @property
    def reason(self) -> str:
        return next((run.reason for run in self.runs if not run.ok), "")

    @property
    def counts(self) -> bool:
        """Whether other cells may be compared with this one."""
        return self.status == OK

    @property
    def middle_rate(self) -> float | None:
        """Samples/s: dataset size / median epoch seconds, since times are what a median may be taken of."""
        seconds = median([value for run in self.ok_runs if (value := run.epoch_seconds) is not None])
        size = next((value for run in self.ok_runs for value in run.values("epoch_samples")), None)
        if seconds and size:
            return finite(size / seconds)
        return median([value for run in self.ok_runs if (value := run.samples_per_second) is not None])

    def paired_rates(self, reference: "MeasuredCell") -> tuple[list[float], list[float]]:
        """Samples/s of both cells in the blocks where both are ok, in the order of the blocks."""
        own = {run.pair: run.samples_per_second or 0.0 for run in self.ok_runs}
        other = {run.pair: run.samples_per_second or 0.0 for run in reference.ok_runs}
        blocks = sorted(own.keys() & other.keys())
        return [own[block] for block in blocks], [other[block] for block in blocks]

    @property
    def batch_per_part(self) -> int | None:
        return next((value for run in self.runs for value in run.values("batch_per_part")), None)

    def fact(self, column: str) -> Any:
        """What its rows state of its strategy, such as `plain_twin`; None without a row."""
        return next((run.first(column) for run in self.runs), None)


def _records(runs: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """The rows as dictionaries of Python's own scalars, None for what is missing or not finite."""
    columns = [_plain(runs[name]) for name in runs.columns]
    names = [str(name) for name in runs.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _plain(column: "pd.Series[Any]") -> list[Any]:
    missing = column.isna().to_numpy(dtype=bool)
    if pd.api.types.is_float_dtype(column.dtype):
        missing = ~np.isfinite(column.to_numpy(dtype=float, na_value=math.nan))
    values = column.astype(object).tolist()
    return [None if gone else value for value, gone in zip(values, missing, strict=True)] if missing.any() else values


def make_run(rows: list[dict[str, Any]]) -> MeasuredRun:
    """The rows of one run_id, one an epoch, as a run."""
    rows.sort(key=lambda row: sort_key([row.get("epoch"), row.get("timed_seconds")]))
    status = min((row["status"] for row in rows), key=lambda s: WORST_FIRST.index(s) if s in WORST_FIRST else 0)
    reason = next((row["reason"] for row in rows if row["status"] == status and row.get("reason")), "")
    run = MeasuredRun(tuple(rows), status, reason)
    if run.ok and run.samples_per_second is None:
        return replace(
            run, status=INVALID, overruled=True, reason="the run is ok but has no timed_samples or timed_seconds"
        )
    return run


def collect_cells(runs: pd.DataFrame, *, roles: Collection[str] = (MEASURE, CONTROL)) -> list[MeasuredCell]:
    """The cells of these roles in a frame of runs.csv, before the loss gate; sorted by their factors."""
    by_run: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    begun: dict[Any, str] = {}
    for row in _records(runs):
        campaign, start = row.get("campaign_id"), row.get("utc_start") or ""
        begun[campaign] = min(begun.get(campaign, start), start)
        if row["role"] in roles:
            by_run[(campaign, row["run_id"])].append(row)
    by_cell: dict[Key, list[MeasuredRun]] = defaultdict(list)
    for (campaign, _), rows in by_run.items():
        run = replace(make_run(rows), begun=begun[campaign])
        by_cell[tuple(run.first(name) for name in CELL_COLUMNS)].append(run)
    return [_make_cell(key, by_cell[key]) for key in sorted(by_cell, key=sort_key)]


def _make_cell(key: Key, runs: list[MeasuredRun]) -> MeasuredCell:
    blocks: dict[Key, list[MeasuredRun]] = defaultdict(list)
    for run in sorted(runs, key=_counting):
        blocks[run.block].append(run)
    latest: dict[Key, MeasuredRun] = {}
    for attempts in blocks.values():
        # Runs of equal attempt in several cohorts do not stand for each other: each is there for its own cohort.
        latest.update({run.pair: run for run in attempts if run.first("attempt") == attempts[-1].first("attempt")})
    kept = tuple(sorted(latest.values(), key=lambda run: run.moment))
    names = sorted(name for run in kept for name in run.values("device_name"))
    factors = dict(zip(CELL_COLUMNS, key, strict=True)) | {"device_name": names[0] if names else ""}
    return MeasuredCell(key, factors, kept, superseded=len(runs) - len(kept))


def _counting(run: MeasuredRun) -> Key:
    """Orders the attempts at one cell in one block: the last one counts. One that was measured counts before others."""
    return (run.status in MEASURED_STATUSES, sort_key([run.first("attempt")]), run.moment)


def judged_runs(runs: pd.DataFrame, baseline: Baseline) -> pd.DataFrame:
    """The rows of runs.csv that count, every role, with the status and reason that they were judged to have."""
    judged = {run.identity: run for cell in judged_cells(runs, baseline, roles=ROLES) for run in cell.runs}
    found = [judged.get(identity) for identity in zip(runs["campaign_id"], runs["run_id"], strict=True)]
    kept = runs[[run is not None for run in found]].copy()
    for column in ("status", "reason"):
        kept[column] = [
            getattr(run, column) if run.overruled else value
            for run, value in zip((run for run in found if run), kept[column], strict=True)
        ]
    return kept


def find_reference(
    cell: MeasuredCell, cells: Iterable[MeasuredCell], wanted: Callable[[MeasuredCell], bool]
) -> MeasuredCell | None:
    """The cell among those wanted that `cell` may be compared with, or None.

    Same setting; under strong scaling the same global batch, under weak scaling a reference whose global batch is
    this cell's batch per part. The cell's own scaling, precision and further factors are preferred, in the order that
    `bench.factors` gives them; another value is taken in the order of its vocabulary, such as fp32 first.
    """
    batch = cell["batch_global"] if cell["scaling"] == STRONG else cell.batch_per_part
    fitting = [
        other
        for other in cells
        if other.counts and same_setting(cell, other) and other["batch_global"] == batch and wanted(other)
    ]

    def preference(other: MeasuredCell) -> Key:
        differs = [(other[name] != cell[name], rank_in(BY_NAME[name], other[name])) for name in PREFERRED]
        return (*differs, sort_key(other.key))

    return min(fitting, key=preference, default=None)


def judged_cells(
    runs: pd.DataFrame, baseline: Baseline, *, roles: Collection[str] = (MEASURE, CONTROL)
) -> list[MeasuredCell]:
    """The cells of a frame as they are judged: a run whose loss left the baseline's band is invalid.

    The only judge of what counts: the summary, charts and report, `compare`, and the exit code of a campaign ask here.
    """
    cells = collect_cells(runs, roles=roles)
    return [_gated(cell, find_reference(cell, cells, baseline.matches)) for cell in cells]


def _gated(cell: MeasuredCell, reference: MeasuredCell | None) -> MeasuredCell:
    if reference is None or reference is cell or cell["scaling"] != STRONG:
        return cell
    # By work and then by block: looked up once for each run, whatever the number of blocks.
    same_work: dict[Key, dict[Key, MeasuredRun]] = defaultdict(dict)
    for run in reference.ok_runs:
        same_work[_work(run)].setdefault(run.pair, run)
    return replace(cell, runs=tuple(_gated_run(run, same_work.get(_work(run), {})) for run in cell.runs))


def _work(run: MeasuredRun) -> Key:
    """What two runs must share for their losses to be comparable, beside the factors of their cells."""
    return run.first("seed"), run.total("timed_steps")


def _gated_run(run: MeasuredRun, references: Mapping[Key, MeasuredRun]) -> MeasuredRun:
    """Judge an ok run by the reference's run of its block, or by the first other of the same work."""
    # One fixed batch over and over is other work than an epoch's, and the losses of two runs on it part too far.
    if not run.ok or run.first("same_work") is False or run.first("data_pipeline") == ONE_BATCH or not references:
        return run
    other = references.get(run.pair) or next(iter(references.values()))
    reason = loss_gate(
        run.first("loss_first"), run.last("loss_last"), other.first("loss_first"), other.last("loss_last")
    ) or work_gate(run.rows[0], other.rows[0])
    return replace(run, status=INVALID, reason=reason, overruled=True) if reason else run
