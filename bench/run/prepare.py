"""Everything `bench run` checks and prepares before it starts a process: a Job, or one clear message."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import files, workloads
from bench.data import DATASETS, PreparedData, prepare
from bench.errors import UserError
from bench.machine import calibrate, detect, environment, gpus, host, network
from bench.plan import registry
from bench.plan.cells import check_baseline, device_counts, plan_cells
from bench.plan.matrix import Matrix, from_resolved, load_matrix, override
from bench.results.folder import read_runs
from bench.run.job import Job
from bench.run.reporter import Reporter
from bench.run.resume import check_same_environment, check_same_matrix, check_same_strategy_files
from bench.run.rows import CampaignFacts
from bench.run.store import Store, new_folder
from strategies import Registry

TOY_TRAIN_COUNT = 4096


@dataclass(frozen=True)
class Request:
    """`bench run` as typed. `overrides` are matrix keys; None there means not given."""

    matrix: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None
    data_root: Path | None = None
    strategy_files: tuple[Path, ...] = ()
    checkpoint: Path | None = None
    initial_state: Path | None = None
    resume: Path | None = None
    force: bool = False
    anonymous: bool = False
    command: str = ""


def prepare_job(request: Request, reporter: Reporter) -> tuple[Job, Store]:
    """Resolve and check a request, prepare its data, and open its folder.

    Raises UserError; nothing is started then, and no folder is left behind that was not there.
    """
    reason = host.unsupported_platform_reason()
    if reason:
        raise UserError(reason)
    network.check_network_interface(os.environ)
    matrix, resumed = _matrix(request)
    request = _as_begun(request, resumed)
    found = detect.detect(matrix.device)
    _check_architectures(found)
    matrix = device_counts(matrix, found, detect.default_device_counts(found))
    counts = sorted({devices for group in matrix.groups for devices in group.devices})
    threads = detect.resolve_threads(found, counts, matrix.threads_per_device)
    workload = workloads.find(matrix.workload)
    strategies = registry.collect(request.strategy_files)
    _name_broken_files(strategies, matrix, reporter)
    check_baseline(matrix.baseline, strategies)
    _check_initial_state(request, workload.name)
    usual = DATASETS[workload.data_kind].train_count if workload.data_kind in DATASETS else TOY_TRAIN_COUNT
    _check_gloo()
    plan = partial(plan_cells, matrix, machine=found, registry=strategies, workload=workload)
    plan(train_count=usual)
    facts = environment.collect(anonymous=request.anonymous, kind=found.device_kind)
    facts["volatile"]["calibration"] = calibrate.load(facts["environment_id"], threads=threads)
    if request.resume:
        differences = check_same_environment(request.resume, facts, force=request.force)
        differences += check_same_strategy_files(request.resume, request.strategy_files, resumed, force=request.force)
        for difference in differences:
            reporter.note(f"resumed although this differs: {difference}")
    folder = _folder(request, matrix, facts)
    data = _data(matrix, workload.data_kind, request.data_root, reporter)
    cells = plan(train_count=data.train_count)
    _make_checkpoint_folder(request)
    store = Store(folder, private=environment.private_words() if request.anonymous else ())
    try:
        _check_still_new(request, store)
        _tidy_after_a_crash(store, reporter, epochs=matrix.epochs)
        _check_same_data(store, data, force=request.force)
    except UserError:
        store.close()
        raise
    campaign = CampaignFacts(
        campaign_id=str(resumed.get("campaign_id") or store.folder.resolve().name),
        environment_id=facts["environment_id"],
        git_commit=facts["volatile"].get("git_commit") or "",
        git_dirty=facts["volatile"].get("git_dirty"),
        machine=found,
        backend="nccl" if found.device_kind == "cuda" else "gloo",
        threads_per_device=threads,
        workload=matrix.workload,
        data=data,
        seed=matrix.seed,
        warmup_steps=matrix.warmup_steps,
        steps=matrix.steps,
    )
    job = Job(
        matrix,
        cells,
        campaign,
        facts,
        request.command,
        request.strategy_files,
        request.checkpoint,
        request.initial_state,
        anonymous=request.anonymous,
    )
    return job, store


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


def _check_architectures(found: detect.Machine) -> None:
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


def _name_broken_files(registry: Registry, matrix: Matrix, reporter: Reporter) -> None:
    """Say which strategy or file cannot be used; where the matrix asks for it by name, its row says so."""
    asked = {name for group in matrix.groups for name in group.strategies}
    for entry in registry.entries.values():
        if entry.broken and entry.name not in asked:
            what = f"strategy file {entry.module}" if entry.is_file else entry.place
            reporter.note(f"{what} is left out: {entry.broken}")


def _check_same_data(store: Store, data: PreparedData, *, force: bool) -> None:
    """Raise UserError where the folder's rows were measured on other data, unless forced."""
    if not store.runs.exists() or force:
        return
    found = {row["dataset_fingerprint"] for row in read_runs(store.runs)}
    if found - {data.fingerprint}:
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


def _data(matrix: Matrix, kind: str, root: Path | None, reporter: Reporter) -> PreparedData:
    data = prepare(
        matrix.dataset,
        kind=kind,
        data_root=root,
        seed=matrix.seed,
        progress=reporter.download,
        report=reporter.note,
    )
    for text in (*data.warnings, data.notice):
        if text:
            reporter.note(text)
    return data


def _folder(request: Request, matrix: Matrix, facts: Mapping[str, Any]) -> Path:
    if request.resume:
        return request.resume
    if request.out is None:
        host = facts["volatile"].get("host") or facts["volatile"].get("hostname") or "host"
        return new_folder(Path("results"), host=str(host), preset=matrix.name)
    _check_no_campaign(request.out)
    return request.out


def _check_no_campaign(folder: Path) -> None:
    if files.is_file(folder / "runs.csv"):
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


def command_line(argv: list[str] | None = None) -> str:
    """The command as typed, for the reader who wants to run it again."""
    import shlex

    words = sys.argv[1:] if argv is None else argv
    return "bench " + shlex.join(words)


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`ddp.bucket_cap_mb=5` -> {"ddp": {"bucket_cap_mb": 5}}; several values with commas sweep. Raises UserError."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        place, equals, text = setting.partition("=")
        strategy, dot, name = place.partition(".")
        if not (equals and dot and strategy and name and text):
            raise UserError(f"--set {setting}: give STRATEGY.OPTION=VALUE, such as ddp.bucket_cap_mb=5")
        values = [_value(part) for part in text.split(",")]
        options.setdefault(strategy, {})[name] = values[0] if len(values) == 1 else values
    return options


def _value(text: str) -> Any:
    """A number, true or false as JSON writes it; any other text is itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    plain = isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else text


def comma_list(text: str | None, option: str, read: Callable[[str], Any] = str) -> list[Any] | None:
    """`1,2` -> [1, 2]; None stays None. Raises UserError naming the option."""
    if text is None:
        return None
    try:
        values = [read(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"{option} {text}: give whole numbers with commas between, such as {option} 1,2") from None
    if not values:
        raise UserError(f"{option} {text!r}: give at least one value")
    return values
