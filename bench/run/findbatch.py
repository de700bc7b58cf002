"""The largest batch per part that fits: a search of its own, reported try by try, that changes nothing else.

Doubling from the cell's own batch until a try runs out of memory or the training set is too small, then halving the
gap. Each try is one step in fresh processes, since memory that a failed try held is only surely free after its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.plan.planned import PlannedCell
from bench.results.columns import Column
from bench.run.launch import Outcome
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
