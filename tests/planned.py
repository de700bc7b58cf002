"""Planned cells for tests, with every factor at what goes without saying unless it is given."""

from __future__ import annotations

from typing import Any

from bench.factors import CELL_FACTORS
from bench.plan.planned import PlannedCell, variant_of
from bench.wire import CellSpec
from strategies.places import Place, data_parallel

FACTS = ("uses_process_group", "same_work", "plain_twin", "tuned_twin", "status", "reason", "warnings")


def planned(
    strategy: str = "ddp",
    devices: int = 2,
    *,
    places: tuple[Place, ...] | None = None,
    options: dict[str, Any] | None = None,
    **values: Any,
) -> PlannedCell:
    """A cell of data-parallel ranks, one a device; `values` are factors, or facts of the cell such as its status."""
    facts = {name: values.pop(name) for name in FACTS if name in values}
    point = {factor.name: "" if factor.default is None else factor.default for factor in CELL_FACTORS}
    point |= {"strategy": strategy, "devices": devices, "precision": "fp32", "batch_global": 16}
    point |= {"variant": variant_of(options or {}), **values}
    return PlannedCell(
        CellSpec(point, options or {}, data_parallel(devices).places if places is None else places), **facts
    )
