"""What is refused before anything starts: names that are not known, options and batches that cannot work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.errors import UserError
from bench.factors import Baseline
from bench.plan.matrix import AUTO, Matrix
from bench.plan.planned import PlannedCell, shown
from bench.workloads import WorkloadEntry
from strategies import Registry, RegistryError, StrategyEntry


def find_strategy(name: str, registry: Registry, what: str = "") -> StrategyEntry:
    """The strategy's entry. Raises UserError unless there is one of that name."""
    try:
        return registry.find(name)
    except RegistryError as error:
        raise UserError(f"{what}{error}", keys=("baseline",) if what else ("strategies",)) from None


def check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise UserError for an option that the strategy does not have, or a value of another kind than its default."""
    for key, given in options.items():
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise UserError(f"strategy {name!r} has no option {key!r}; its options are: {known}", keys=("options",))
        kind, words = _kind_of(defaults[key])
        if given == []:
            raise UserError(
                f"option {key!r} of strategy {name!r} sweeps no value; give at least one", keys=("options",)
            )
        for value in given if isinstance(given, list) else [given]:
            wrong = isinstance(value, bool) and kind is not object and kind is not bool
            if not isinstance(value, kind) or wrong or (isinstance(value, float) and not math.isfinite(value)):
                raise UserError(
                    f"option {key!r} of strategy {name!r} takes {words}, not {shown(value)!r}", keys=("options",)
                )


def _kind_of(default: Any) -> tuple[Any, str]:
    if isinstance(default, bool):
        return bool, "true or false"
    if isinstance(default, (int, float)):
        return (int, float), "a number"
    return (str, "a text") if isinstance(default, str) else (object, "anything")


def check_cells(cells: Iterable[PlannedCell], matrix: Matrix, *, workload: WorkloadEntry, train_count: int) -> None:
    """Raise UserError for the first cell whose batch or steps do not fit; `train_count` is the training set's size."""
    for cell in cells:
        _check(cell, matrix, workload=workload, train_count=train_count)


def _check(cell: PlannedCell, matrix: Matrix, *, workload: WorkloadEntry, train_count: int) -> None:
    """Raise UserError where the batch does not fit the cell's parts, the model or the data."""
    plan = cell.plan
    if cell.status or plan is None:
        return
    batch, accumulate = cell["batch_global"], cell["accumulate"]
    pieces = plan.parts * accumulate
    if batch % pieces:
        raise UserError(
            f"{cell}: a global batch of {batch} does not divide into {plan.parts} part"
            + ("s" if plan.parts > 1 else "")
            + (f" x {accumulate} micro-batches" if accumulate > 1 else "")
            + f"; choose --batch as a multiple of {pieces}",
            keys=("batch", "devices", "accumulate"),
        )
    if workload.batch_norm and batch // pieces < 2:
        raise UserError(
            f"{cell}: {batch} samples / {pieces} = 1 per part and micro-batch, and the BatchNorm of "
            f"{workload.name} needs at least 2; choose a larger --batch",
            keys=("batch", "devices", "accumulate"),
        )
    full = train_count // batch
    if full < 1:
        raise UserError(
            f"{cell}: a global batch of {batch} exceeds the {train_count} training samples", keys=("batch",)
        )
    for option, steps in (("--steps", matrix.steps or 0), ("--warmup-steps", matrix.warmup_steps)):
        if steps > full:
            raise UserError(
                f"{cell}: {option} {steps} > {full} full batches of {batch} in an epoch of {train_count} samples; "
                f"use fewer, or {'--epochs for more training' if option == '--steps' else 'a smaller --batch'}",
                keys=(option.removeprefix("--").replace("-", "_"),),
            )


def check_times(matrix: Matrix) -> None:
    """Raise UserError where steps are left to the suite and it has nothing to choose them by."""
    if matrix.steps != AUTO:
        return
    if matrix.time_target is None:
        raise UserError("--steps auto follows from a time; give --time-target, such as 5m", keys=("steps",))
    if matrix.warmup_steps < 1:
        raise UserError(
            "--steps auto follows from the speed of warm-up; give --warmup-steps of at least 1, or a number of --steps",
            keys=("steps", "warmup_steps"),
        )


def check_baseline(baseline: str, registry: Registry) -> None:
    """Raise UserError unless this is NAME or NAME@DEVICES of a known strategy."""
    find_strategy(Baseline.parse(baseline).strategy, registry, "--baseline: ")
