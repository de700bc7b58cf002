"""Is the harness what is being measured? Its loop against the same steps written by hand.

    .venv/bin/pytest tests/benchmarks --benchmark-only

Needs a quiet machine and real cores, so it is no part of the ordinary tests.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench import heartbeat, workloads
from bench.worker.batches import Samples, TrainingBatches, epoch_order
from bench.worker.loop import run_steps
from bench.worker.timing import ClockTimer
from strategies.base import Context
from strategies.places import one_process
from strategies.single import Single

BATCH = 128
STEPS = 3
PAIRS = 10
LIMIT = 1.01


@pytest.fixture(scope="module")
def samples() -> Samples:
    generator = np.random.Generator(np.random.PCG64(0))
    images = torch.from_numpy(generator.integers(0, 256, (BATCH * STEPS, 3, 32, 32), dtype=np.uint8))
    return Samples(images, torch.from_numpy(generator.integers(0, 10, BATCH * STEPS)))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def harness(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], float]:
    """Some steps through the harness's loop, timer, pipeline and strategy; returns the timed seconds."""
    workload = workloads.load("resnet50-cifar10")
    strategy = Single()
    context = Context(0, one_process(), (torch.device("cpu"),), workload.loss, (3, 32, 32))
    torch.manual_seed(0)
    strategy.build(context, workload.make_model, workload.make_optimizer)
    batches = TrainingBatches(samples, workload, BATCH, 0, 1, 0)
    path = tmp_path_factory.mktemp("heartbeat") / "heartbeat"
    heartbeat.create(path, 1)
    beat = heartbeat.Heartbeat(path, 0)

    def steps() -> float:
        timer = ClockTimer(lambda: None, lambda: None)
        timing, _ = run_steps(strategy, batches.epoch(1, steps=STEPS), accumulate=1, timer=timer, heartbeat=beat)
        return timing.total

    return steps


@pytest.fixture(scope="module")
def bare(samples: Samples) -> Callable[[], float]:
    """The same steps as a person would write them; returns the seconds between two clock readings."""
    workload = workloads.load("resnet50-cifar10")
    torch.manual_seed(0)
    model = workload.make_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def steps() -> float:
        order, mirror = epoch_order(len(samples), seed=0, epoch=1)
        begin = time.perf_counter_ns()
        for step in range(STEPS):
            chosen = slice(step * BATCH, (step + 1) * BATCH)
            images, flip = samples.inputs[order[chosen]], mirror[chosen].view(-1, 1, 1, 1)
            images = torch.where(flip, images.flip(-1), images).float().mul_(2 / 255).sub_(1)
            loss = criterion(model(images), samples.targets[order[chosen]])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter_ns() - begin) * 1e-9

    return steps


@pytest.mark.benchmark(group="harness against bare loop")
@pytest.mark.parametrize("which", ["bare", "harness"])
def test_steps(which: str, benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    benchmark.pedantic(request.getfixturevalue(which), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="ratio")
@pytest.mark.timeout(900)
def test_harness_costs_at_most_one_percent(
    benchmark: BenchmarkFixture,
    harness: Callable[[], float],
    bare: Callable[[], float],
    tell: Callable[[str], None],
) -> None:
    """Alternating, so that what the machine does meanwhile falls on both; the median of the pairs' ratios."""
    harness()
    bare()
    ratios = []
    for pair in range(PAIRS):
        order = (harness, bare) if pair % 2 else (bare, harness)
        seconds = {function: function() for function in order}
        ratios.append(seconds[harness] / seconds[bare])
    ratio = statistics.median(ratios)
    benchmark.extra_info |= {"ratio": ratio, "pairs": PAIRS, "steps": STEPS, "batch": BATCH, "ratios": ratios}
    benchmark.pedantic(harness, rounds=1)
    tell(f"harness / bare loop: {ratio:.4f} (median of {PAIRS} pairs, {min(ratios):.3f} to {max(ratios):.3f})")
    assert ratio <= LIMIT
