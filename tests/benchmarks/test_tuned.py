"""The tuned strategies against the plain ones: a campaign of their own, reported with intervals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.results.summary import campaign_summary

BLOCKS = 5
MATRIX = f"""
dataset = "synthetic"
batch = 256
steps = 4
warmup_steps = 1
blocks = {BLOCKS}
timeout = 600
device = "cpu"

[[cells]]
strategies = ["single", "single_tuned"]
devices = [1]

[[cells]]
strategies = ["ddp", "ddp_tuned"]
devices = [2]
"""
PAIRS = {"single_tuned": "single@1", "ddp_tuned": "ddp@2"}


@pytest.mark.benchmark(group="tuned against plain")
@pytest.mark.timeout(2400)
def test_tuned_against_plain(benchmark: BenchmarkFixture, tmp_path: Path, tell: Callable[[str], None]) -> None:
    (tmp_path / "tuned.toml").write_text(MATRIX, encoding="utf-8")
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "tuned.toml"), "--data-root", str(tmp_path), "--out", str(out), "--quiet"]
    done = subprocess.run([sys.executable, "-m", "bench", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    benchmark.pedantic(lambda: None, rounds=1)
    for strategy, baseline in PAIRS.items():
        summary = campaign_summary(out, baseline=baseline)
        (row,) = summary[summary["strategy"] == strategy].to_dict("records")
        text = f"{row['speedup']:.3f} [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}] (n = {row['pairs']})"
        benchmark.extra_info[f"{strategy} / {baseline}"] = text
        tell(f"{strategy}@{row['devices']} / {baseline} at batch 256, samples/s: {text}")
        assert row["pairs"] == BLOCKS
    control = campaign_summary(out)
    (row,) = control[control["role"] == "control"].to_dict("records")
    tell(f"noise floor of that campaign (A/A): [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]")
