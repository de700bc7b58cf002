"""From a matrix to cells: each strategy is asked for its plan, and everything that cannot work is refused up front."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.machine.detect import Machine
from bench.plan.matrix import Group, Matrix, option_sets
from bench.workloads import WorkloadEntry
from strategies import Registry, RegistryError, output_held_back

if TYPE_CHECKING:
    from strategies.base import Plan, Strategy


@dataclass(frozen=True)
class PlannedCell:
    """One point of the matrix. `status` is "" for a cell to be measured, else what stands in its row, with `reason`."""

    strategy: str
    devices: int
    scaling: str
    precision: str
    memory_format: str
    compile: str
    options: tuple[tuple[str, Any], ...]
    accumulate: int
    data_pipeline: str = "resident"
    role: str = "measure"
    processes: int | None = None
    devices_per_process: int | None = None
    replicas: int | None = None
    batch_global: int | None = None
    batch_per_replica: int | None = None
    uses_process_group: bool = False
    same_work: bool = True
    status: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def variant(self) -> str:
        return ";".join(f"{name}={_shown(value)}" for name, value in self.options)

    @property
    def loss_is_judged(self) -> bool:
        """Whether its losses are held against the baseline's: on one fixed batch over and over they part too far."""
        return self.same_work and self.data_pipeline != "synthetic_device"

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this cell from all others of the matrix."""
        return (
            self.strategy,
            self.devices,
            self.scaling,
            self.precision,
            self.memory_format,
            self.compile,
            self.variant,
            self.role,
            self.batch_global,
            self.accumulate,
            self.data_pipeline,
        )

    def __str__(self) -> str:
        parts = [f"{self.strategy}@{self.devices}"]
        if self.precision:
            parts.append(self.precision)
        parts += [self.scaling] if self.scaling != "strong" else []
        parts += [self.variant] if self.variant else []
        parts += [self.data_pipeline] if self.data_pipeline != "resident" else []
        parts += [self.role] if self.role != "measure" else []
        return " ".join(parts)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_cells(
    matrix: Matrix, *, machine: Machine, registry: Registry, workload: WorkloadEntry, train_count: int
) -> list[PlannedCell]:
    """Every cell once, in the order of the matrix; the baseline's A/A twin and breakdown twins come last.

    `train_count` is the size of the training set. Raises UserError for what no strategy could run.
    """
    if not any(group.strategies for group in matrix.groups):
        raise UserError(f"matrix {matrix.name} names no strategy; give some with --strategies, such as single,ddp")
    if matrix.trace and not matrix.breakdown:
        raise UserError("--trace keeps the profiler's trace of breakdown runs, and there are none; add --breakdown")
    for name in matrix.options:
        _find(name, registry, "options for ")
    cells: dict[tuple[Any, ...], PlannedCell] = {}
    for group in matrix.groups:
        for name in group.strategies:
            with output_held_back():
                planned = _strategy_cells(name, group, matrix, machine=machine, registry=registry, workload=workload)
            for cell in planned:
                _check(cell, matrix, workload=workload, train_count=train_count)
                cells.setdefault(cell.key, cell)
    twins = [replace(cell, role="control") for cell in _baselines(cells.values(), matrix)] if matrix.control else []
    measured = [cell for cell in cells.values() if not cell.status]
    if matrix.breakdown:
        twins += [replace(cell, role="breakdown") for cell in measured]
    return [*cells.values(), *twins]


def device_counts(matrix: Matrix, machine: Machine, default: Sequence[int]) -> Matrix:
    """The matrix with `auto` device counts filled in."""
    groups = tuple(group if group.devices else replace(group, devices=tuple(default)) for group in matrix.groups)
    return replace(matrix, groups=groups)


def _strategy_cells(
    name: str, group: Group, matrix: Matrix, *, machine: Machine, registry: Registry, workload: WorkloadEntry
) -> list[PlannedCell]:
    _find(name, registry)
    blank = PlannedCell(name, 0, "strong", "", "", "", (), group.accumulate, group.data_pipeline)
    points = [(devices, scaling) for scaling in group.scaling for devices in group.devices]
    try:
        strategy = registry.load(name)()
        default_precision = strategy.default_precision[machine.device_kind]
    except RegistryError as error:
        return [replace(blank, devices=d, scaling=s, status="crashed", reason=str(error)) for d, s in points]
    except (Exception, SystemExit) as error:
        reason = f"it could not be made: {type(error).__name__}: {error}"
        return [replace(blank, devices=d, scaling=s, status="crashed", reason=reason) for d, s in points]
    options = matrix.options.get(name, {})
    _check_options(name, options, strategy.default_options)
    precisions = group.precision or (default_precision,)
    return [
        _plan_cell(
            strategy,
            replace(
                blank,
                devices=devices,
                scaling=scaling,
                precision=precision,
                memory_format=group.memory_format or strategy.default_memory_format,
                compile=group.compile or strategy.default_compile,
                options=tuple(pair for pair in chosen if pair[1] != strategy.default_options[pair[0]]),
            ),
            device_kind=machine.device_kind,
            batch=group.batch or workload.batch,
            input_shape=workload.input_shape,
        )
        for devices, scaling in points
        for precision in precisions
        for chosen in option_sets(options)
    ]


def _find(name: str, registry: Registry, what: str = "") -> None:
    """Raise UserError unless there is a strategy of that name."""
    try:
        registry.find(name)
    except RegistryError as error:
        raise UserError(f"{what}{error}") from None


def _check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise UserError for an option that the strategy does not have, or a value of another kind than its default."""
    for key, given in options.items():
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise UserError(f"strategy {name!r} has no option {key!r}; its options are: {known}")
        kind, words = _kind_of(defaults[key])
        if given == []:
            raise UserError(f"option {key!r} of strategy {name!r} sweeps no value; give at least one")
        for value in given if isinstance(given, list) else [given]:
            wrong = isinstance(value, bool) and kind is not object and kind is not bool
            if not isinstance(value, kind) or wrong or (isinstance(value, float) and not math.isfinite(value)):
                raise UserError(f"option {key!r} of strategy {name!r} takes {words}, not {_shown(value)!r}")


def _kind_of(default: Any) -> tuple[Any, str]:
    if isinstance(default, bool):
        return bool, "true or false"
    if isinstance(default, (int, float)):
        return (int, float), "a number"
    return (str, "a text") if isinstance(default, str) else (object, "anything")


def _plan_cell(
    strategy: Strategy, cell: PlannedCell, *, device_kind: str, batch: int, input_shape: Sequence[int]
) -> PlannedCell:
    """The cell with its plan and batch sizes, or with the reason why it has none."""
    from strategies.base import Unsupported

    try:
        plan = strategy.plan(cell.devices, device_kind)
        _check_plan(plan, cell)
    except Unsupported as error:
        return replace(cell, status="unsupported", reason=str(error))
    except (Exception, SystemExit) as error:
        return replace(cell, status="crashed", reason=f"plan() failed: {type(error).__name__}: {error}")
    weak = cell.scaling == "weak"
    planned = replace(
        cell,
        processes=plan.processes,
        devices_per_process=plan.devices_per_process,
        replicas=plan.replicas,
        batch_global=batch * plan.replicas if weak else batch,
        batch_per_replica=batch if weak else batch // plan.replicas,
        uses_process_group=strategy.uses_process_group or plan.processes > 1,
        same_work=strategy.same_work,
        warnings=_warnings(cell, device_kind),
    )
    reason = _unsupported_factors(strategy, cell, device_kind, input_shape)
    return replace(planned, status="unsupported", reason=reason) if reason else planned


def _check_plan(plan: Plan, cell: PlannedCell) -> None:
    from strategies.base import Plan

    if not isinstance(plan, Plan):
        raise TypeError(f"it returned {type(plan).__name__}, not strategies.base.Plan")
    used = plan.processes * plan.devices_per_process
    if min(plan.processes, plan.devices_per_process, plan.replicas) < 1 or used != cell.devices:
        raise ValueError(
            f"{plan.processes} processes x {plan.devices_per_process} devices = {used}, "
            f"{cell.devices} devices were asked for"
        )


def _unsupported_factors(strategy: Strategy, cell: PlannedCell, device_kind: str, input_shape: Sequence[int]) -> str:
    """Why this strategy cannot run at this precision or layout here; "" where it can."""
    if cell.precision not in strategy.precisions:
        return f"{cell.strategy} runs at {', '.join(strategy.precisions)}, not at {cell.precision}"
    if cell.precision == "tf32" and device_kind == "cpu":
        return "tf32 is a mode of NVIDIA GPUs"
    if device_kind == "cuda" and cell.accumulate > 1 and cell.compile in ("reduce-overhead", "max-autotune"):
        return f"CUDA graphs ({cell.compile}) overwrite gradients between micro-batches"
    if cell.memory_format == "channels_last" and len(input_shape) != 3:
        return "channels_last is a layout of images; this workload has none"
    return ""


def _warnings(cell: PlannedCell, device_kind: str) -> tuple[str, ...]:
    if cell.precision == "amp-fp16" and device_kind == "cpu":
        return (
            "float16 autocast on CPU is emulated and tens of times slower than float32; amp-bf16 is the usual choice",
        )
    return ()


def _check(cell: PlannedCell, matrix: Matrix, *, workload: WorkloadEntry, train_count: int) -> None:
    """Raise UserError where the batch does not fit the cell's replicas, the model or the data."""
    if cell.status or cell.batch_global is None or cell.replicas is None or cell.batch_per_replica is None:
        return
    parts = cell.replicas * cell.accumulate
    if cell.batch_global % parts:
        raise UserError(
            f"{cell}: a global batch of {cell.batch_global} does not divide into {cell.replicas} replica"
            + ("s" if cell.replicas > 1 else "")
            + (f" x {cell.accumulate} micro-batches" if cell.accumulate > 1 else "")
            + "; choose --batch as a multiple of their product"
        )
    if workload.batch_norm and cell.batch_global // parts < 2:
        raise UserError(
            f"{cell}: {cell.batch_global} samples / {parts} = 1 a replica and micro-batch, and the BatchNorm of "
            f"{workload.name} needs at least 2; choose a larger --batch"
        )
    full = train_count // cell.batch_global
    if full < 1:
        raise UserError(f"{cell}: a global batch of {cell.batch_global} exceeds the {train_count} training samples")
    for option, steps in (("--steps", matrix.steps or 0), ("--warmup-steps", matrix.warmup_steps)):
        if steps > full:
            raise UserError(
                f"{cell}: {option} {steps} > {full} full batches of {cell.batch_global} in an epoch of {train_count} "
                f"samples; use fewer, or {'--epochs for more training' if option == '--steps' else 'a smaller --batch'}"
            )


def _baselines(cells: Any, matrix: Matrix) -> list[PlannedCell]:
    """The cells that stand in every block under two names: the baseline's strategy and devices, one a scaling."""
    name, _, devices = matrix.baseline.partition("@")
    found = [c for c in cells if c.strategy == name and c.devices == int(devices or 1) and not c.status]
    return list({cell.scaling: cell for cell in reversed(found)}.values())


def check_baseline(baseline: str, registry: Registry) -> None:
    """Raise UserError unless this is NAME or NAME@DEVICES of a known strategy."""
    name, at, devices = baseline.partition("@")
    if at and not re.fullmatch(r"[1-9][0-9]*", devices):
        raise UserError(f"--baseline {baseline}: {devices!r} is no device count; give NAME or NAME@DEVICES")
    _find(name, registry, "--baseline: ")


def block_order(cells: Sequence[PlannedCell], *, seed: int, block: int) -> list[PlannedCell]:
    """One block: every measured cell once, in a random order of its own that the seed fixes."""
    order = [cell for cell in cells if not cell.status]
    random.Random(f"{seed}/{block}").shuffle(order)
    return order
