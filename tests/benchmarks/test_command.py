"""The command starts at once, reading and summarising scale, and appending does not depend on the file's size."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.campaign import Campaign
from bench.columns import RUN_COLUMNS
from bench.csvfile import append_rows
from bench.summary import summarise

ROUNDS = 7
MOST_SECONDS = {"--help": 0.4, "list": 0.4}
RUNS = 10_000


def row(number: int) -> dict[str, object]:
    """A plausible row: five cells in blocks."""
    devices = number % 5 + 1
    return {
        "schema_version": "1",
        "campaign_id": "generated",
        "run_id": f"r{number}",
        "block": number // 5,
        "order_in_block": number % 5,
        "attempt": 1,
        "environment_id": "e",
        "role": "measure",
        "strategy": "single" if devices == 1 else "ddp",
        "devices": devices,
        "device_kind": "cpu",
        "device_name": "generated",
        "threads_per_device": 1,
        "workload": "toy",
        "dataset": "synthetic",
        "data_pipeline": "resident",
        "precision": "fp32",
        "memory_format": "contiguous",
        "compile": "off",
        "scaling": "strong",
        "batch_global": 60,
        "accumulate": 1,
        "seed": 0,
        "epoch": 1,
        "status": "ok",
        "timed_steps": 10,
        "timed_samples": 600,
        "epoch_samples": 6000,
        "timed_seconds": (1 + number % 7 / 100) / devices,
        "loss_first": 2.3,
        "loss_last": 2.2,
        "gate": "passed",
    }


@pytest.mark.parametrize("words", [["--help"], ["list"]], ids=" ".join)
def test_the_command_starts_at_once(words: list[str], benchmark: BenchmarkFixture, tell: Callable[[str], None]) -> None:
    def start() -> None:
        subprocess.run([sys.executable, "-m", "bench", *words], check=True, stdout=subprocess.DEVNULL)

    benchmark.pedantic(start, rounds=ROUNDS, warmup_rounds=1)
    tell(f"bench {' '.join(words)}: {benchmark.stats.stats.median:.3f} s (median of {ROUNDS})")
    assert benchmark.stats.stats.median < MOST_SECONDS[words[0]]


def test_ten_thousand_rows_are_read_and_summarised(
    benchmark: BenchmarkFixture, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    append_rows(tmp_path / "runs.csv", RUN_COLUMNS, [row(number) for number in range(RUNS)])
    summary = benchmark.pedantic(lambda: summarise(Campaign(tmp_path).runs), rounds=3, warmup_rounds=1)
    assert len(summary) == 5
    tell(f"{RUNS:,} rows read and summarised: {benchmark.stats.stats.median:.2f} s (median of 3)")
    assert benchmark.stats.stats.median < 2


def test_appending_does_not_depend_on_the_size(
    benchmark: BenchmarkFixture, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    def median_seconds(append: Callable[[], None]) -> float:
        times = []
        for _ in range(40):
            begin = time.perf_counter_ns()
            append()
            times.append((time.perf_counter_ns() - begin) * 1e-9)
        return statistics.median(times)

    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    append_rows(small, RUN_COLUMNS, [row(0)])
    append_rows(large, RUN_COLUMNS, [row(number) for number in range(RUNS)])
    ratio = median_seconds(lambda: append_rows(large, RUN_COLUMNS, [row(1)])) / median_seconds(
        lambda: append_rows(small, RUN_COLUMNS, [row(1)])
    )
    benchmark.extra_info |= {"ratio": ratio, "rows": RUNS}
    benchmark.pedantic(lambda: append_rows(large, RUN_COLUMNS, [row(2)]), rounds=10)
    tell(f"append to {RUNS:,} rows / append to one: {ratio:.2f}")
    assert ratio < 2


REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.mark.parametrize("folder", sorted(REFERENCE.glob("*/")), ids=lambda folder: folder.name)
def test_a_reference_report_takes_under_five_seconds(folder: Path, benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    place = tmp_path / folder.name
    shutil.copytree(folder, place)

    def report() -> None:
        subprocess.run([sys.executable, "-m", "bench", "report", str(place)], check=True, stdout=subprocess.DEVNULL)

    benchmark.pedantic(report, rounds=3, warmup_rounds=1)
    assert benchmark.stats.stats.median < 5


@pytest.mark.timeout(300)
def test_a_report_of_ten_thousand_runs_takes_under_fifteen_seconds(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    append_rows(tmp_path / "runs.csv", RUN_COLUMNS, [row(number) for number in range(RUNS)])

    def report() -> None:
        subprocess.run([sys.executable, "-m", "bench", "report", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)

    benchmark.pedantic(report, rounds=1, warmup_rounds=1)
    assert benchmark.stats.stats.median < 15
