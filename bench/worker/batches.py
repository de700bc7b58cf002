"""The resident pipeline: the whole dataset once on the device, batches made by whole-batch operations.

Every strategy and device count sees the same samples in the same global order at a given seed. Step s of an epoch
is positions s * G to (s + 1) * G of that epoch's order, and part r of R is the r-th of R equal parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bench.workloads.base import Workload


@dataclass(frozen=True)
class Samples:
    """inputs: (count, ...) uint8 images or float32 vectors; targets: (count,) int64 or (count, outputs) float32."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def load(cls, inputs: Path, targets: Path, device: torch.device) -> Samples:
        """Map the files; on CPU the ranks of a machine share the pages, on a GPU they are copied there once."""
        # Copy-on-write mapping: torch wants a writable array, and nothing ever writes to it.
        return cls(
            torch.from_numpy(np.load(inputs, mmap_mode="c")).to(device),
            torch.from_numpy(np.load(targets, mmap_mode="c")).to(device),
        )

    def __len__(self) -> int:
        return len(self.inputs)


class Batches(Protocol):
    """Where a rank's batches come from."""

    def epoch(self, epoch: int, *, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the first `steps` steps of an epoch."""
        ...


def epoch_order(count: int, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Order and mirroring of one epoch, drawn on the CPU so that they are equal on every device and rank.

    Returns a permutation (count,) int64 and, by position in it, whether to mirror, (count,) bool.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)
    mirror = torch.rand(count, generator=generator) < 0.5
    return order, mirror


@dataclass(frozen=True)
class TrainingBatches:
    """The batches of one part of the global batch."""

    samples: Samples
    workload: Workload
    batch_global: int
    part: int
    parts: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches; the rest of an epoch is dropped, and counted in the row."""
        return len(self.samples) // self.batch_global

    def positions(self, epoch: int, steps: int) -> tuple[Tensor, Tensor]:
        """This part's sample numbers and mirror marks, both (steps, batch_global / parts)."""
        order, mirror = epoch_order(len(self.samples), seed=self.seed, epoch=epoch)
        used = steps * self.batch_global
        mine = self.batch_global // self.parts
        shape = (steps, self.parts, mine)
        return order[:used].view(shape)[:, self.part], mirror[:used].view(shape)[:, self.part]

    def epoch(self, epoch: int, *, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the first `steps` steps of an epoch, each made when it is asked for."""
        device = self.samples.inputs.device
        order, mirror = (part.to(device) for part in self.positions(epoch, steps))
        for chosen, flip in zip(order, mirror, strict=True):
            inputs = self.workload.to_input(self.samples.inputs[chosen], flip if self.workload.augments else None)
            yield inputs, self.samples.targets[chosen]


def split(batch: tuple[Tensor, Tensor], accumulate: int) -> list[tuple[Tensor, Tensor]]:
    """Cut one batch into `accumulate` micro-batches of equal size. Raises ValueError where it does not divide."""
    inputs, targets = batch
    if accumulate == 1:
        return [(inputs, targets)]
    if len(inputs) % accumulate:
        raise ValueError(f"{len(inputs)} samples do not divide into {accumulate} micro-batches")
    return list(zip(inputs.chunk(accumulate), targets.chunk(accumulate), strict=True))


def evaluation_batches(
    samples: Samples, workload: Workload, *, batch: int, part: int, parts: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """One part of the test set, every sample once over all parts, the last batch as small as it comes."""
    first = len(samples) * part // parts
    last = len(samples) * (part + 1) // parts
    for start in range(first, last, batch):
        chosen = slice(start, min(start + batch, last))
        yield workload.to_input(samples.inputs[chosen], None), samples.targets[chosen]


class Counted:
    """Batches as they come, with the number of samples of each: what the loop really took."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches
        self.samples: list[int] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, targets in self._batches:
            self.samples.append(len(targets))
            yield inputs, targets
