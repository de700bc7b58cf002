"""summary.csv: what a campaign says about each cell, derived from runs.csv alone and reproducible byte for byte.

The unit is the run. Speedups are paired by block and carry a t interval; the A/A control's interval is the noise
floor they are read against. A cell with an invalid run is shown with its reason and never ranked.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import UserError
from bench.factors import (
    CONTROL,
    FAILED_STATUSES,
    MEASURE,
    Baseline,
    baseline_name,
    cell_name,
    same_setting,
)
from bench.results.cells import (
    Key,
    MeasuredCell,
    MeasuredRun,
    finite,
    judged_cells,
    sort_key,
)
from bench.results.columns import SUMMARY_COLUMNS
from bench.results.csvfile import write_rows
from bench.results.flags import Flag, campaign_drift, cell_flags, flagged
from bench.results.folder import Campaign, frame
from bench.results.race import Out
from bench.results.ratios import compile_pays, costs, gains, is_cost_opponent
from bench.results.speedups import Judged, judge_all, judged_by, race
from bench.results.stalls import stalled_runs
from bench.results.statistics import holm, median


def summarise(
    runs: pd.DataFrame, *, baseline: str | None = None, stop_reason: str = "", raced_over: str | None = None
) -> pd.DataFrame:
    """One row a cell, with the columns of SUMMARY_COLUMNS; independent of the order of `runs`.

    `runs` is `Campaign.runs`, or several of them concatenated: blocks of equal `environment_id` are pooled and
    machines are kept apart. `baseline` is NAME[@DEVICES], by default single@1. A baseline that was not measured
    leaves the speedups blank. `raced_over`: the baseline, "" for the usual one, of the one campaign that these runs are
    of, where it was measured with --race; each cell then says whether it was out. Raises UserError for a baseline of
    another form.
    """
    spec = Baseline.parse(baseline)
    cells = judged_cells(runs, spec)
    judged = judge_all(cells, spec)
    out = {} if raced_over is None else race(judged_by(runs, raced_over))
    adjusted = holm([_family_p(item) for item in judged])
    by_comparison = (_drifts(cells, spec), stalled_runs(judged), _out_of_race(cells, out))
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
            "out_of_race_after": out[item.cell.key].after_blocks if item.cell.key in out else None,
            **_flags(item, by_comparison),
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
        raced_over=campaign.raced_over,
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


def _out_of_race(cells: Sequence[MeasuredCell], out: Mapping[Key, Out]) -> dict[Key, Flag]:
    names = {cell.key: cell_name(cell) for cell in cells}
    return {
        key: flagged(
            "out_of_race",
            f"after {why.after_blocks} blocks {names[why.beaten_by]} had {why.ratio:.2f} times its speedup "
            f"(p = {why.p:.1g}, with {why.level:.1g} to stay under)",
        )
        for key, why in out.items()
    }


def _flags(item: Judged, by_comparison: Iterable[Mapping[Key, Flag]]) -> dict[str, str]:
    """Those of the cell itself, and those of each kind that only other cells can tell of it."""
    flags = cell_flags(item.cell, interval=item.interval)
    flags += [found[item.cell.key] for found in by_comparison if item.cell.key in found]
    return {"flags": " | ".join(flag.text for flag in flags), "flag_keys": " | ".join(flag.key for flag in flags)}


def _place(cell: MeasuredCell, spec: Baseline) -> Key:
    """Scaling, work, the baseline, its control, then strategies by name, precision, devices and the rest."""
    rank = 0 if spec.matches(cell) else 1 if cell["role"] == CONTROL else 2
    names = ("scaling", "workload", "dataset")
    own = [cell[name] for name in ("strategy", "precision", "devices")]
    return sort_key([*(cell[name] for name in names), rank, *own, *cell.key])
