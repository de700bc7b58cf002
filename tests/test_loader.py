"""The DataLoader pipeline reads the resident pipeline's samples in its order; the fixed batch repeats one."""

from __future__ import annotations

import pytest
import torch

from bench import workloads
from bench.worker.batches import Samples, TrainingBatches
from bench.worker.loader import FixedBatch, LoaderBatches, PartSampler


def resident(*, part: int = 0, parts: int = 1) -> TrainingBatches:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return TrainingBatches(Samples(images, torch.arange(50)), workloads.load("resnet50-cifar10"), 8, part, parts, 3)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("workers", [0, 1])
def test_it_reads_the_resident_pipeline_s_samples(workers: int, part: int) -> None:
    batches = resident(part=part, parts=2)
    loader = LoaderBatches(batches, workers=workers, pin_memory=False)
    for epoch in (1, 2):
        expected = list(batches.epoch(epoch, steps=6))
        found = list(loader.epoch(epoch, steps=6))
        assert [targets.tolist() for _, targets in found] == [targets.tolist() for _, targets in expected]
        for (own, _), (other, _) in zip(found, expected, strict=True):
            assert own.shape == (4, 3, 32, 32)
            # Mirroring is drawn elsewhere: an image is the resident one or its mirror image.
            for image, wanted in zip(own, other, strict=True):
                assert min(float((image - wanted).abs().max()), float((image - wanted.flip(-1)).abs().max())) < 1e-6


def test_an_epoch_cut_short_begins_anew() -> None:
    loader = LoaderBatches(resident(), workers=1, pin_memory=False)
    first = [targets.tolist() for _, targets in loader.epoch(1, steps=2)]
    assert [targets.tolist() for _, targets in loader.epoch(1, steps=6)][:2] == first


def test_the_sampler_counts_what_it_yields() -> None:
    sampler = PartSampler(resident(part=1, parts=2))
    assert len(list(sampler)) == len(sampler) == 24


def test_the_fixed_batch_is_the_same_every_time() -> None:
    found = list(FixedBatch(resident()).epoch(1, steps=3))
    assert len(found) == 3
    assert all(torch.equal(inputs, found[0][0]) for inputs, _ in found)
