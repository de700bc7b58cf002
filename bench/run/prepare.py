"""Everything `bench run` checks and prepares before it starts a process: a Job, or one clear message."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.data import PreparedData, prepare
from bench.errors import UserError
from bench.files import is_file
from bench.machine import calibrate, environment
from bench.plan.checks import check_cells
from bench.plan.matrix import AUTO, Matrix
from bench.run.job import Job
from bench.run.reporter import Reporter
from bench.run.request import Request as Request
from bench.run.resolve import Resolved, naming_lines, resolve
from bench.run.resume import check_same_environment, check_same_strategy_files
from bench.run.rows import CampaignFacts
from bench.run.store import Store, new_folder


def prepare_job(request: Request, reporter: Reporter) -> tuple[Job, Store]:
    """Resolve and check a request, prepare its data, and open its folder.

    Raises UserError; nothing is started then, and no folder is left behind that was not there.
    """
    with naming_lines(request):
        return _prepared(request, reporter)


def _prepared(request: Request, reporter: Reporter) -> tuple[Job, Store]:
    resolved = resolve(request, note=reporter.note)
    for text in environment.notes(os.environ):
        reporter.note(text)
    facts = _environment(resolved)
    _check_resumable(resolved, facts, reporter)
    folder = _folder(resolved, facts)
    data = _data(resolved, reporter)
    check_cells(resolved.cells, resolved.matrix, workload=resolved.workload, train_count=data.train_count)
    store = _open(resolved, folder, data, reporter)
    return _job(resolved, facts, data, store), store


def _environment(resolved: Resolved) -> dict[str, Any]:
    """The content of environment.json, with the measured limits of this machine where they are known."""
    facts = environment.collect(anonymous=resolved.request.anonymous, kind=resolved.machine.device_kind)
    limits = calibrate.load_calibration(facts["environment_id"], threads=resolved.threads)
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


def new_campaign_id(folder: Path) -> str:
    """The folder's name, for a person, and what tells it from another campaign in a folder of that name."""
    return f"{folder.resolve().name}-{secrets.token_hex(4)}"


def _job(resolved: Resolved, facts: dict[str, Any], data: PreparedData, store: Store) -> Job:
    request, matrix, found = resolved.request, resolved.matrix, resolved.machine
    campaign = CampaignFacts(
        campaign_id=str(resolved.recorded.get("campaign_id") or new_campaign_id(store.folder)),
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
        steps=_steps(matrix, resolved.recorded),
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


def _steps(matrix: Matrix, recorded: Mapping[str, Any]) -> int | None:
    """As the matrix says; where it leaves them to the suite, what the campaign chose before, or nothing yet."""
    return int(recorded.get("chosen_steps") or AUTO) if matrix.steps == AUTO else matrix.steps


def _check_same_data(store: Store, data: PreparedData, *, force: bool) -> None:
    """Raise UserError where the folder's rows were measured on other data, unless forced."""
    found = {row["dataset_fingerprint"] for row in store.rows}
    if found - {data.fingerprint} and not force:
        raise UserError(
            f"{store.folder} was measured on data of fingerprint {', '.join(sorted(found))}, this is "
            f"{data.fingerprint}; begin a new campaign, or add --force to mix them"
        )


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
