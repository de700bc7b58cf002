"""What the parent tells the workers of one run, and what rank 0 tells it back: two JSON files, both checked here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.checked import build
from bench.factors import BREAKDOWN
from bench.files import write_text_atomically
from strategies.places import Place, Plan


@dataclass(frozen=True)
class CellSpec:
    """A cell as its ranks need it: `values` by the names of the factors, the strategy's options, one place a rank."""

    values: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def plan(self) -> Plan:
        """Where each rank stands. Raises ValueError for a cell that could not be planned."""
        return Plan(self.places)

    @property
    def batch_per_part(self) -> int:
        """Samples per optimizer step in each of the parts that the global batch is cut into."""
        return int(self["batch_global"]) // self.plan.parts


@dataclass(frozen=True)
class RunSpec:
    """One run, complete: a worker needs this and RANK, LOCAL_RANK and WORLD_SIZE, nothing else.

    `folder` holds the run's logs, heartbeat and measurement. `rendezvous` is a FileStore's path, or "env://" under
    torchrun on several machines. `inputs` and `targets` files are .npy. `steps` are timed steps an epoch, 0 where they
    are told once warm-up has shown its speed; with `turns` the ranks wait for the floor (`bench.floor`).
    `cores` are those of each rank, by rank, empty where ranks are not bound; `origins` the files that modules must be.
    `probe`: whether rank 0 measures the machine's own speed before the first timed step.
    """

    run_id: str
    folder: str
    rendezvous: str
    strategy_files: tuple[str, ...]
    cell: CellSpec
    device_kind: str
    backend: str
    threads_per_device: int
    workload: str
    train_inputs: str
    train_targets: str
    test_inputs: str
    test_targets: str
    loader_workers: int
    synthetic: bool
    seed: int
    warmup_steps: int
    steps: int
    epochs: int
    whole_epoch: bool
    timeout_seconds: float
    checkpoint: str = ""
    initial_state: str = ""
    count_flops: bool = False
    probe: bool = False
    trace: bool = False
    start: str = "auto"
    turns: bool = False
    cores: tuple[tuple[int, ...], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        return len(self.cell.places)

    @property
    def breakdown(self) -> bool:
        """Whether the parts of a step are timed, which slows it: such a run never enters a headline figure."""
        return bool(self.cell["role"] == BREAKDOWN)

    def write(self, path: Path) -> None:
        write_text_atomically(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["strategy_files"] = tuple(values["strategy_files"])
        values["cores"] = tuple(tuple(own) for own in values["cores"])
        cell = values["cell"]
        cell["places"] = tuple(Place(**place) for place in cell["places"])
        return cls(**values | {"cell": CellSpec(**cell)})


@dataclass(frozen=True)
class EpochMeasurement:
    """One epoch of one run, over all ranks. Times in seconds, lists by rank; `samples` is what each took, by step.

    turn_seconds: of each turn, by rank; turn_steps: how many steps each had.
    loss_samples: of how many a backward pass began from the loss. optimizer_steps: those really taken. update_norms: L2
    norm of what the epoch changed in the parameters, None where it is no number; changed_tensors: how many of them it
    did. trainable_values: how many values training changes in the strategy's model, trainable_due: in the bare one.
    gradient_names: of the parameters that had one in warm-up. warmup_loss_first: of the first warm-up step, whose
    samples are those of the first timed step of epoch 1. restored: whether the parameters went back to their start in
    the end of warm-up. moved_shares: of the values that a rank holds the share that is another after the epoch, from a
    sample, None where it holds none. end_state: projections of the whole model's parameters after the epoch. rotated_*:
    what differs where ranks read each other's parts (`bench.worker.rotation`). unsettled_hashes: of a sample of the
    parameters that a rank holds, before `settle`.
    """

    epoch: int
    timed_seconds: list[float]
    step_seconds: list[list[float]]
    data_wait: list[list[float]]
    samples: list[list[int]]
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
    turn_seconds: list[list[float]] | None = None
    turn_steps: list[int] | None = None
    warmup_loss_first: float | None = None
    loss_samples: list[int] | None = None
    optimizer_steps: list[int] | None = None
    update_norms: list[float | None] | None = None
    unsettled_hashes: list[str] | None = None
    restored: bool | None = None
    changed_tensors: list[int] | None = None
    trainable_values: list[int] | None = None
    trainable_due: int | None = None
    gradient_names: list[str] | None = None
    moved_shares: list[float | None] | None = None
    end_state: list[float] | None = None
    rotated_distance: float | None = None
    rotated_loss: float | None = None
    correct: int | None = None
    evaluated: int | None = None

    @property
    def run_seconds(self) -> float:
        """Length of the timed region: the sum over the turns of the time of the slowest rank in each."""
        if self.turn_seconds is None:
            return max(self.timed_seconds)
        return sum(max(ranks) for ranks in zip(*self.turn_seconds, strict=True))

    def check(self) -> None:
        """Raise ValueError where the lists are not of as many ranks, no step was timed, or a time is not above 0."""
        by_rank = ("step_seconds", "data_wait", "samples", "parameter_hashes")
        counted = ["loss_samples", "optimizer_steps", "update_norms", "changed_tensors", "trainable_values"]
        counted += ["turn_seconds", "moved_shares"]
        ranks = len(self.timed_seconds)
        for name in (*by_rank, *(name for name in counted if getattr(self, name) is not None)):
            if len(getattr(self, name)) != ranks:
                raise ValueError(f"{name} is of {len(getattr(self, name))} ranks, timed_seconds of {ranks}")
        if not any(self.step_seconds):
            raise ValueError("no step was timed")
        if min(self.timed_seconds) <= 0:
            raise ValueError(f"timed_seconds is {min(self.timed_seconds)}")
        self._check_turns()

    def _check_turns(self) -> None:
        turns = self.turn_seconds
        if turns is None:
            return
        counts = {len(own) for own in turns}
        if len(counts) != 1 or 0 in counts or (self.turn_steps and counts != {len(self.turn_steps)}):
            raise ValueError(f"its ranks timed {', '.join(map(str, sorted(counts)))} turns")
        if min(min(own) for own in turns) <= 0:
            raise ValueError("a turn took no time")
        if self.turn_steps is not None and any(len(own) not in (0, sum(self.turn_steps)) for own in self.step_seconds):
            raise ValueError(f"its turns are of {sum(self.turn_steps)} steps")


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
    host_memory_bytes: int | None
    gradient_bytes: int
    details: dict[str, str]
    warnings: list[str]
    probe_flops_per_second: float | None = None
    probe_bytes_per_second: float | None = None

    def write(self, path: Path) -> None:
        write_text_atomically(path, json.dumps(dataclasses.asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Measurement:
        """Raises ValueError for a file that is none, or whose values no run can give."""
        try:
            found = build(cls, json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(error.strerror or str(error)) from None
        if not found.epochs:
            raise ValueError("it has no epoch")
        for epoch in found.epochs:
            epoch.check()
        return found


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
            return build(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None


def error_path(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def measurement_path(folder: Path) -> Path:
    return folder / "measurement.json"


def heartbeat_path(folder: Path) -> Path:
    return folder / "heartbeat"


def stack_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack.log"


def stderr_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stderr.log"
