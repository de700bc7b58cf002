"""The race in a running campaign: which cells of a block are still to be measured, read from the rows so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.factors import MEASURE, cell_key, cell_name
from bench.plan.matrix import Matrix
from bench.plan.planned import PlannedCell
from bench.results.columns import RUN_COLUMNS
from bench.results.folder import frame

CellKey = tuple[Any, ...]


def out_of_race(matrix: Matrix, rows: Sequence[Mapping[str, Any]]) -> dict[CellKey, str]:
    """The cells that get no further blocks, by `PlannedCell.key`, each with a line for who waits. {} without a race.

    It depends on nothing but the rows, so that a campaign that is resumed goes on with the same cells.
    """
    if not matrix.race or not rows:
        return {}
    from bench.results.speedups import judged_by, race

    judged = judged_by(frame(list(rows), RUN_COLUMNS), matrix.baseline)
    cells = {item.cell.key: item.cell for item in judged}
    return {
        cell_key(cells[key]): f"{cell_name(cells[key])} is out of the race after {why.after_blocks} blocks: "
        f"{cell_name(cells[why.beaten_by])} had {why.ratio:.2f} times its speedup"
        for key, why in race(judged).items()
    }


def still_racing(order: Sequence[PlannedCell], out: Mapping[CellKey, str]) -> list[PlannedCell]:
    """A block without the cells that are out, and without their breakdown runs."""
    return [cell for cell in order if cell.changed(role=MEASURE).key not in out]
