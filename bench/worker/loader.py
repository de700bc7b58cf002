"""The other pipelines: a DataLoader as people usually train with, and one fixed batch for no pipeline at all."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from bench.kinship import die_with_parent
from bench.worker.batches import TrainingBatches


class StoredSamples(Dataset[tuple[Tensor, Tensor]]):
    """One sample at a time, transformed when it is asked for."""

    def __init__(self, inputs: Tensor, targets: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self._inputs = inputs
        self._targets = targets
        self._transform = transform

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._transform(self._inputs[index]), self._targets[index]


class PartSampler(Sampler[int]):
    """One part's sample numbers, epoch by epoch, in the order that the resident pipeline takes them."""

    def __init__(self, batches: TrainingBatches) -> None:
        self._batches = batches
        self._epoch = 0
        self._steps = batches.steps_per_epoch

    def set_epoch(self, epoch: int, *, steps: int) -> None:
        """Which epoch comes next, and how many of its steps: workers fetch nothing that nobody will take."""
        self._epoch, self._steps = epoch, steps

    def __iter__(self) -> Iterator[int]:
        order, _ = self._batches.positions(self._epoch, self._steps)
        return iter(order.reshape(-1).tolist())

    def __len__(self) -> int:
        return self._steps * self._batches.batch_global // self._batches.parts


def _end_with_rank(rank_pid: int, worker: int) -> None:
    """Tie a loader worker to its rank: what it inherits does not hold for it, and torch has it look every 5 s only."""
    if multiprocessing.get_start_method() != "forkserver":
        die_with_parent(rank_pid)


class LoaderBatches:
    """A DataLoader over torchvision transforms: the same samples as the resident pipeline, image by image.

    Mirroring is drawn by the workers, so it differs from the resident pipeline's.
    """

    def __init__(self, resident: TrainingBatches, *, workers: int, pin_memory: bool) -> None:
        self._sampler = PartSampler(resident)
        samples = resident.samples
        self._loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            StoredSamples(samples.inputs, samples.targets, resident.workload.sample_transform()),
            batch_size=resident.batch_global // resident.parts,
            sampler=self._sampler,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            drop_last=True,
            worker_init_fn=partial(_end_with_rank, os.getpid()),
        )

    def epoch(self, epoch: int, *, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (batch, ...) float32 and targets of the first `steps` steps, on the host."""
        self._sampler.set_epoch(epoch, steps=steps)
        yield from self._loader


class FixedBatch:
    """The epoch's first batch again and again: no data pipeline at all, so what remains is compute and exchange."""

    def __init__(self, resident: TrainingBatches) -> None:
        self._batch = next(resident.epoch(0, steps=1))

    def epoch(self, epoch: int, *, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same inputs and targets `steps` times, on the device."""
        for _ in range(steps):
            yield self._batch
