"""What the parent tells the workers of one run, and what rank 0 tells it back: two JSON files, both checked here."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.files import write_text_atomically


@dataclass(frozen=True)
class RunSpec:
    """One run, complete: a worker needs this and RANK, LOCAL_RANK and WORLD_SIZE, nothing else.

    `folder` holds the run's logs, heartbeat and measurement. `store` is a FileStore's path, or "env://" under
    torchrun on several machines. `inputs` and `targets` files are .npy. `steps` are timed steps an epoch.
    """

    run_id: str
    folder: str
    store: str
    parent_pid: int
    strategy: str
    strategy_files: tuple[str, ...]
    processes: int
    devices_per_process: int
    replicas: int
    device_kind: str
    backend: str
    threads_per_device: int
    workload: str
    train_inputs: str
    train_targets: str
    test_inputs: str
    test_targets: str
    data_pipeline: str
    loader_workers: int
    synthetic: bool
    precision: str
    memory_format: str
    compile: str
    options: dict[str, Any]
    batch_global: int
    accumulate: int
    seed: int
    warmup_steps: int
    steps: int
    epochs: int
    whole_epoch: bool
    breakdown: bool
    timeout_seconds: float
    checkpoint: str = ""
    initial_state: str = ""
    count_flops: bool = False
    trace: bool = False

    @property
    def ranks_per_replica(self) -> int:
        return max(1, self.processes // self.replicas)

    @property
    def shards(self) -> int:
        return self.processes // self.ranks_per_replica

    def write(self, path: Path) -> None:
        write_text_atomically(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["strategy_files"] = tuple(values["strategy_files"])
        return cls(**values)


@dataclass(frozen=True)
class EpochMeasurement:
    """One epoch of one run, over all ranks. Times in seconds, lists by rank."""

    epoch: int
    timed_seconds: list[float]
    step_seconds: list[list[float]]
    data_wait: list[list[float]]
    samples: int
    loss_first: float | None
    loss_last: float | None
    finite: bool
    skipped_steps: int
    parameter_hashes: list[str]
    forward_backward: list[float] | None = None
    optimizer: list[float] | None = None
    exposed_comm: float | None = None
    exposed_comm_trace: float | None = None
    comm_trace: float | None = None
    eval_seconds: float | None = None
    correct: int | None = None
    evaluated: int | None = None


@dataclass(frozen=True)
class Measurement:
    """What a run gave: written by rank 0 once every rank has reported, read by the parent."""

    epochs: list[EpochMeasurement]
    launch_seconds: float
    init_seconds: float
    build_seconds: float
    warmup_seconds: float
    compile_seconds: float | None
    flops_per_sample: float | None
    peak_memory_bytes: list[int]
    host_peak_rss_bytes: int
    host_pss_bytes: int | None
    gradient_bytes: int
    details: dict[str, str]
    warnings: list[str]

    def write(self, path: Path) -> None:
        write_text_atomically(path, json.dumps(dataclasses.asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Measurement:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["epochs"] = [EpochMeasurement(**epoch) for epoch in values["epochs"]]
        return cls(**values)


@dataclass(frozen=True)
class RankError:
    """A rank's own account of why it stopped. `kind` is error, oom, unsupported or collective."""

    rank: int
    kind: str
    phase: str
    type: str
    message: str
    nanoseconds: int

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def write(self, path: Path) -> None:
        write_text_atomically(path, json.dumps(dataclasses.asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> RankError | None:
        """None where the rank wrote none, or died while writing."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def error_path(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def measurement_path(folder: Path) -> Path:
    return folder / "measurement.json"


def heartbeat_path(folder: Path) -> Path:
    return folder / "heartbeat"


def stack_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack.log"
