"""One point of the matrix, planned: its value for every factor, where its ranks stand, or why it has no run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.factors import cell_key, cell_name
from bench.wire import CellSpec
from strategies.places import Plan


@dataclass(frozen=True)
class PlannedCell:
    """One point of the matrix: `cell["devices"]` is its value for a factor, `spec` what its ranks are told.

    `status` is "" for a cell to be measured, else what stands in its row, with `reason`. `same_work`, `plain_twin` and
    `tuned_twin` are facts of the strategy, as in runs.csv.
    """

    spec: CellSpec
    uses_process_group: bool = False
    same_work: bool = True
    plain_twin: str = ""
    tuned_twin: str = ""
    status: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.spec[name]

    def changed(self, **values: Any) -> PlannedCell:
        """The same cell with other values of some factors."""
        return replace(self, spec=replace(self.spec, values={**self.spec.values, **values}))

    @property
    def plan(self) -> Plan | None:
        """Where each rank stands, None for a cell that could not be planned."""
        return self.spec.plan if self.spec.places else None

    @property
    def batch_per_part(self) -> int | None:
        return self.spec.batch_per_part if self.spec.places else None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this cell from all others of the matrix."""
        return cell_key(self)

    def __str__(self) -> str:
        return cell_name(self)


def variant_of(options: Mapping[str, Any]) -> str:
    """Options that differ from a strategy's defaults, as the column `variant` has them."""
    return ";".join(f"{name}={shown(value)}" for name, value in options.items())


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
