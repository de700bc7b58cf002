"""One campaign's work, checked: nothing in here is a user's mistake any more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.files import write_text_atomically
from bench.machine import environment
from bench.plan.cells import PlannedCell
from bench.plan.matrix import Matrix, to_toml
from bench.run.resume import hashes
from bench.run.rows import CampaignFacts
from bench.run.store import Store


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
        "strategy_files": [store.scrub(str(path.resolve())) for path in job.strategy_files],
        "strategy_files_sha256": hashes(job.strategy_files),
        "checkpoint": store.scrub(str(job.checkpoint.resolve())) if job.checkpoint else "",
        "initial_state": store.scrub(str(job.initial_state.resolve())) if job.initial_state else "",
    }
    write_text_atomically(store.folder / "matrix.toml", to_toml(job.matrix, extra))
