"""The machine's own rates: the arithmetic with a known clock, the real measurement for plausibility, the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import homes
from bench.machine import calibrate
from bench.machine.calibrate import Calibration


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(homes.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    return tmp_path


def test_the_rate_is_two_n_cubed_over_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10**12, 500_000_000))
    monkeypatch.setattr(calibrate.time, "perf_counter_ns", lambda: next(ticks))
    assert calibrate.matrix_rate("fp32", torch.device("cpu"), size=10) == pytest.approx(2 * 1000 / 0.5)


def test_the_first_repeat_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 9_000_000_000, *(n for _ in range(calibrate.REPEATS) for n in (0, 1_000_000_000))])
    monkeypatch.setattr(calibrate.time, "perf_counter_ns", lambda: next(ticks))
    assert calibrate.median_seconds(lambda: None, lambda: None) == 1.0


@pytest.mark.timeout(120)
def test_two_ranks_reduce_at_a_rate_that_memory_allows() -> None:
    assert 1e6 < calibrate.bus_rate("cpu", 2, 1) < 1e12


def test_it_is_kept_for_the_machine_and_the_threads(cache: Path) -> None:
    kept = Calibration("cpu", 1, {"fp32": 1e11}, 2e9, 2)
    calibrate.save_calibration(kept, "abc")
    found = calibrate.load_calibration("abc", threads=1)
    assert found is not None
    assert found["matrix_flops_per_second"] == {"fp32": 1e11}
    assert calibrate.load_calibration("abc", threads=2) is None
    assert calibrate.load_calibration("other", threads=1) is None


def test_a_damaged_file_is_no_calibration(cache: Path) -> None:
    calibrate.save_calibration(Calibration("cpu", 1, {}, None, 1), "abc").write_text("{", encoding="utf-8")
    assert calibrate.load_calibration("abc", threads=1) is None


def test_every_rate_is_shown() -> None:
    lines = calibrate.show(Calibration("cpu", 1, {"fp32": 1e11, "amp-bf16": 3e11}, 2e9, 2))
    assert lines[0].startswith("matrix product at fp32: 100 GFLOP/s on one device")
    assert lines[2] == "all-reduce of 100 MiB over 2 devices: 2 GB/s bus bandwidth"
