"""The largest batch per part that fits: a search of its own, reported try by try, that changes nothing else.

Doubling from the cell's own batch until a try runs out of memory or the training set is too small, then halving the
gap. Each try is one step in fresh processes, since memory that a failed try held is only surely free after its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.factors import MEASURE
from bench.plan.planned import PlannedCell
from bench.results.columns import Column
from bench.results.csvfile import write_rows
from bench.run.attempt import tidy
from bench.run.interrupts import interruptible
from bench.run.job import Job, run_id
from bench.run.launch import Outcome, launch
from bench.run.node import LocalNode
from bench.run.reporter import Reporter
from bench.run.store import Store
from bench.run.verdict import SIGKILL

SEARCH_COLUMNS = (
    Column("strategy", "str", "", "registry name"),
    Column("devices", "int", "devices", "as in runs.csv"),
    Column("precision", "str", "", "as in runs.csv"),
    Column("batch_per_part", "int", "samples", "what was tried"),
    Column("batch_global", "int", "samples", "the same over all parts"),
    Column("status", "str", "", "ok, oom, crashed with SIGKILL (counts as oom), or why the search ended"),
    Column("reason", "str", "", "of a try that is not ok"),
    Column("largest", "bool", "", "true for the largest batch that fits"),
)

TryBatch = Callable[[int], Outcome]


@dataclass(frozen=True)
class Search:
    """What was tried, in order, and the largest batch per part that fit (None: none did)."""

    tries: tuple[tuple[int, Outcome], ...]
    largest: int | None
    bounded_by: str


def search(try_batch: TryBatch, *, start: int, limit: int, multiple: int = 1) -> Search:
    """Find the largest multiple of `multiple` up to `limit` whose try is ok, to within 1/16 of it.

    `try_batch` gets a batch per part. A try that fails for another reason than memory ends the search. A rank ended
    by SIGKILL counts as memory, since on the CPU the kernel ends a process so instead of refusing it memory.
    """
    tries: list[tuple[int, Outcome]] = []

    def fits(batch: int) -> bool | None:
        outcome = try_batch(batch)
        tries.append((batch, outcome))
        return True if outcome.status == "ok" else False if outcome.status == "oom" or _killed(outcome) else None

    top = limit // multiple * multiple
    good, bad = 0, top + multiple
    batch = min(max(multiple, start // multiple * multiple), top)
    while batch and bad - good > max(multiple, good // 16):
        result = fits(batch)
        if result is None:
            return Search(tuple(tries), good or None, "a try failed for another reason than memory")
        if result:
            good = batch
        else:
            bad = batch
        doubled = good * 2 if bad > top else (good + bad) // 2
        batch = min(doubled // multiple * multiple, top)
        if batch in (good, bad):
            break
    killed = any(_killed(outcome) for _, outcome in tries)
    memory = f"memory{' (a rank ended by SIGKILL counts as out of memory)' if killed else ''}"
    return Search(tuple(tries), good or None, "the size of the training set" if good == top else memory)


def _killed(outcome: Outcome) -> bool:
    return outcome.status == "crashed" and outcome.exit_code == -SIGKILL


def search_rows(cell: PlannedCell, found: Search) -> list[dict[str, object]]:
    """The rows of batch_search.csv for one cell."""
    assert cell.plan is not None
    return [
        {
            "strategy": cell["strategy"],
            "devices": cell["devices"],
            "precision": cell["precision"],
            "batch_per_part": batch,
            "batch_global": batch * cell.plan.parts,
            "status": outcome.status,
            "reason": outcome.reason,
            "largest": batch == found.largest,
        }
        for batch, outcome in found.tries
    ]


def find_batches(job: Job, store: Store, reporter: Reporter) -> list[str]:
    """Search each cell's largest batch per part, write batch_search.csv, and say what was found, a line a cell."""
    lines, rows = [], []
    with interruptible(), LocalNode() as node:
        lines += [f"{cell}: {cell.status}: {cell.reason}" for cell in job.cells if cell.status]
        cells = [cell for cell in job.cells if not cell.status and cell["role"] == MEASURE]
        reporter.plan(len(cells))
        for cell in cells:
            reporter.begin(str(cell), 0, 1)
            found = _find_batch(job, store, node, cell)
            rows += search_rows(cell, found)
            result = f"{found.largest or 'no'} samples per part, bounded by {found.bounded_by}"
            lines.append(f"{cell}: {result}")
            reporter.end(str(cell), result)
            write_rows(store.folder / "batch_search.csv", SEARCH_COLUMNS, rows)
    return lines


def _find_batch(job: Job, store: Store, node: LocalNode, cell: PlannedCell) -> Search:
    plan = cell.spec.plan

    def attempt(batch: int) -> Outcome:
        tried = cell.changed(batch_global=batch * plan.parts)
        name = f"find-{run_id(tried, 0, 1)}"
        folder = (store.folder / "logs" / name).resolve()
        # Two epochs of one step: the second has the optimizer's state and the activations alive together.
        spec = replace(
            job.run_spec(tried, name, folder=folder, count_flops=False),
            steps=1,
            warmup_steps=1,
            epochs=2,
            whole_epoch=False,
            checkpoint="",
            probe=False,
        )
        try:
            return launch(spec, node=node, on_start=partial(store.note_running, name))
        finally:
            store.note_ended(name)
            tidy(store, Path(spec.folder))

    limit = job.facts.data.train_count // plan.parts
    return search(attempt, start=cell.spec.batch_per_part, limit=limit, multiple=cell["accumulate"])
