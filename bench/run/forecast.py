"""What a campaign would measure, and how long it might take by the last one of this environment. It starts nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data import DATASETS
from bench.data.synthetic import TOY_TRAIN_COUNT
from bench.errors import UserError
from bench.factors import OK, cell_key
from bench.machine.host import memory_limit_bytes
from bench.machine.room import RESERVE_SHARE
from bench.plan.matrix import AUTO, TURNS_OFF, Matrix
from bench.plan.planned import PlannedCell
from bench.results.folder import read_runs
from bench.run.cohorts import works_between_turns
from bench.run.pace import START_PHASES, Speed, choose
from bench.run.resolve import Resolved


@dataclass(frozen=True)
class CellForecast:
    """One run of a cell. None for what is not known; `memory_bytes` is host memory of all ranks."""

    cell: PlannedCell
    steps: int | None
    seconds: float | None
    memory_bytes: int | None
    apart: str

    @property
    def known(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class Forecast:
    """A campaign: its cells, its blocks (None: by the stop rule), what it takes in all, and where that is known from.

    cohorts: in how many the runs that take turns would live side by side, by their memory; None where that is unknown.
    """

    cells: tuple[CellForecast, ...]
    blocks: int | None
    seconds: float | None
    cohorts: int | None
    source: Path | None
    pace: str


def last_campaign(root: Path, environment_id: str) -> tuple[Path, list[dict[str, Any]]] | None:
    """The newest results folder in `root` that was measured in this environment, and its rows."""
    found: list[tuple[str, Path, list[dict[str, Any]]]] = []
    for path in sorted(root.glob("*/runs.csv")):
        try:
            rows = [row for row in read_runs(path) if row["environment_id"] == environment_id]
        except UserError:
            # Whatever it is, it is nothing to tell from.
            continue
        if rows:
            found.append((max(row["utc_start"] or "" for row in rows), path.parent, rows))
    if not found:
        return None
    _, folder, rows = max(found, key=lambda item: item[:2])
    return folder, rows


def forecast(resolved: Resolved, *, environment_id: str, root: Path) -> Forecast:
    """What this request would measure. What is not known from the last campaign of this environment stays unknown."""
    matrix = resolved.matrix
    last = last_campaign(root, environment_id)
    rows = _by_cell(last[1]) if last else {}
    cells = [cell for cell in resolved.cells if not cell.status]
    speeds = {cell.key: _speed(rows.get(cell.key, ())) for cell in cells}
    chosen, blocks, pace = _pace(matrix, [speeds[cell.key] for cell in cells])
    kind = resolved.workload.data_kind
    train_count = DATASETS[kind].train_count if kind in DATASETS else TOY_TRAIN_COUNT
    found = tuple(
        _of_cell(cell, rows.get(cell.key, ()), speeds.get(cell.key), _steps(chosen, cell, train_count), matrix)
        for cell in resolved.cells
    )
    each = [one.seconds for one in found if not one.cell.status]
    block = sum(seconds or 0.0 for seconds in each) if each and None not in each else None
    return Forecast(
        cells=found,
        blocks=blocks,
        seconds=block * blocks if block is not None and blocks is not None else None,
        cohorts=_cohorts([one for one in found if not one.cell.status and not one.apart]),
        source=last[0] if last else None,
        pace=pace,
    )


def _by_cell(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == OK and row["epoch"] == 1 and row["timed_steps"]:
            found.setdefault(cell_key(row), []).append(row)
    return found


def _speed(rows: Sequence[Mapping[str, Any]]) -> Speed | None:
    if not rows:
        return None
    starts = [sum(row[name] or 0.0 for name in START_PHASES) for row in rows]
    return Speed(
        statistics.median(starts), statistics.median(row["timed_seconds"] / row["timed_steps"] for row in rows)
    )


def _pace(matrix: Matrix, speeds: Sequence[Speed | None]) -> tuple[int | None, int | None, str]:
    """Steps (0: not known yet, None: an epoch), blocks (None: by the stop rule), and what is to be said of them."""
    blocks = matrix.blocks or None
    known = [speed for speed in speeds if speed is not None]
    if matrix.time_target is None or (matrix.steps != AUTO and matrix.blocks):
        return matrix.steps, blocks, ""
    if not known or len(known) < len(speeds):
        return matrix.steps, blocks, "steps and blocks are chosen once warm-up has shown the speed of all runs"
    pace = choose(
        known, runs=len(speeds), target=matrix.time_target, blocks=matrix.blocks, max_blocks=matrix.max_blocks
    )
    if matrix.steps == AUTO:
        return pace.steps, pace.blocks, pace.message
    return matrix.steps, blocks, "as many blocks as fit the time target"


def _steps(chosen: int | None, cell: PlannedCell, train_count: int) -> int | None:
    """Timed steps of a run of this cell; None where they are not chosen yet, or it has no run."""
    if cell.status or chosen == AUTO:
        return None
    full = train_count // cell["batch_global"]
    return full if chosen is None else min(chosen, full)


def _of_cell(
    cell: PlannedCell, rows: Sequence[Mapping[str, Any]], speed: Speed | None, steps: int | None, matrix: Matrix
) -> CellForecast:
    memory = [row["host_memory_bytes"] or row["host_peak_rss_bytes"] for row in rows]
    after = statistics.median(row["eval_seconds"] or 0.0 for row in rows) if rows else 0.0
    seconds = None
    if speed is not None and steps is not None:
        seconds = speed.start_seconds + matrix.epochs * (steps * speed.step_seconds + after)
    apart = "turns are off" if matrix.turns == TURNS_OFF else ""
    if not apart and not cell.status:
        apart = works_between_turns(cell, loader_workers=matrix.loader_workers)
    return CellForecast(cell, steps, seconds, max((value for value in memory if value), default=None), apart)


def _cohorts(found: Sequence[CellForecast]) -> int | None:
    """How many cohorts these runs form on this host by the memory they took; None where one is unknown."""
    if not found or any(one.memory_bytes is None for one in found):
        return None
    most = memory_limit_bytes() * (1 - RESERVE_SHARE)
    count, taken = 1, 0.0
    for one in found:
        if taken and taken + (one.memory_bytes or 0) > most:
            count, taken = count + 1, 0.0
        taken += one.memory_bytes or 0
    return count
