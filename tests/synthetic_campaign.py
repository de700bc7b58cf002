"""Generated campaigns with known structure, for the tests of charts, report and notebook: no clock, no torch.

Every number comes from a seeded generator, so the same options give the same bytes.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.results.csvfile import write_rows

NAMES = (
    ("single", "fp32"),
    ("ddp", "fp32"),
    ("ddp_amp", "amp-bf16"),
    ("dp", "fp32"),
    ("fsdp2", "fp32"),
    ("ddp_syncbn", "fp32"),
    ("ddp_zero1", "fp32"),
    ("ddp_bf16_hook", "fp32"),
    ("ddp_static_graph", "fp32"),
    ("fsdp2_amp", "amp-bf16"),
    ("ddp_mp", "fp32"),
    ("pipeline_1f1b", "fp32"),
    ("single_tuned", "amp-bf16"),
)
"""Registry names and precisions, the first `strategies` of them in a campaign; `single` only on one device."""

PLAIN = {"ddp_amp": "ddp", "fsdp2_amp": "fsdp2"}
TUNED = {"single": "single_tuned", "single_tuned": "single_tuned"}
"""What a run states of the strategies that belong to its own."""

OVERHEAD = {"ddp": 0.02, "dp": 0.35, "fsdp2": 0.06, "ddp_syncbn": 0.09, "ddp_mp": 0.25, "pipeline_1f1b": 0.3}
GAIN = {"amp-bf16": 1.6}
EPOCH_SAMPLES = 50_000


@dataclass(frozen=True)
class Options:
    """What to generate. `failures` maps (strategy, devices) to (status, reason); `noise` is a relative sigma."""

    strategies: int = 4
    devices: tuple[int, ...] = (1, 2)
    blocks: int = 5
    epochs: int = 1
    scalings: tuple[str, ...] = ("strong",)
    device_kind: str = "cpu"
    failures: tuple[tuple[str, int, str, str], ...] = (("dp", 2, "unsupported", "DataParallel needs GPUs"),)
    control: bool = True
    breakdown: bool = True
    tuned: bool = False
    noise: float = 0.01
    seed: int = 7
    environment_id: str = "env-0001"
    campaign_id: str = "campaign-1"
    reason: str = ""
    workload: str = "resnet18"

    @property
    def device_name(self) -> str:
        return "Generated 2-core CPU" if self.device_kind == "cpu" else "Generated GPU 80 GB"


@dataclass(frozen=True)
class Cell:
    strategy: str
    precision: str
    devices: int
    scaling: str
    role: str = "measure"


def true_speedup(cell: Cell) -> float:
    """Samples/s over those of `single` on one device, before noise."""
    overhead = OVERHEAD.get(cell.strategy, 0.05)
    scale = cell.devices / (1 + overhead * (cell.devices - 1) ** 0.9) if cell.devices > 1 else 1 - overhead / 10
    if cell.strategy == "single":
        scale = 1.0
    if cell.strategy == "single_tuned":
        scale = 1.15
    return scale * GAIN.get(cell.precision, 1.0)


def cells(options: Options) -> list[Cell]:
    """The matrix: `single` on one device, everything else on all device counts above one where there are some."""
    chosen = [*NAMES[: options.strategies], *(NAMES[-1:] if options.tuned else ())]
    found = []
    for scaling in options.scalings:
        for strategy, precision in chosen:
            counts = (1,) if strategy.startswith("single") else options.devices
            found += [Cell(strategy, precision, count, scaling) for count in counts]
        if options.control:
            found.append(Cell("single", "fp32", 1, scaling, "control"))
    return found


def _facts(cell: Cell, options: Options) -> dict[str, Any]:
    batch = 256 if cell.scaling == "strong" else 256 * cell.devices
    return {
        "schema_version": "1",
        "campaign_id": options.campaign_id,
        "attempt": 1,
        "environment_id": options.environment_id,
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "role": cell.role,
        "strategy": cell.strategy,
        "devices": cell.devices,
        "processes": 1 if cell.strategy in ("single", "dp") else cell.devices,
        "replicas": cell.devices,
        "device_kind": options.device_kind,
        "device_name": options.device_name,
        "threads_per_device": 1,
        "workload": options.workload,
        "dataset": "cifar10",
        "data_pipeline": "memory",
        "precision": cell.precision,
        "memory_format": "contiguous",
        "compile": "off",
        "scaling": cell.scaling,
        "batch_global": batch,
        "batch_per_part": batch // cell.devices,
        "accumulate": 1,
        "same_work": True,
        "plain_twin": PLAIN.get(cell.strategy, ""),
        "tuned_twin": TUNED.get(cell.strategy, ""),
        "seed": 1,
        "epoch_samples": EPOCH_SAMPLES,
    }


def _timing(cell: Cell, options: Options, rng: random.Random, block: int) -> dict[str, Any]:
    base = 400.0 if options.device_kind == "cpu" else 3800.0
    drift = 1 - 0.002 * block
    rate = base * true_speedup(cell) * drift * rng.lognormvariate(0, options.noise)
    batch = 256 if cell.scaling == "strong" else 256 * cell.devices
    steps = EPOCH_SAMPLES // batch
    samples = steps * batch
    seconds = samples / rate
    return {
        "status": "ok",
        "gate": "passed",
        "warmup_steps": 5,
        "timed_steps": steps,
        "timed_samples": samples,
        "dropped_samples": EPOCH_SAMPLES - samples,
        "epoch_measured": True,
        "timed_seconds": seconds,
        "timed_seconds_min_rank": seconds * 0.999,
        "epoch_seconds": EPOCH_SAMPLES / rate,
        "samples_per_second": rate,
        "step_seconds_median": seconds / steps,
        "step_seconds_p95": seconds / steps * 1.1,
        "step_seconds_cov": 0.03,
        "data_wait_seconds": seconds * 0.03,
        "launch_seconds": 2.5 + 0.2 * cell.devices + rng.random() * 0.1,
        "init_seconds": 0.3 * (cell.devices > 1),
        "build_seconds": 0.8,
        "warmup_seconds": 3.0 + rng.random() * 0.2,
        "eval_seconds": 1.2,
        "host_peak_rss_bytes": int(7e8 * cell.devices),
        "foreign_cpu_fraction": 0.01,
    }


def _outcome(cell: Cell, options: Options, rng: random.Random, epoch: int) -> dict[str, Any]:
    found: dict[str, Any] = {"loss_first": 2.3, "loss_last": 1.5 / epoch}
    if cell.role == "measure":
        # Fewer updates an epoch cost accuracy under weak scaling, none under strong.
        updates = epoch / (cell.devices if cell.scaling == "weak" else 1)
        found["test_accuracy"] = round(0.75 * updates / (updates + 1.2) + rng.gauss(0, 0.004), 4)
    if options.device_kind == "cuda":
        full = int((6e9 if cell.precision == "fp32" else 4e9) / (cell.devices if cell.strategy != "dp" else 1) + 1e9)
        found["peak_memory_bytes_max"] = full
        found["peak_memory_bytes_min"] = int(full * (0.4 if cell.strategy == "dp" else 0.99))
    return found


def _breakdown(cell: Cell, row: dict[str, Any]) -> dict[str, Any]:
    seconds = row["timed_seconds"]
    comm = seconds * (0.02 + 0.04 * (cell.devices > 1))
    return {
        "role": "breakdown",
        "forward_backward_seconds": seconds * 0.85,
        "optimizer_seconds": seconds * 0.05,
        "exposed_comm_seconds": comm if cell.devices > 1 else 0.0,
    }


def run_rows(options: Options) -> Iterator[dict[str, Any]]:
    """All rows of runs.csv, block by block, each block in a random order of its own."""
    rng = random.Random(options.seed)
    failing = {(name, count): (status, reason) for name, count, status, reason in options.failures}
    clock = 0
    for block in range(options.blocks):
        order = cells(options)
        rng.shuffle(order)
        if options.breakdown and block == 0:
            order += [Cell(c.strategy, c.precision, c.devices, c.scaling, "breakdown") for c in cells(options)]
        seen = set()
        for position, cell in enumerate(order):
            run_id = f"{options.campaign_id}-{block:03d}-{position:03d}"
            clock += 30
            start = (
                f"2026-03-{1 + clock // 86400:02d}T{clock // 3600 % 24:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}Z"
            )
            where = {"run_id": run_id, "block": block, "order_in_block": position, "utc_start": start}
            failure = failing.get((cell.strategy, cell.devices)) if cell.role != "control" else None
            if failure:
                if (cell, "failed") not in seen:
                    reason = options.reason or failure[1]
                    yield {**_facts(cell, options), **where, "epoch": 1, "status": failure[0], "reason": reason}
                seen.add((cell, "failed"))
                continue
            for epoch in range(1, options.epochs + 1):
                row = {**_facts(cell, options), **where, "epoch": epoch, **_timing(cell, options, rng, block)}
                row.update(_outcome(cell, options, rng, epoch))
                if cell.role == "breakdown":
                    row.update(_breakdown(cell, row))
                yield row


def step_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Three steps of each run that is ok, on rank 0."""
    for row in rows:
        if row["status"] == "ok":
            for step in range(3):
                yield {
                    "run_id": row["run_id"],
                    "rank": 0,
                    "epoch": row["epoch"],
                    "step": step,
                    "seconds": row["step_seconds_median"],
                    "data_wait_seconds": row["step_seconds_median"] * 0.03,
                }


def environment(options: Options) -> dict[str, Any]:
    return {
        "environment_id": options.environment_id,
        "identity": {
            "torch": "2.99.0",
            "python": "3.12.0",
            "device_kind": options.device_kind,
            "device_name": options.device_name,
        },
        "volatile": {"load_average": 0.1},
    }


def write_campaign(folder: Path, options: Options | None = None, **changes: Any) -> Path:
    """Write runs.csv, steps.csv, environment.json and matrix.toml into the folder and return it."""
    options = options or Options(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(run_rows(options))
    write_rows(folder / "runs.csv", RUN_COLUMNS, rows)
    write_rows(folder / "steps.csv", STEP_COLUMNS, step_rows(rows))
    (folder / "environment.json").write_text(json.dumps(environment(options), indent=1) + "\n")
    (folder / "matrix.toml").write_text('blocks = 5\n\n[campaign]\ncommand = "bench run cpu --blocks 5"\n')
    return folder
