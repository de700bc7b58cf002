"""How long a run takes to its first warm-up step, forked and from a fresh interpreter, and how fast both then are."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns import save_arrays, spec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.results.statistics import paired_log_ratio
from bench.run.launch import launch
from bench.run.node import LocalNode, can_fork
from bench.wire import Measurement

STARTS = 20
MOST_SECONDS = 1.0
BATCH, STEPS = 16, 8
WORK = {"workload": "resnet50-cifar10", "batch_global": BATCH, "steps": STEPS, "synthetic": True}

pytestmark = pytest.mark.skipif(not can_fork(), reason="ranks are forked on Linux alone")


def measured(folder: Path, data: dict[str, Path], node: LocalNode, how: str) -> Measurement:
    outcome = launch(spec(folder, data, start=how, **WORK), node=node)
    assert outcome.measurement is not None, outcome.reason
    return outcome.measurement


def to_first_step(found: Measurement) -> float:
    """Seconds from the request for a run to its warm-up: starting, joining the group, building the model."""
    return found.launch_seconds + found.init_seconds + found.build_seconds


@pytest.mark.benchmark(group="start-up")
@pytest.mark.timeout(1800)
def test_a_forked_rank_is_at_its_first_step_within_a_second(
    benchmark: BenchmarkFixture, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """ResNet-50 on two ranks, in turn with fresh interpreters; the first run, which waits for its server, apart."""
    data = save_arrays(tmp_path / "data", workload="resnet50-cifar10", train=BATCH * STEPS)
    seconds: dict[str, list[float]] = {"warm": [], "cold": []}
    timed: dict[str, list[float]] = {"warm": [], "cold": []}
    with LocalNode() as node:
        first = to_first_step(measured(tmp_path / "first", data, node, "warm"))
        for turn in range(STARTS):
            for how in list(seconds)[:: 1 if turn % 2 else -1]:
                found = measured(tmp_path / f"{how}{turn}", data, node, how)
                seconds[how].append(to_first_step(found))
                timed[how].append(max(found.epochs[0].timed_seconds))
    warm, cold = (statistics.median(seconds[how]) for how in ("warm", "cold"))
    speed = paired_log_ratio(timed["cold"], timed["warm"])
    benchmark.extra_info |= {"seconds": seconds, "timed_seconds": timed, "first": first}
    benchmark.pedantic(lambda: None, rounds=1)
    tell(
        f"to the first warm-up step: warm {warm:.2f} s (at most {max(seconds['warm']):.2f}), cold {cold:.2f} s, medians"
    )
    tell(f"of n = {STARTS} each; the first of a block {first:.2f} s")
    tell(f"speed warm / cold: {speed.ratio:.4f} [{speed.low:.4f}, {speed.high:.4f}] (n = {speed.n})")
    assert max(seconds["warm"]) <= MOST_SECONDS
