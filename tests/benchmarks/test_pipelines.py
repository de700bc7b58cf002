"""The resident pipeline against a DataLoader with torchvision transforms, and its share of an epoch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench import workloads
from bench.worker.batches import Batches, Samples, TrainingBatches
from bench.worker.loader import LoaderBatches

BATCH = 256
STEPS = 16
LEAST_RATIO = 10
MOST_WAIT = 0.01


@pytest.fixture(scope="module")
def resident() -> TrainingBatches:
    torch.set_num_threads(1)
    generator = np.random.Generator(np.random.PCG64(0))
    images = torch.from_numpy(generator.integers(0, 256, (BATCH * STEPS, 3, 32, 32), dtype=np.uint8))
    targets = torch.from_numpy(generator.integers(0, 10, BATCH * STEPS))
    return TrainingBatches(Samples(images, targets), workloads.load("resnet50-cifar10"), BATCH, 0, 1, 0)


def images_per_second(batches: Batches, epoch: int) -> float:
    begin = time.perf_counter_ns()
    for inputs, _ in batches.epoch(epoch, steps=STEPS):
        assert inputs.shape == (BATCH, 3, 32, 32)
    return BATCH * STEPS / ((time.perf_counter_ns() - begin) * 1e-9)


@pytest.mark.benchmark(group="pipelines on one core")
def test_resident_is_ten_times_the_loader(
    benchmark: BenchmarkFixture, resident: TrainingBatches, tell: Callable[[str], None]
) -> None:
    """Both in this process on one thread, so that it is images a second and core; the median of the pairs' ratios."""
    loader = LoaderBatches(resident, workers=0, pin_memory=False)
    pairs = [(images_per_second(resident, epoch), images_per_second(loader, epoch)) for epoch in range(6)][1:]
    ratio = statistics.median(own / other for own, other in pairs)
    rates = [statistics.median(column) for column in zip(*pairs, strict=True)]
    benchmark.extra_info |= {
        "ratio": ratio,
        "resident_images_per_second": rates[0],
        "loader_images_per_second": rates[1],
    }
    benchmark.pedantic(images_per_second, args=(resident, 9), rounds=5)
    tell(f"resident / loader: {ratio:.1f} ({rates[0]:,.0f} / {rates[1]:,.0f} images/s a core, n = {len(pairs)})")
    assert ratio >= LEAST_RATIO


@pytest.mark.benchmark(group="data wait")
def test_waiting_for_data_is_one_percent_of_a_step(
    benchmark: BenchmarkFixture, resident: TrainingBatches, tell: Callable[[str], None]
) -> None:
    """Time to make a batch over the time of a ResNet-50 step on it, both on one core."""
    workload = resident.workload
    model = workload.make_model().train()
    optimizer = workload.make_optimizer(model.parameters())

    def steps(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
        waits = total = 0.0
        mark = time.perf_counter_ns()
        for inputs, targets in batches:
            ready = time.perf_counter_ns()
            workload.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            end = time.perf_counter_ns()
            waits, total, mark = waits + ready - mark, total + end - mark, end
        return waits, total

    steps(resident.epoch(0, steps=1))
    waits, total = steps(resident.epoch(1, steps=6))
    share = waits / total
    benchmark.extra_info |= {"share": share}
    benchmark.pedantic(lambda: next(resident.epoch(2, steps=1)), rounds=5)
    tell(f"data wait: {share:.2%} of 6 steps at batch {BATCH}")
    assert share <= MOST_WAIT
