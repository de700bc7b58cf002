"""The speedup table that ends a campaign, for a terminal and as JSON: the rows of summary.csv, nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.factors import CONTROL, OK
from bench.results.columns import SUMMARY_COLUMNS
from bench.results.csvfile import Row, read_rows
from bench.results.folder import Campaign
from bench.results.recommend import times
from bench.view.maintable import TERMINAL, VARYING, main_table

TERMINAL_COLUMNS = (
    "strategy",
    "devices",
    VARYING,
    "epoch_seconds",
    "samples_per_second",
    "speedup_and_interval",
    "n",
    "efficiency",
    "memory",
    "test_accuracy",
    "outcome",
)


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
    shown = main_table(rows, TERMINAL_COLUMNS, TERMINAL)
    for column in shown.columns:
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        table.add_column(column.heading, justify=justify, no_wrap=column.numeric, overflow="fold")
    for row, line in zip(rows, shown.lines, strict=True):
        # Text and not str: reasons come from exceptions, and may hold what rich would take for markup or an emoji.
        table.add_row(*map(Text, line), style="" if row["status"] == OK else "dim")
    console.print(table)


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
    control = next((row for row in rows if row["role"] == CONTROL and row["speedup_low"] is not None), None)
    if control:
        lines.append(
            f"Noise floor: the same cell measured twice a block (A/A) differs by {times(control, decimals=3)}."
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
