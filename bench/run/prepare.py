"""Everything `bench run` checks and prepares before it starts a process: a Job, or one clear message."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import workloads
from bench.data import DATASETS, PreparedData, prepare
from bench.errors import UserError
from bench.files import is_file
from bench.machine import calibrate, detect, environment, gpus, host, network
from bench.machine.detect import Machine
from bench.plan import registry
from bench.plan.cells import PlannedCell, check_baseline, check_cells, device_counts, plan_cells
from bench.plan.matrix import Matrix, from_resolved, load_matrix, override
from bench.run.job import Job
from bench.run.reporter import Reporter
from bench.run.request import Request as Request
from bench.run.resume import check_same_environment, check_same_matrix, check_same_strategy_files
from bench.run.rows import CampaignFacts
from bench.run.store import Store, new_folder
from bench.workloads import WorkloadEntry
from strategies import Registry

TOY_TRAIN_COUNT = 4096


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


def prepare_job(request: Request, reporter: Reporter) -> tuple[Job, Store]:
    """Resolve and check a request, prepare its data, and open its folder.

    Raises UserError; nothing is started then, and no folder is left behind that was not there.
    """
    resolved = resolve(request, note=reporter.note)
    facts = _environment(resolved)
    _check_resumable(resolved, facts, reporter)
    folder = _folder(resolved, facts)
    data = _data(resolved, reporter)
    check_cells(resolved.cells, resolved.matrix, workload=resolved.workload, train_count=data.train_count)
    store = _open(resolved, folder, data, reporter)
    return _job(resolved, facts, data, store), store


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
    strategies = registry.collect(request.strategy_files)
    _name_broken_files(strategies, matrix, note)
    check_baseline(matrix.baseline, strategies)
    _check_initial_state(request, workload.name)
    _check_gloo()
    cells = tuple(plan_cells(matrix, machine=found, registry=strategies, workload=workload))
    usual = DATASETS[workload.data_kind].train_count if workload.data_kind in DATASETS else TOY_TRAIN_COUNT
    check_cells(cells, matrix, workload=workload, train_count=usual)
    return Resolved(request, matrix, recorded, found, threads, workload, strategies, cells)


def _environment(resolved: Resolved) -> dict[str, Any]:
    """The content of environment.json, with the measured limits of this machine where they are known."""
    facts = environment.collect(anonymous=resolved.request.anonymous, kind=resolved.machine.device_kind)
    limits = calibrate.load(facts["environment_id"], threads=resolved.threads)
    return facts | {"volatile": facts["volatile"] | {"calibration": limits}}


def _check_resumable(resolved: Resolved, facts: Mapping[str, Any], reporter: Reporter) -> None:
    request = resolved.request
    if request.resume is None:
        return
    differences = check_same_environment(request.resume, facts, force=request.force)
    differences += check_same_strategy_files(
        request.resume, request.strategy_files, resolved.recorded, force=request.force
    )
    for difference in differences:
        reporter.note(f"resumed although this differs: {difference}")


def _open(resolved: Resolved, folder: Path, data: PreparedData, reporter: Reporter) -> Store:
    """The campaign's folder, locked, mended after a crash, and of the same data."""
    request = resolved.request
    _make_checkpoint_folder(request)
    store = Store(folder, private=environment.private_words() if request.anonymous else ())
    try:
        _check_still_new(request, store)
        _tidy_after_a_crash(store, reporter, epochs=resolved.matrix.epochs)
        _check_same_data(store, data, force=request.force)
    except UserError:
        store.close()
        raise
    return store


def _job(resolved: Resolved, facts: dict[str, Any], data: PreparedData, store: Store) -> Job:
    request, matrix, found = resolved.request, resolved.matrix, resolved.machine
    campaign = CampaignFacts(
        campaign_id=str(resolved.recorded.get("campaign_id") or store.folder.resolve().name),
        environment_id=facts["environment_id"],
        git_commit=facts["volatile"].get("git_commit") or "",
        git_dirty=facts["volatile"].get("git_dirty"),
        machine=found,
        backend="nccl" if found.device_kind == "cuda" else "gloo",
        threads_per_device=resolved.threads,
        workload=matrix.workload,
        data=data,
        seed=matrix.seed,
        warmup_steps=matrix.warmup_steps,
        steps=matrix.steps,
    )
    return Job(
        matrix,
        list(resolved.cells),
        campaign,
        facts,
        request.command,
        request.strategy_files,
        request.checkpoint,
        request.initial_state,
        anonymous=request.anonymous,
    )


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
    check_same_matrix(request.resume, matrix, asked, recorded=facts, force=request.force)
    return asked, facts


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


def _check_same_data(store: Store, data: PreparedData, *, force: bool) -> None:
    """Raise UserError where the folder's rows were measured on other data, unless forced."""
    found = {row["dataset_fingerprint"] for row in store.rows}
    if found - {data.fingerprint} and not force:
        raise UserError(
            f"{store.folder} was measured on data of fingerprint {', '.join(sorted(found))}, this is "
            f"{data.fingerprint}; begin a new campaign, or add --force to mix them"
        )


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


def _make_checkpoint_folder(request: Request) -> None:
    if request.checkpoint is not None:
        try:
            request.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--checkpoint {request.checkpoint}: {error.strerror or error}") from None


def _data(resolved: Resolved, reporter: Reporter) -> PreparedData:
    data = prepare(
        resolved.matrix.dataset,
        kind=resolved.workload.data_kind,
        data_root=resolved.request.data_root,
        seed=resolved.matrix.seed,
        progress=reporter.download,
        report=reporter.note,
    )
    for text in (*data.warnings, data.notice):
        if text:
            reporter.note(text)
    return data


def _folder(resolved: Resolved, facts: Mapping[str, Any]) -> Path:
    request = resolved.request
    if request.resume:
        return request.resume
    if request.out is None:
        host = facts["volatile"].get("host") or facts["volatile"].get("hostname") or "host"
        return new_folder(Path("results"), host=str(host), preset=resolved.matrix.name)
    _check_no_campaign(request.out)
    return request.out


def _check_no_campaign(folder: Path) -> None:
    if is_file(folder / "runs.csv"):
        raise UserError(
            f"{folder} already holds a campaign; continue it with --resume {folder}, or choose another --out"
        )


def _check_still_new(request: Request, store: Store) -> None:
    """Look again once the lock is held: while the data were prepared another campaign may have come and gone."""
    if request.resume is None:
        _check_no_campaign(store.folder)


def _tidy_after_a_crash(store: Store, reporter: Reporter, *, epochs: int) -> None:
    ended = store.end_orphans()
    if ended:
        reporter.warn(f"ended {len(ended)} worker(s) that a killed campaign had left: {', '.join(map(str, ended))}")
    for message in store.tidy(epochs=epochs):
        reporter.warn(message)
    store.scrub_files(store.folder / "logs")
