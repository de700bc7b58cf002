"""One campaign's work, checked: nothing in here is a user's mistake any more."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data import PreparedData
from bench.factors import ONE_BATCH, Baseline, run_tag
from bench.files import write_text_atomically
from bench.machine import detect, environment
from bench.machine.cores import shares
from bench.plan.matrix import AUTO, Matrix, to_toml
from bench.plan.planned import PlannedCell
from bench.run.resume import hashes
from bench.run.rows import CampaignFacts
from bench.run.store import Store
from bench.wire import RunSpec


@dataclass(frozen=True)
class Job:
    """Everything a campaign needs that has been checked: nothing in here is a user's mistake any more."""

    matrix: Matrix
    cells: list[PlannedCell]
    facts: CampaignFacts
    environment: dict[str, Any]
    command: str
    strategy_files: tuple[Path, ...] = ()
    checkpoint: Path | None = None
    initial_state: Path | None = None
    anonymous: bool = False

    def run_spec(
        self, cell: PlannedCell, name: str, *, folder: Path, count_flops: bool, turns: bool = False
    ) -> RunSpec:
        """What the ranks of one run of a cell are told; `folder` is the run's own, `turns` says if it takes turns."""
        facts, matrix = self.facts, self.matrix
        kind = facts.machine.device_kind
        return RunSpec(
            run_id=name,
            folder=str(folder),
            rendezvous=str(folder / "rendezvous"),
            strategy_files=tuple(str(path.resolve()) for path in self.strategy_files),
            cell=cell.spec,
            device_kind=kind,
            backend=detect.backend(kind) if cell.uses_process_group else "",
            threads_per_device=facts.threads_per_device,
            workload=facts.workload,
            loader_workers=matrix.loader_workers,
            synthetic=facts.data.synthetic or cell["data_pipeline"] == ONE_BATCH,
            seed=facts.seed,
            warmup_steps=facts.warmup_steps,
            steps=facts.timed_steps(cell),
            epochs=matrix.epochs,
            whole_epoch=facts.whole_epoch(cell),
            timeout_seconds=matrix.timeout,
            checkpoint=str((self.checkpoint / f"{name}.pt").resolve()) if self.checkpoint else "",
            initial_state=str(self.initial_state.resolve()) if self.initial_state else "",
            count_flops=count_flops,
            probe=Baseline.parse(matrix.baseline).has_as_run(cell),
            trace=matrix.trace,
            start=matrix.start,
            turns=turns,
            cores=shares(facts.machine, cell.spec.places, facts.threads_per_device),
            origins=origins(),
            **_data_paths(facts.data),
        )


def origins() -> dict[str, str]:
    """The files of the packages that ranks must find too, whatever lies in the current folder."""
    found = {name: importlib.util.find_spec(name) for name in ("bench", "strategies", "torch")}
    return {name: str(spec.origin) for name, spec in found.items() if spec is not None}


def _data_paths(data: PreparedData) -> dict[str, Any]:
    names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    return {name: str(getattr(data, name).resolve()) for name in names}


def run_id(cell: PlannedCell, block: int, attempt: int, cohort: int = 0) -> str:
    """The name of one attempt at a cell in a block: also that of its folder of logs."""
    further = f"-c{cohort}" if cohort else ""
    return f"b{block:02d}-{run_tag(cell)}{further}" + (f"-try{attempt}" if attempt > 1 else "")


def write_header(store: Store, job: Job) -> None:
    """environment.json and matrix.toml, before the first run."""
    environment.write(store.folder, job.environment)
    extra = {
        "campaign_id": job.facts.campaign_id,
        "command": store.scrub(job.command),
        "anonymous": job.anonymous,
        "device_kind": job.facts.machine.device_kind,
        "threads_per_device": job.facts.threads_per_device,
        "dataset_used": job.facts.data.name,
        "notice": job.facts.data.notice,
        "chosen_steps": job.facts.steps if job.matrix.steps == AUTO else None,
        "strategy_files": [store.scrub(str(path.resolve())) for path in job.strategy_files],
        "strategy_files_sha256": hashes(job.strategy_files),
        "checkpoint": store.scrub(str(job.checkpoint.resolve())) if job.checkpoint else "",
        "initial_state": store.scrub(str(job.initial_state.resolve())) if job.initial_state else "",
    }
    write_text_atomically(store.folder / "matrix.toml", to_toml(job.matrix, extra))
