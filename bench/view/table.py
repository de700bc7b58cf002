"""The speedup table that ends a campaign, for a terminal and as JSON: the rows of summary.csv, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.factors import is_baseline_row
from bench.results.columns import SUMMARY_COLUMNS
from bench.results.csvfile import read_rows
from bench.results.folder import Campaign

Row = Mapping[str, Any]
Show = Callable[[Row], str]


def print_table(folder: Path, *, console: Console | None = None) -> None:
    """Draw the table of a campaign whose summary.csv is written."""
    console = console or Console()
    if not console.is_terminal:
        # A log has no width to fit; cut cells would be worse than long lines.
        console = Console(width=160, file=console.file)
    rows = read_rows(folder / "summary.csv", SUMMARY_COLUMNS)
    campaign = Campaign(folder)
    table = Table(
        title=Text(_title(campaign), "table.title"),
        caption=Text(_caption(rows, campaign), "table.caption"),
        caption_justify="left",
        title_justify="left",
    )
    columns = _columns(rows)
    for name, numeric, _ in columns:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        style = "" if row["status"] == "ok" else "dim"
        # Text and not str: reasons come from exceptions, and may hold what rich would take for markup or an emoji.
        table.add_row(*(Text(show(row)) for *_, show in columns), style=style)
    console.print(table)


def _columns(rows: Sequence[Row]) -> list[tuple[str, bool, Show]]:
    def varies(name: str) -> bool:
        return len({row[name] for row in rows if row[name]}) > 1

    def text_of(name: str) -> Show:
        return lambda row: str(row[name] or "")

    optional: list[tuple[str, bool, Show]] = [
        (title, False, text_of(name))
        for name, title in (
            ("scaling", "scaling"),
            ("precision", "precision"),
            ("memory_format", "layout"),
            ("compile", "compile"),
            ("data_pipeline", "pipeline"),
            ("variant", "variant"),
        )
        if varies(name)
    ]
    if varies("batch_global"):
        optional.append(("batch", True, lambda row: _number(row["batch_global"], "d")))
    accuracy = [("accuracy", True, lambda row: _number(row["test_accuracy"], ".1%"))]
    return [
        ("strategy", False, lambda row: row["strategy"] + (" (A/A)" if row["role"] == "control" else "")),
        ("devices", True, lambda row: str(row["devices"])),
        *optional,
        ("epoch s", True, lambda row: _figure(row["epoch_seconds"])),
        ("samples/s", True, lambda row: _figure(row["samples_per_second"])),
        ("speedup", True, _speedup),
        ("n", True, lambda row: _number(row["pairs"], "d")),
        ("efficiency", True, lambda row: _number(row["efficiency"], ".0%")),
        ("memory", True, _memory),
        *(accuracy if any(row["test_accuracy"] is not None for row in rows) else []),
        ("status", False, _status),
    ]


def _number(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _figure(value: float | None) -> str:
    """Four digits, and no powers of ten for a person to read: 0.08999, 501.4, 45,514."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _speedup(row: Row) -> str:
    if row["speedup"] is None:
        return ""
    text = f"{row['speedup']:.2f}x"
    if is_baseline_row(row):
        return f"{text} baseline"
    if row["speedup_low"] is None or row["speedup_high"] is None:
        return text
    return f"{text} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def _memory(row: Row) -> str:
    """Peak of the fullest GPU, or of all ranks' resident memory on CPU."""
    value = row["peak_memory_bytes"] or row["host_peak_rss_bytes"]
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _status(row: Row) -> str:
    return f"{row['status']}: {row['reason']}" if row["status"] != "ok" and row["reason"] else str(row["status"])


def _title(campaign: Campaign) -> str:
    first = campaign.run_rows[0]
    what = "epoch" if any(row["epoch_measured"] for row in campaign.run_rows) else "part of an epoch, scaled to one"
    return f"{first['workload']} on {first['dataset']}, {first['device_name']} ({first['device_kind']}), {what}"


def _caption(rows: Sequence[Row], campaign: Campaign) -> str:
    facts = campaign.facts
    lines = [str(facts.get("notice") or "")]
    baselines = sorted({row["baseline"] for row in rows if row["baseline"]})
    if baselines:
        lines.append(
            f"Speedup over {', '.join(baselines)}, paired by block, with its 95 % interval; n blocks. "
            "Efficiency is speedup / devices."
        )
    if all(row["speedup_low"] is None for row in rows):
        lines.append("One block has no spread, so there are no intervals: --blocks 5 gives them.")
    control = next((row for row in rows if row["role"] == "control" and row["speedup_low"] is not None), None)
    if control:
        lines.append(
            f"Noise floor: the same cell measured twice a block (A/A) differs by {control['speedup']:.3f}x "
            f"[{control['speedup_low']:.3f}, {control['speedup_high']:.3f}]."
        )
    memory = "peak of the fullest GPU" if campaign.run_rows[0]["device_kind"] == "cuda" else "host memory of all ranks"
    lines.append(f"Memory: {memory}. {facts.get('threads_per_device', '')} CPU thread(s) a device.")
    flagged = [f"{row['strategy']}@{row['devices']}: {row['flags']}" for row in rows if row["flags"]]
    lines += [f"Flag: {text}" for text in flagged]
    return "\n".join(line for line in lines if line)


def document(folder: Path, *, exit_code: int) -> str:
    """One line of JSON with all that the table shows."""
    rows = read_rows(folder / "summary.csv", SUMMARY_COLUMNS)
    facts = Campaign(folder).facts
    return json.dumps(
        {
            "folder": str(folder),
            "exit_code": exit_code,
            "notice": facts.get("notice", ""),
            "command": facts.get("command", ""),
            "cells": rows,
        }
    )
