"""`ddp` at two CPU devices against the same loop written by hand, and a run's time outside its timed region."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import campaigns
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.machine.network import loopback_interface
from bench.results.statistics import Interval, paired_log_ratio
from bench.run.launch import launch
from bench.wire import RunSpec
from strategies.places import one_process

STEPS = 4
PAIRS = 5
MOST_RATIO = 1.01
MOST_START = 1.25
SAMPLES = 2048


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("samples")
    generator = np.random.Generator(np.random.PCG64(0))
    np.save(folder / "inputs.npy", generator.integers(0, 256, (SAMPLES, 3, 32, 32), dtype=np.uint8))
    np.save(folder / "targets.npy", generator.integers(0, 10, SAMPLES))
    return folder / "inputs.npy", folder / "targets.npy"


def spec(folder: Path, files: tuple[Path, Path], *, batch: int, steps: int = STEPS, **changes: Any) -> RunSpec:
    inputs, targets = files
    data = {"train_inputs": inputs, "train_targets": targets, "test_inputs": inputs, "test_targets": targets}
    made: RunSpec = campaigns.spec(
        folder,
        data,
        workload="resnet50-cifar10",
        synthetic=True,
        batch_global=batch,
        steps=steps,
        timeout_seconds=600.0,
        **changes,
    )
    return made


def suite_seconds(folder: Path, files: tuple[Path, Path], batch: int, **changes: Any) -> float:
    outcome = launch(spec(folder, files, batch=batch, **changes))
    assert outcome.measurement is not None, outcome.reason
    return max(outcome.measurement.epochs[0].timed_seconds)


def single_seconds(folder: Path, files: tuple[Path, Path], batch: int) -> float:
    return suite_seconds(folder, files, batch, strategy="single", plan=one_process(), backend="")


def start_two(arguments: list[str]) -> None:
    """Two ranks with the environment that the suite's launcher gives them."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback_interface() or "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, *arguments], env=environment | {"RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]


def bare_seconds(folder: Path, files: tuple[Path, Path], batch: int) -> float:
    script = Path(__file__).with_name("bare_ddp.py")
    folder.mkdir()
    start_two([str(script), *map(str, files), str(folder / "store"), str(batch), str(STEPS), str(folder / "seconds")])
    return max(float((folder / f"seconds.{rank}").read_text(encoding="utf-8")) for rank in range(2))


def interval(found: Interval) -> str:
    """A ratio with its 95 % interval and n."""
    return f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}] (n = {found.n})"


@pytest.mark.benchmark(group="ddp against the loop by hand")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", [256, 512])
def test_ddp_is_as_fast_as_by_hand(
    batch: int, benchmark: BenchmarkFixture, files: tuple[Path, Path], tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Fresh processes each time, in turn; the median of the ratios. The efficiency is reported with its interval."""
    runs = {"suite": suite_seconds, "bare": bare_seconds, "single": single_seconds}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(PAIRS):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            found[name].append(runs[name](tmp_path / f"{name}{turn}", files, batch))
    ratios = [own / other for own, other in zip(found["suite"], found["bare"], strict=True)]
    ratio = statistics.median(ratios)
    efficiency = paired_log_ratio([seconds / 2 for seconds in found["single"]], found["suite"])
    benchmark.extra_info |= {"ratio": ratio, "seconds": found, "batch": batch, "efficiency": efficiency.ratio}
    benchmark.pedantic(lambda: None, rounds=1)
    spread = ", ".join(f"{value:.3f}" for value in ratios)
    tell(f"ddp@2 / by hand at batch {batch}: {ratio:.4f} (median of {PAIRS}: {spread})")
    tell(f"ddp@2, efficiency against single at batch {batch}: {interval(efficiency)}")
    assert ratio <= MOST_RATIO


FLOOR = """
import os, sys, time
import torch, torchvision
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=int(os.environ["RANK"]), world_size=2)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.benchmark(group="start-up")
@pytest.mark.timeout(900)
def test_a_run_s_time_outside_its_timed_region(
    benchmark: BenchmarkFixture, files: tuple[Path, Path], tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Against two processes that import torch and torchvision and create a gloo group, started the same way."""
    script = tmp_path / "floor.py"
    script.write_text(FLOOR, encoding="utf-8")
    ratios, outside_seconds, floor_seconds = [], [], []
    for number in range(PAIRS):
        begin = time.perf_counter()
        outcome = launch(spec(tmp_path / f"run{number}", files, batch=64, steps=1))
        assert outcome.measurement is not None
        measured = outcome.measurement
        inside = max(measured.epochs[0].timed_seconds) + measured.warmup_seconds
        outside_seconds.append(time.perf_counter() - begin - inside)
        begin = time.perf_counter()
        start_two([str(script), str(tmp_path / f"store{number}")])
        floor_seconds.append(time.perf_counter() - begin)
        ratios.append(outside_seconds[-1] / floor_seconds[-1])
    ratio = statistics.median(ratios)
    parts = {name: getattr(measured, f"{name}_seconds") for name in ("launch", "init", "build", "warmup")}
    benchmark.extra_info |= {"ratio": ratio, "outside": outside_seconds, "floor": floor_seconds, "last_run": parts}
    benchmark.pedantic(lambda: None, rounds=1)
    tell(
        f"outside the timed region / floor: {ratio:.2f} (n = {PAIRS}; "
        f"{statistics.median(outside_seconds):.2f} s / {statistics.median(floor_seconds):.2f} s; {json.dumps(parts)})"
    )
    assert ratio <= MOST_START
