"""A campaign in other tools' formats: pytest-benchmark, JSON, Markdown and LaTeX.

    bench export --format pytest-benchmark DIR > campaign.json && pytest-benchmark compare campaign.json

Everything is derived from runs.csv at the time of the export, as summary.csv is.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import UserError
from bench.factors import BREAKDOWN, CELL_COLUMNS, FACTOR_NAMES, OK, Baseline, varying
from bench.results.cells import MeasuredCell, judged_cells, judged_runs
from bench.results.columns import SCHEMA_VERSION
from bench.results.csvfile import Row
from bench.results.folder import Campaign, days
from bench.results.statistics import median
from bench.results.summary import campaign_summary, summary_rows
from bench.view.maintable import EXPORT, VARYING, main_table, markdown_lines

PYTEST_BENCHMARK_VERSION = "5.1.0"
"""The version of pytest-benchmark whose file format this is."""


def export(folder: Path, format: str) -> str:
    """The campaign in `folder` as text in one of `EXPORT_FORMATS`. Raises UserError for another format or folder."""
    if format not in _FORMATS:
        raise UserError(f"unknown format {format!r}; known are {', '.join(_FORMATS)}")
    return _FORMATS[format](folder)


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _json(folder: Path) -> str:
    """One document: the summary's rows and the environment they were measured in."""
    campaign = Campaign(folder)
    document = {
        "schema_version": SCHEMA_VERSION,
        "campaigns": sorted({row["campaign_id"] for row in campaign.run_rows}),
        "environment": campaign.environment,
        "cells": summary_rows(campaign_summary(folder)),
    }
    return _dump(document)


# -- pytest-benchmark -----------------------------------------------------------------------------------------------


def _pytest_benchmark(folder: Path) -> str:
    """One benchmark a cell with ok runs: its rounds are the runs, its values the seconds of one epoch."""
    campaign = Campaign(folder)
    spec = Baseline.parse(campaign.baseline_option)
    cells = [cell for cell in judged_cells(campaign.runs, spec) if cell.counts]
    names = [_benchmark_name(cell, cells) for cell in cells]
    benchmarks = [_benchmark(cell, name) for cell, name in zip(cells, names, strict=True)]
    rows = campaign.run_rows
    commits = sorted({row["git_commit"] for row in rows if row["git_commit"]})
    document = {
        "machine_info": _machine_info(campaign),
        "commit_info": {
            "id": commits[-1] if commits else "unknown",
            "time": None,
            "author_time": None,
            "dirty": any(row["git_dirty"] for row in rows),
            "project": "strategybench",
            "branch": "(unknown)",
        },
        "benchmarks": [benchmark for benchmark in benchmarks if benchmark["stats"]["data"]],
        "datetime": max((row["utc_start"] for row in rows), default=""),
        "version": PYTEST_BENCHMARK_VERSION,
    }
    if not document["benchmarks"]:
        raise UserError(f"{folder} holds no ok run to export")
    return _dump(document)


def _machine_info(campaign: Campaign) -> dict[str, Any]:
    """The keys that pytest-benchmark compares machines by, and the identity facts."""
    facts = dict(campaign.environment.get("identity") or {})
    devices = sorted({row["device_name"] for row in campaign.run_rows if row["device_name"]})
    return {
        "node": str(campaign.environment.get("environment_id", "")),
        "processor": ", ".join(devices),
        "machine": facts.get("architecture", ""),
        "python_version": facts.get("python", ""),
        "system": facts.get("operating_system", ""),
        "cpu": {"brand_raw": facts.get("cpu", ""), "count": facts.get("cores")},
        "identity": facts,
    }


def _benchmark_name(cell: MeasuredCell, cells: list[MeasuredCell]) -> str:
    """Strategy and devices, then every factor that the campaign varies, so that names are unique."""
    names = varying(cells, [name for name in CELL_COLUMNS if name not in ("strategy", "devices")])
    others = [str(cell[name]) for name in names if cell[name] not in (None, "")]
    return f"{cell['strategy']}[{'-'.join([str(cell['devices']), *others])}]"


def _benchmark(cell: MeasuredCell, name: str) -> dict[str, Any]:
    seconds = [value for run in cell.ok_runs if (value := run.epoch_seconds) is not None]
    params = {key: cell[key] for key in FACTOR_NAMES}
    return {
        "group": f"{cell['workload']} {cell['dataset']} {cell['scaling']}",
        "name": name,
        "fullname": f"{cell['workload']}::{name}",
        "params": params,
        "param": name[name.index("[") + 1 : -1],
        "extra_info": {"unit": "seconds of one epoch", "samples_per_second": cell.middle_rate},
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": 1,
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": _stats(seconds),
    }


def _stats(data: list[float]) -> dict[str, Any]:
    """The figures of pytest-benchmark's `Stats`, on its own definitions where quartiles are concerned."""
    if not data:
        return {"data": []}
    q1, q3 = (float(q) for q in np.quantile(data, (0.25, 0.75)))
    mean, deviation = float(np.mean(data)), float(np.std(data, ddof=1)) if len(data) > 1 else 0.0
    fences = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    far = sum(not fences[0] <= value <= fences[1] for value in data)
    apart = sum(abs(value - mean) > deviation for value in data)
    return {
        "min": min(data),
        "max": max(data),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": median(data),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": far,
        "stddev_outliers": apart,
        "outliers": f"{apart};{far}",
        "ld15iqr": min(value for value in data if value >= fences[0]),
        "hd15iqr": max(value for value in data if value <= fences[1]),
        "ops": 1 / mean,
        "total": math.fsum(data),
        "data": data,
        "iterations": 1,
    }


# -- tables ---------------------------------------------------------------------------------------------------------

EXPORT_COLUMNS = (
    "strategy",
    "devices",
    "scaling",
    "precision",
    "workload",
    "dataset",
    VARYING,
    "n",
    "epoch_seconds",
    "samples_per_second",
    "speedup_and_interval",
    "efficiency",
    "peak_memory",
    "test_accuracy",
    "status",
)


def _table(folder: Path) -> tuple[list[list[str]], str]:
    """Headings and rows, and the caption that goes with them."""
    rows = summary_rows(campaign_summary(folder))
    table = main_table(rows, EXPORT_COLUMNS, EXPORT)
    return [table.headings, *table.lines], _caption(Campaign(folder), rows)


def _caption(campaign: Campaign, rows: Sequence[Row]) -> str:
    """The witnesses of every figure: hardware, versions, what was run, the baseline and the date."""
    devices = ", ".join(sorted({row["device_name"] for row in campaign.run_rows if row["device_name"]}))
    torch = (campaign.environment.get("identity") or {}).get("torch")
    baselines = ", ".join(sorted({row["baseline"] for row in rows if row["baseline"]}))
    parts = [devices, f"torch {torch}" if torch else "", *_work(campaign)]
    parts += [f"speedup over {baselines}" if baselines else "", days(row["utc_start"] for row in campaign.run_rows)]
    return "; ".join(part for part in parts if part)


def _work(campaign: Campaign) -> list[str]:
    """The global batches of the runs that count, and how much of an epoch was run."""
    runs = judged_runs(campaign.runs, Baseline.parse(campaign.baseline_option))
    runs = runs[(runs["status"] == OK) & (runs["role"] != BREAKDOWN)]
    batches = sorted({int(batch) for batch in runs["batch_global"].dropna()})
    whole = frozenset(bool(measured) for measured in runs["epoch_measured"].fillna(value=False))
    extent = {frozenset({True}): "whole epochs", frozenset({False}): "part of an epoch, scaled to one"}
    return [
        f"global batch {', '.join(map(str, batches))}" if batches else "",
        extent.get(whole, "whole epochs, and parts scaled to one") if whole else "",
    ]


def _markdown(folder: Path) -> str:
    table, caption = _table(folder)
    return "\n".join([*markdown_lines(table), "", caption]) + "\n"


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _latex(folder: Path) -> str:
    """A table that needs no package beyond LaTeX itself."""
    table, caption = _table(folder)
    rows = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in table]
    alignment = "l" * max(len(table[0]), 1)
    return (
        "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\hline",
                *rows[:1],
                r"\hline",
                *rows[1:],
                r"\hline",
                r"\end{tabular}",
                rf"\caption{{{caption.translate(_LATEX)}}}",
                r"\end{table}",
            ]
        )
        + "\n"
    )


_FORMATS: dict[str, Callable[[Path], str]] = {
    "pytest-benchmark": _pytest_benchmark,
    "json": _json,
    "markdown": _markdown,
    "latex": _latex,
}
EXPORT_FORMATS = tuple(_FORMATS)
