"""From a matrix to cells: each strategy is asked for its plan, and everything that cannot work is refused up front."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.factors import BREAKDOWN, CELL_FACTORS, CONTROL, CRASHED, UNSUPPORTED, Baseline, Factor
from bench.machine.detect import Machine
from bench.plan.checks import check_options, find_strategy
from bench.plan.matrix import Group, Matrix, option_sets
from bench.plan.planned import PlannedCell, variant_of
from bench.wire import CellSpec
from bench.workloads import WorkloadEntry
from strategies import Registry, RegistryError, output_held_back
from strategies.places import Asked, Plan, Unsupported

if TYPE_CHECKING:
    from strategies.base import Strategy


def plan_cells(matrix: Matrix, *, machine: Machine, registry: Registry, workload: WorkloadEntry) -> list[PlannedCell]:
    """Every cell once, in the order of the matrix; the baseline's A/A twin and breakdown twins come last.

    Raises UserError for what no strategy could run; whether batch and steps fit the data, `check_cells` says.
    """
    if not any(group["strategies"] for group in matrix.groups):
        raise UserError(f"matrix {matrix.name} names no strategy; give some with --strategies, such as single,ddp")
    if matrix.trace and not matrix.breakdown:
        raise UserError("--trace keeps the profiler's trace of breakdown runs, and there are none; add --breakdown")
    for name in matrix.options:
        find_strategy(name, registry, "options for ")
    cells: dict[tuple[Any, ...], PlannedCell] = {}
    for group in matrix.groups:
        for name in group["strategies"]:
            with output_held_back():
                planned = _strategy_cells(name, group, matrix, machine=machine, registry=registry, workload=workload)
            for cell in planned:
                cells.setdefault(cell.key, cell)
    twins = [cell.changed(role=CONTROL) for cell in _baselines(cells.values(), matrix)] if matrix.control else []
    measured = [cell for cell in cells.values() if not cell.status]
    if matrix.breakdown:
        twins += [cell.changed(role=BREAKDOWN) for cell in measured]
    return [*cells.values(), *twins]


def device_counts(matrix: Matrix, machine: Machine, default: Sequence[int]) -> Matrix:
    """The matrix with `auto` device counts filled in."""
    groups = tuple(group if group["devices"] else group.changed(devices=tuple(default)) for group in matrix.groups)
    return replace(matrix, groups=groups)


def _strategy_cells(
    name: str, group: Group, matrix: Matrix, *, machine: Machine, registry: Registry, workload: WorkloadEntry
) -> list[PlannedCell]:
    entry = find_strategy(name, registry)
    if entry.missing:
        return _unplanned(name, group, UNSUPPORTED, _install_hint(name, entry.missing))
    try:
        strategy = registry.load(name)()
        points = list(_points(name, group, strategy, device_kind=machine.device_kind))
    except RegistryError as error:
        return _unplanned(name, group, CRASHED, str(error))
    except (Exception, SystemExit) as error:
        return _unplanned(name, group, CRASHED, f"it could not be made: {type(error).__name__}: {error}")
    check_options(name, matrix.options.get(name, {}), strategy.default_options)
    facts: dict[str, Any] = {
        "same_work": strategy.same_work,
        "plain_twin": entry.plain or strategy.plain_twin,
        "tuned_twin": entry.tuned or strategy.tuned_twin,
    }
    return [
        _plan_cell(
            strategy,
            PlannedCell(CellSpec({**point, "variant": variant_of(chosen)}, chosen), **facts),
            device_kind=machine.device_kind,
            batch=group["batch"] or workload.batch,
            input_shape=workload.input_shape,
        )
        for point in points
        for chosen in _changed_options(strategy, matrix.options.get(name, {}))
    ]


def _points(name: str, group: Group, strategy: Strategy, *, device_kind: str) -> Iterator[dict[str, Any]]:
    """The product of a group's lists: a value for every factor of a cell, the batch blank until there is a plan."""
    axes = {factor.name: _values(factor, group, strategy, device_kind) for factor in CELL_FACTORS}
    axes |= {"strategy": (name,), "batch_global": (None,)}
    for chosen in itertools.product(*axes.values()):
        yield dict(zip(axes, chosen, strict=True))


def _values(factor: Factor, group: Group, strategy: Strategy | None, device_kind: str) -> tuple[Any, ...]:
    """What a group asks of a factor, else the strategy's own default, else the factor's."""
    asked = group[factor.key] if factor.key else None
    if asked not in (None, ()):
        return asked if factor.many else (asked,)
    if strategy is None or not factor.by_strategy:
        return ("" if factor.default is None or factor.by_strategy else factor.default,)
    own = getattr(strategy, f"default_{factor.name}", factor.default)
    return (own[device_kind] if isinstance(own, Mapping) else own,)


def _unplanned(name: str, group: Group, status: str, reason: str) -> list[PlannedCell]:
    """The rows of a strategy that cannot be used: one for each number of devices and scaling, with the reason."""
    blank = {factor.name: _values(factor, Group(), None, "")[0] for factor in CELL_FACTORS}
    blank |= {"strategy": name, "batch_global": None}
    told = [factor for factor in CELL_FACTORS if factor.key and factor.name not in ("strategy", "batch_global")]
    told = [factor for factor in told if not factor.by_strategy]
    points = itertools.product(*(_values(factor, group, None, "") for factor in told))
    names = [factor.name for factor in told]
    return [
        PlannedCell(CellSpec(blank | dict(zip(names, point, strict=True))), status=status, reason=reason)
        for point in points
    ]


def _install_hint(name: str, packages: Sequence[str]) -> str:
    return f"{name} needs {', '.join(packages)}, not installed here; pip install {' '.join(packages)}"


def _changed_options(strategy: Strategy, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each combination of the options asked for, without those at their default."""
    sets = option_sets(options)
    return [{name: value for name, value in chosen if value != strategy.default_options[name]} for chosen in sets]


def _plan_cell(
    strategy: Strategy, cell: PlannedCell, *, device_kind: str, batch: int, input_shape: Sequence[int]
) -> PlannedCell:
    """The cell with its plan and batch, or with the reason why it has none."""
    options = {**strategy.default_options, **cell.spec.options}
    try:
        plan = strategy.plan(Asked(cell["devices"], device_kind, options))
        _check_plan(plan, cell)
    except Unsupported as error:
        return replace(cell, status=UNSUPPORTED, reason=str(error))
    except (Exception, SystemExit) as error:
        return replace(cell, status=CRASHED, reason=f"plan() failed: {type(error).__name__}: {error}")
    values = {**cell.spec.values, "batch_global": batch * plan.parts if cell["scaling"] == "weak" else batch}
    planned = replace(
        cell,
        spec=CellSpec(values, cell.spec.options, plan.places),
        uses_process_group=strategy.uses_process_group or plan.processes > 1,
        warnings=_warnings(cell, device_kind),
    )
    reason = _unsupported_factors(strategy, cell, device_kind, input_shape)
    return replace(planned, status=UNSUPPORTED, reason=reason) if reason else planned


def _check_plan(plan: Plan, cell: PlannedCell) -> None:
    if not isinstance(plan, Plan):
        raise TypeError(f"it returned {type(plan).__name__}, not strategies.places.Plan")
    if plan.devices != cell["devices"]:
        raise ValueError(
            f"{plan.processes} processes have {plan.devices} devices in all, {cell['devices']} were asked for"
        )


def _unsupported_factors(strategy: Strategy, cell: PlannedCell, device_kind: str, input_shape: Sequence[int]) -> str:
    """Why this strategy cannot run at this precision or layout here; "" where it can."""
    if strategy.precisions and cell["precision"] not in strategy.precisions:
        return f"{cell['strategy']} runs at {', '.join(strategy.precisions)}, not at {cell['precision']}"
    if cell["precision"] == "tf32" and device_kind == "cpu":
        return "tf32 is a mode of NVIDIA GPUs"
    if device_kind == "cuda" and cell["accumulate"] > 1 and cell["compile"] in ("reduce-overhead", "max-autotune"):
        return f"CUDA graphs ({cell['compile']}) overwrite gradients between micro-batches"
    if cell["memory_format"] == "channels_last" and len(input_shape) != 3:
        return "channels_last is a layout of images; this workload has none"
    return ""


def _warnings(cell: PlannedCell, device_kind: str) -> tuple[str, ...]:
    if cell["precision"] == "amp-fp16" and device_kind == "cpu":
        return (
            "float16 autocast on CPU is emulated and tens of times slower than float32; amp-bf16 is the usual choice",
        )
    return ()


def _baselines(cells: Iterable[PlannedCell], matrix: Matrix) -> list[PlannedCell]:
    """The cells that stand in every block under two names: the baseline's strategy and devices, one a scaling."""
    baseline = Baseline.parse(matrix.baseline)
    found = [cell for cell in cells if baseline.matches(cell) and not cell.status]
    return list({cell["scaling"]: cell for cell in reversed(found)}.values())


def block_order(cells: Sequence[PlannedCell], *, seed: int, block: int) -> list[PlannedCell]:
    """One block: every measured cell once, in a random order of its own that the seed fixes."""
    order = [cell for cell in cells if not cell.status]
    random.Random(f"{seed}/{block}").shuffle(order)
    return order
