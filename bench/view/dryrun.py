"""What `bench run --dry-run` shows: cells, steps, and what is known of their time and memory."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.run.forecast import CellForecast, Forecast
from bench.run.reporter import duration

UNKNOWN = "unknown"


def print_forecast(found: Forecast, *, root: Path, console: Console | None = None) -> None:
    """A line for each cell to be measured, then what holds for all. `root` is where campaigns were looked for."""
    console = console or Console()
    table = Table("cell", "ranks", "batch", "steps", "a run", "memory", "note")
    for name in ("ranks", "batch", "steps", "a run", "memory"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for one in found.cells:
        if not one.cell.status:
            table.add_row(*_cells(one))
    console.print(table)
    for line in lines(found, root=root):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _cells(one: CellForecast) -> tuple[str, ...]:
    cell, plan = one.cell, one.cell.plan
    return (
        str(cell),
        str(plan.processes if plan else ""),
        f"{cell['batch_global']:,}",
        UNKNOWN if one.steps is None else f"{one.steps:,}",
        UNKNOWN if one.seconds is None else duration(one.seconds),
        UNKNOWN if one.memory_bytes is None else f"{one.memory_bytes / 2**30:.2f} GiB",
        f"no turns: {one.apart}" if one.apart else "",
    )


def lines(found: Forecast, *, root: Path) -> list[str]:
    """What is said below the table."""
    runs = sum(not one.cell.status for one in found.cells)
    blocks = "blocks by the stop rule" if found.blocks is None else f"{found.blocks} block(s)"
    whole = UNKNOWN if found.seconds is None else f"about {duration(found.seconds)}"
    told = [f"{one.cell}: {one.cell.status}: {one.cell.reason}" for one in found.cells if one.cell.status]
    told += [f"{runs} runs a block, {blocks}; in all: {whole}"]
    if found.pace:
        told.append(found.pace)
    if found.cohorts is not None:
        told.append(f"runs that take turns live side by side in {found.cohorts} cohort(s), by their memory")
    told.append(
        f"times and memory by the last campaign of this environment, {found.source}"
        if found.source
        else f"no campaign of this environment in {root}, so times and memory are unknown"
    )
    return [*told, "nothing was started (--dry-run)"]


def document(found: Forecast) -> str:
    """The same as one line of JSON; null for what is unknown. Times in seconds."""
    cells = [
        {
            "cell": str(one.cell),
            "status": one.cell.status or "planned",
            "reason": one.cell.reason,
            "processes": one.cell.plan.processes if one.cell.plan else None,
            "batch_global": one.cell["batch_global"],
            "steps": one.steps,
            "run_seconds": one.seconds,
            "memory_bytes": one.memory_bytes,
            "no_turns": one.apart,
        }
        for one in found.cells
    ]
    return json.dumps(
        {
            "cells": cells,
            "blocks": found.blocks,
            "seconds": found.seconds,
            "cohorts": found.cohorts,
            "source": str(found.source) if found.source else None,
        }
    )
