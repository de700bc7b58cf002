"""The command starts at once, reading and summarising scale, and appending does not depend on the file's size."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import generated
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import append_rows
from bench.results.folder import Campaign
from bench.results.summary import summarise

ROUNDS = 7
MOST_SECONDS = {"--help": 0.4, "list": 0.4}
RUNS = 10_000


def row(number: int) -> dict[str, object]:
    """A plausible row: five cells in blocks."""
    devices, strategy = number % 5 + 1, "ddp" if number % 5 else "single"
    seconds = (1 + number % 7 / 100) / devices
    place = {"order_in_block": number % 5, "run_id": f"r{number}", "campaign_id": "generated"}
    return generated.row(strategy, devices, number // 5, seconds=seconds, **place)


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
    def seconds(path: Path) -> float:
        begin = time.perf_counter_ns()
        append_rows(path, RUN_COLUMNS, [row(1)])
        return (time.perf_counter_ns() - begin) * 1e-9

    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    append_rows(small, RUN_COLUMNS, [row(0)])
    append_rows(large, RUN_COLUMNS, [row(number) for number in range(RUNS)])
    # In turn, so that what the disk does meanwhile falls on both.
    times = [(seconds(large), seconds(small)) for _ in range(ROUNDS * 10)]
    ratio = statistics.median(own for own, _ in times) / statistics.median(other for _, other in times)
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
