"""What this machine can do at most: its matrix-product rate by precision, and the bandwidth of an all-reduce.

    bench doctor --measure

The result is kept in the user's cache folder under the environment's id; `bench run` copies it into environment.json,
and the report sets what each strategy achieved against it. Medians of `REPEATS` products or all-reduces, after one
that is not counted. Bus bandwidth is 2 (n - 1) / n * bytes / seconds, as nccl-tests defines it for an all-reduce.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.files import write_text_atomically
from bench.homes import cache_folder

if TYPE_CHECKING:
    import torch

REPEATS = 7
SIZES = {"cpu": 2048, "cuda": 8192}
ALL_REDUCE_BYTES = 100 * 2**20
_TYPES = {"fp32": "float32", "tf32": "float32", "amp-bf16": "bfloat16", "amp-fp16": "float16"}
MEASURED_PRECISIONS = {"cpu": ("fp32", "amp-bf16"), "cuda": tuple(_TYPES)}


@dataclass(frozen=True)
class Calibration:
    """Rates of one device in FLOP/s by precision, and of an all-reduce over `ranks` devices in B/s (None for one)."""

    device_kind: str
    threads_per_device: int
    matrix_flops_per_second: dict[str, float]
    all_reduce_bus_bytes_per_second: float | None
    ranks: int
    repeats: int = REPEATS


def calibrate(kind: str, *, threads: int, ranks: int) -> Calibration:
    """Measure now: some seconds on a GPU, about half a minute on a CPU. Imports torch."""
    # As in the ranks of a run: the driver's numbering, before CUDA starts.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rates = {precision: matrix_rate(precision, torch.device(kind)) for precision in MEASURED_PRECISIONS[kind]}
    finally:
        torch.set_num_threads(before)
    return Calibration(kind, threads, rates, bus_rate(kind, ranks, threads) if ranks > 1 else None, ranks)


def matrix_rate(precision: str, device: torch.device, *, size: int | None = None) -> float:
    """FLOP/s of the product of two square matrices: 2 size^3 operations over the median time."""
    import torch

    size = size or SIZES[device.type]
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, _TYPES[precision])) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, _synchronizer(device))


def median_seconds(work: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Median of REPEATS timings of `work`, after one that is not counted; each waits for the device."""
    times = []
    for _ in range(REPEATS + 1):
        synchronize()
        begin = time.perf_counter_ns()
        work()
        synchronize()
        times.append((time.perf_counter_ns() - begin) * 1e-9)
    return statistics.median(times[1:])


def _synchronizer(device: torch.device) -> Callable[[], None]:
    import torch

    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)


def bus_rate(kind: str, ranks: int, threads: int) -> float:
    """Bus bandwidth in B/s of an all-reduce of 100 MiB over `ranks` processes, the slowest rank's."""
    from torch.multiprocessing.spawn import spawn

    with tempfile.TemporaryDirectory() as folder:
        spawn(_all_reduce_rank, args=(kind, ranks, threads, folder), nprocs=ranks)
        seconds = max(float((Path(folder) / f"{rank}").read_text(encoding="utf-8")) for rank in range(ranks))
    return 2 * (ranks - 1) / ranks * ALL_REDUCE_BYTES / seconds


def _all_reduce_rank(rank: int, kind: str, ranks: int, threads: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from bench.machine.network import loopback_variables

    torch.set_num_threads(threads)
    os.environ |= loopback_variables()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=ranks)
    values = torch.ones(ALL_REDUCE_BYTES // 4, device=device)
    seconds = median_seconds(lambda: dist.all_reduce(values), _synchronizer(device))
    (Path(folder) / f"{rank}").write_text(repr(seconds), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def cache_path(environment_id: str) -> Path:
    return cache_folder() / f"calibration-{environment_id}.json"


def save_calibration(calibration: Calibration, environment_id: str) -> Path:
    """Keep a calibration for later campaigns on this machine. Raises OSError where the cache cannot be written."""
    path = cache_path(environment_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps(dataclasses.asdict(calibration), indent=1) + "\n")
    return path


def load_calibration(environment_id: str, *, threads: int) -> dict[str, Any] | None:
    """What was kept for this machine and this number of threads a device, or None."""
    try:
        found: dict[str, Any] = json.loads(cache_path(environment_id).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("threads_per_device") == threads else None


def show(calibration: Calibration) -> list[str]:
    """A line for each rate."""
    lines = [
        f"matrix product at {precision}: {rate / 1e9:.4g} GFLOP/s on one device "
        f"(median of {calibration.repeats}, {calibration.threads_per_device} CPU threads a device)"
        for precision, rate in calibration.matrix_flops_per_second.items()
    ]
    rate = calibration.all_reduce_bus_bytes_per_second
    if rate is not None:
        lines.append(f"all-reduce of 100 MiB over {calibration.ranks} devices: {rate / 1e9:.3g} GB/s bus bandwidth")
    return lines
