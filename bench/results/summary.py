"""summary.csv: what a campaign says about each cell, derived from runs.csv alone and reproducible byte for byte.

The unit is the run. Speedups are paired by block and carry a t interval; the A/A control's interval is the noise
floor they are read against. A cell with an invalid run is shown with its reason and never ranked.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import UserError
from bench.factors import (
    CONTROL,
    FACTOR_NAMES,
    FAILED_STATUSES,
    MEASURE,
    OK,
    Baseline,
    baseline_name,
    same_setting,
)
from bench.results.cells import (
    Key,
    MeasuredCell,
    MeasuredRun,
    find_reference,
    finite,
    judged_cells,
    sort_key,
)
from bench.results.columns import SUMMARY_COLUMNS
from bench.results.csvfile import write_rows
from bench.results.flags import Flag, campaign_drift, cell_flags
from bench.results.folder import Campaign, frame
from bench.results.ratios import compile_pays, costs, gains, is_cost_opponent
from bench.results.statistics import Interval, holm, median, paired_log_ratio


@dataclass(frozen=True)
class Judged:
    """A cell beside its baseline and what the pair of them says; both None where there is no baseline."""

    cell: MeasuredCell
    reference: MeasuredCell | None
    interval: Interval | None

    @property
    def is_baseline(self) -> bool:
        return self.reference is self.cell


def summarise(runs: pd.DataFrame, *, baseline: str | None = None, stop_reason: str = "") -> pd.DataFrame:
    """One row a cell, with the columns of SUMMARY_COLUMNS; independent of the order of `runs`.

    `runs` is `Campaign.runs`, or several of them concatenated: blocks of equal `environment_id` are pooled and
    machines are kept apart. `baseline` is NAME[@DEVICES], by default single@1. A baseline that was not measured
    leaves the speedups blank. Raises UserError for a baseline of another form.
    """
    spec = Baseline.parse(baseline)
    cells = judged_cells(runs, spec)
    judged = [_judge(cell, cells, spec) for cell in cells]
    adjusted = holm([_family_p(item) for item in judged])
    drifts = _drifts(cells, spec)
    cost = costs(cells)
    rows = {
        item.cell.key: {
            **item.cell.factors,
            **_counts(item.cell),
            **_figures(item.cell),
            **_speedup(item, adjusted_p=p),
            **gains(item.cell, item.reference, cells),
            "compile_pays_after_epochs": compile_pays(item.cell, cells),
            "cost_devices": cost.get(item.cell.key, ""),
            "cost_opponent": is_cost_opponent(item.cell),
            "status": item.cell.status,
            "reason": item.cell.reason,
            **_flags(item, drifts),
            "stop_reason": stop_reason,
        }
        for item, p in zip(judged, adjusted, strict=True)
    }
    order = sorted(cells, key=lambda cell: _place(cell, spec))
    return frame([rows[cell.key] for cell in order], SUMMARY_COLUMNS)


def campaign_summary(folder: Path, *, baseline: str | None = None, stop_reason: str = "") -> pd.DataFrame:
    """The summary of a results folder. What is not given is read from matrix.toml and stop.json, where they are."""
    campaign = Campaign(folder)
    return summarise(
        campaign.runs,
        baseline=baseline or campaign.baseline_option,
        stop_reason=stop_reason or _read_stop_reason(folder),
    )


def write_summary(folder: Path, *, baseline: str | None = None, stop_reason: str = "") -> pd.DataFrame:
    """Derive summary.csv from runs.csv and write it. Raises UserError where the folder is not a campaign's."""
    summary = campaign_summary(folder, baseline=baseline, stop_reason=stop_reason)
    write_rows(folder / "summary.csv", SUMMARY_COLUMNS, summary_rows(summary))
    return summary


def summary_rows(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a summary as dictionaries, None where there is no value."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in record.items()}
        for record in summary.to_dict("records")
    ]


def check_baseline_was_run(runs: pd.DataFrame, baseline: str) -> None:
    """Raise UserError, naming what there is, where no row of `runs` has the strategy and devices of `baseline`."""
    spec = Baseline.parse(baseline)
    there = sorted(set(zip(runs["strategy"], (int(devices) for devices in runs["devices"]), strict=True)))
    if (spec.strategy, spec.devices) not in there:
        known = ", ".join(f"{strategy}@{devices}" for strategy, devices in there)
        raise UserError(f"no run has the baseline {spec}; there are {known or 'no runs'}")


def _read_stop_reason(folder: Path) -> str:
    path = folder / "stop.json"
    if not path.is_file():
        return ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["stop_reason"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f'{path} is not {{"stop_reason": "..."}}; delete it if the reason does not matter') from None


# -- figures of one cell --------------------------------------------------------------------------------------------


def _counts(cell: MeasuredCell) -> dict[str, Any]:
    return {
        "runs_ok": len(cell.ok_runs),
        "runs_failed": sum(run.status in FAILED_STATUSES for run in cell.runs),
    }


def _collect(runs: Iterable[MeasuredRun], value: Callable[[MeasuredRun], float | None]) -> list[float]:
    found = (value(run) for run in runs)
    return [number for number in found if number is not None]


def _flops_per_second(run: MeasuredRun) -> float | None:
    flops, rate = run.first("flops_per_sample"), run.samples_per_second
    return finite(flops * rate) if flops and rate else None


def _figures(cell: MeasuredCell) -> dict[str, Any]:
    """Medians, and the extremes of memory, over the ok runs; None where no run has a value."""
    runs = cell.ok_runs
    rate = cell.middle_rate
    memory_max = [value for run in runs for value in run.values("peak_memory_bytes_max")]
    memory_min = [value for run in runs for value in run.values("peak_memory_bytes_min")]
    resident = [value for run in runs for value in run.values("host_peak_rss_bytes")]
    return {
        "epoch_seconds": median(_collect(runs, lambda run: run.epoch_seconds)),
        "samples_per_second": rate,
        "samples_per_second_per_device": rate / cell["devices"] if rate and cell["devices"] else None,
        "step_seconds_cov": median(_collect(runs, lambda run: median(run.values("step_seconds_cov")))),
        "flops_per_sample": median(_collect(runs, lambda run: run.first("flops_per_sample"))),
        "achieved_flops_per_second": median(_collect(runs, _flops_per_second)),
        "peak_memory_bytes": max(memory_max, default=None),
        "peak_memory_bytes_min": min(memory_min, default=None),
        "host_peak_rss_bytes": max(resident, default=None),
        "test_accuracy": median(_collect(runs, lambda run: run.last("test_accuracy"))),
    }


# -- pairs of cells -------------------------------------------------------------------------------------------------


def _compare(cell: MeasuredCell, reference: MeasuredCell | None) -> Interval | None:
    if reference is None or cell.status != OK:
        return None
    own, other = cell.paired_rates(reference)
    return paired_log_ratio(own, other) if own else None


def _judge(cell: MeasuredCell, cells: Sequence[MeasuredCell], spec: Baseline) -> Judged:
    reference = cell if spec.matches(cell) and cell.counts else find_reference(cell, cells, spec.matches)
    return Judged(cell, reference, _compare(cell, reference))


def _family_p(item: Judged) -> float | None:
    """The p of a cell that is judged: neither the baseline itself nor its control."""
    if item.is_baseline or item.cell["role"] != MEASURE or item.interval is None:
        return None
    return item.interval.p


def _speedup(item: Judged, *, adjusted_p: float | None) -> dict[str, Any]:
    name = ""
    if item.reference is not None:
        name = baseline_name(item.reference)
    interval = item.interval
    if interval is None:
        return {"baseline": name, "pairs": 0} | dict.fromkeys(
            ("speedup", "speedup_low", "speedup_high", "efficiency", "p_value", "p_value_holm")
        )
    return {
        "baseline": name,
        "pairs": interval.n,
        "speedup": interval.ratio,
        "speedup_low": interval.low,
        "speedup_high": interval.high,
        "efficiency": interval.ratio / item.cell["devices"],
        "p_value": None if item.is_baseline else interval.p,
        "p_value_holm": adjusted_p,
    }


def pair_log_ratios(runs: pd.DataFrame, *, baseline: str | None = None) -> dict[str, list[float]]:
    """log(samples/s ÷ the baseline's) by block for each judged cell, by its name: what a stop rule predicts from."""
    spec = Baseline.parse(baseline)
    cells = judged_cells(runs, spec)
    ratios = {}
    for item in (_judge(cell, cells, spec) for cell in cells):
        if item.reference is None or item.is_baseline or item.cell["role"] != MEASURE or item.interval is None:
            continue
        own, other = item.cell.paired_rates(item.reference)
        factors = item.cell.factors
        name = " ".join(str(value) for value in map(factors.get, FACTOR_NAMES) if value)
        ratios[name] = [math.log(a / b) for a, b in zip(own, other, strict=True)]
    return ratios


# -- flags and order ------------------------------------------------------------------------------------------------


def _drifts(cells: Sequence[MeasuredCell], spec: Baseline) -> dict[Key, Flag]:
    """The drift of each machine and kind of work, on the row of its baseline, or on its first row without one."""
    groups: list[list[MeasuredCell]] = []
    for cell in cells:
        group = next((group for group in groups if same_setting(group[0], cell)), None)
        groups.append([cell]) if group is None else group.append(cell)
    found = {}
    for group in groups:
        flag = campaign_drift(group)
        if flag is not None:
            rows = [cell for cell in group if spec.matches(cell)] or [cell for cell in group if cell.ok_runs][:1]
            found.update({cell.key: flag for cell in rows})
    return found


def _flags(item: Judged, drifts: dict[Key, Flag]) -> dict[str, str]:
    flags = cell_flags(item.cell, interval=item.interval)
    flags += [drifts[item.cell.key]] if item.cell.key in drifts else []
    return {"flags": " | ".join(flag.text for flag in flags), "flag_keys": " | ".join(flag.key for flag in flags)}


def _place(cell: MeasuredCell, spec: Baseline) -> Key:
    """Scaling, work, the baseline, its control, then strategies by name, precision, devices and the rest."""
    rank = 0 if spec.matches(cell) else 1 if cell["role"] == CONTROL else 2
    names = ("scaling", "workload", "dataset")
    own = [cell[name] for name in ("strategy", "precision", "devices")]
    return sort_key([*(cell[name] for name in names), rank, *own, *cell.key])
