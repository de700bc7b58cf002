"""A request with everything settled that follows from it and from this machine, or one clear message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import workloads
from bench.data import DATASETS
from bench.data.synthetic import TOY_TRAIN_COUNT
from bench.errors import UserError
from bench.factors import MEASURE
from bench.machine import detect, gpus, host, network
from bench.machine.detect import Machine
from bench.plan.cells import device_counts, plan_cells
from bench.plan.checks import check_baseline, check_cells, check_times
from bench.plan.matrix import MANY_CELLS, Matrix, from_resolved, load_matrix, override
from bench.plan.planned import PlannedCell
from bench.plan.registry import known_strategies
from bench.plan.toml import line_of
from bench.run.request import Request
from bench.run.resume import check_same_matrix
from bench.workloads import WorkloadEntry
from strategies import Registry


@dataclass(frozen=True)
class Resolved:
    """A request with everything settled that follows from it and from this machine. Nothing was written yet."""

    request: Request
    matrix: Matrix
    recorded: Mapping[str, Any]
    """What the campaign noted of itself, where the request resumes one."""

    machine: Machine
    threads: int
    workload: WorkloadEntry
    strategies: Registry
    cells: tuple[PlannedCell, ...]


@contextmanager
def naming_lines(request: Request) -> Iterator[None]:
    """A refusal in here that is about keys of a matrix names the lines where they stand, if they stand in a file."""
    try:
        yield
    except UserError as error:
        places = _places(request, error)
        raise UserError(f"{places}: {error}" if places else str(error)) from None


def _places(request: Request, error: UserError) -> str:
    """`m.toml, line 3 (batch) and line 5 (devices)`; "" where the keys came from the command or a preset."""
    name = request.matrix or ""
    if not name.endswith(".toml"):
        return ""
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
    asked = [key for key in error.keys if request.overrides.get(key) is None]
    sections = [None, *range(text.count("[[cells]]"))]
    found = {line: key for key in asked for place in sections if (line := line_of(text, key, place))}
    lines = " and ".join(f"line {line} ({key})" for line, key in sorted(found.items()))
    return f"{name}, {lines}" if lines else ""


def resolve(request: Request, *, note: Callable[[str], None]) -> Resolved:
    """Settle what is to be measured on this machine, and refuse what no strategy could run. Raises UserError.

    `note` is told of strategies that are left out.
    """
    reason = host.unsupported_platform_reason()
    if reason:
        raise UserError(reason)
    network.check_network_interface(os.environ)
    matrix, recorded = _matrix(request)
    request = _as_begun(request, recorded)
    found = detect.detect(matrix.device)
    _check_architectures(found)
    matrix = device_counts(matrix, found, detect.default_device_counts(found))
    counts = sorted({devices for group in matrix.groups for devices in group["devices"]})
    threads = detect.resolve_threads(found, counts, matrix.threads_per_device)
    workload = workloads.find(matrix.workload)
    strategies = known_strategies(request.strategy_files)
    _name_broken_files(strategies, matrix, note)
    check_baseline(matrix.baseline, strategies)
    check_times(matrix)
    _check_initial_state(request, workload.name)
    _check_gloo()
    cells = tuple(plan_cells(matrix, machine=found, registry=strategies, workload=workload))
    matrix = _with_race_or_not(matrix, cells)
    usual = DATASETS[workload.data_kind].train_count if workload.data_kind in DATASETS else TOY_TRAIN_COUNT
    check_cells(cells, matrix, workload=workload, train_count=usual)
    return Resolved(request, matrix, recorded, found, threads, workload, strategies, cells)


def _matrix(request: Request) -> tuple[Matrix, dict[str, Any]]:
    """The matrix asked for and, when resuming, the facts its campaign recorded."""
    if request.resume is None:
        name = _default_preset(request) if request.matrix is None else request.matrix
        return override(load_matrix(name), request.overrides), {}
    path = request.resume / "matrix.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{request.resume} cannot be resumed: could not read {path.name}: {error.strerror}") from None
    matrix, facts = from_resolved(text, source=str(path))
    asked = (
        override(load_matrix(request.matrix), request.overrides)
        if request.matrix
        else override(matrix, request.overrides)
    )
    if asked.race is None:
        asked = replace(asked, race=matrix.race)
    check_same_matrix(request.resume, matrix, asked, recorded=facts, force=request.force)
    return asked, facts


def _with_race_or_not(matrix: Matrix, cells: Iterable[PlannedCell]) -> Matrix:
    """The matrix that says whether it is a race: as asked, or by its number of cells."""
    if matrix.race is not None:
        return matrix
    measured = [cell for cell in cells if not cell.status and cell["role"] == MEASURE]
    return replace(matrix, race=len(measured) > MANY_CELLS)


def _check_architectures(found: Machine) -> None:
    """Raise UserError for a GPU that the installed torch has no kernels for."""
    if not found.gpus:
        return
    import torch

    architectures = torch.cuda.get_arch_list()
    for gpu in found.gpus:
        reason = gpus.unsupported_architecture(gpu, architectures)
        if architectures and reason:
            raise UserError(f"{reason}; hide that GPU with CUDA_VISIBLE_DEVICES, or use --device cpu")


def _check_gloo() -> None:
    """Raise UserError where torch has no gloo. Asked just before the plans, which import torch in any case."""
    from torch import distributed

    has_gloo = distributed.is_available() and distributed.is_gloo_available()
    reason = host.unsupported_platform_reason(has_gloo=has_gloo)
    if reason:
        raise UserError(reason)


def _as_begun(request: Request, begun: Mapping[str, Any]) -> Request:
    """The request with what its campaign was begun with, where it resumes one and does not say otherwise."""
    if request.resume is None:
        return request
    files = begun.get("strategy_files", [])
    texts = [*files, begun.get("checkpoint", ""), begun.get("initial_state", "")] if isinstance(files, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{request.resume / 'matrix.toml'}, [campaign]: strategy_files must be a list of paths, checkpoint and "
            "initial_state a path each"
        )
    recorded = {
        "strategy_files": tuple(Path(path).expanduser() for path in begun.get("strategy_files", ())),
        "checkpoint": Path(begun["checkpoint"]).expanduser() if begun.get("checkpoint") else None,
        "initial_state": Path(begun["initial_state"]).expanduser() if begun.get("initial_state") else None,
        "command": begun.get("command", ""),
        "anonymous": bool(begun.get("anonymous")),
    }
    if request.initial_state is not None and not request.force:
        path = recorded["initial_state"]
        if path is None or path.resolve() != request.initial_state.resolve():
            raise UserError(
                f"{request.resume} was begun with {f'--init-from {path}' if path else 'no --init-from'}; "
                "leave the option out to continue it, or add --force"
            )
    given = {name: getattr(request, name) or value for name, value in recorded.items() if name != "command"}
    return replace(request, **given, command=recorded["command"] or request.command)


def _name_broken_files(registry: Registry, matrix: Matrix, note: Callable[[str], None]) -> None:
    """Say which strategy or file cannot be used; where the matrix asks for it by name, its row says so."""
    asked = {name for group in matrix.groups for name in group["strategies"]}
    for entry in registry.entries.values():
        if entry.broken and entry.name not in asked:
            what = f"strategy file {entry.module}" if entry.is_file else entry.place
            note(f"{what} is left out: {entry.broken}")


def _default_preset(request: Request) -> str:
    device = request.overrides.get("device") or "auto"
    return "gpu" if detect.detect(device).device_kind == "cuda" else "cpu"


def _check_initial_state(request: Request, workload: str) -> None:
    if request.initial_state is not None:
        from bench.checkpoint import CheckpointError, read_checkpoint

        try:
            read_checkpoint(request.initial_state, workload=workload)
        except CheckpointError as error:
            raise UserError(str(error)) from None
