"""The contract of a workload: model, loss, optimizer, and how a stored batch becomes the model's input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Workload(ABC):
    """One training task. Everything random in it is drawn from torch's default generator, seeded by the caller."""

    classifies = True
    augments = True

    @abstractmethod
    def make_model(self) -> nn.Module:
        """A fresh model on the CPU."""

    @abstractmethod
    def make_optimizer(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
        """The optimizer over those parameters; `fused` asks for torch's fused kernels in place of its default."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar."""

    def to_input(self, stored: Tensor, flip: Tensor | None) -> Tensor:
        """Stored images to model input, in whole-batch operations on the device where they are.

        stored: (batch, 3, height, width) uint8; flip: (batch,) bool, which images to mirror, or None for none.
        Returns (batch, 3, height, width) float32 in [-1, 1], that is (x / 255 - 0.5) / 0.5.
        """
        if flip is not None:
            stored = torch.where(flip.view(-1, 1, 1, 1), stored.flip(-1), stored)
        return stored.to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)

    def sample_transform(self) -> Callable[[Tensor], Tensor]:
        """One stored sample to model input, as the usual per-image pipeline does it in loader workers."""
        return lambda stored: stored


class CifarClassification(Workload):
    """Cross entropy over class scores."""

    def sample_transform(self) -> Callable[[Tensor], Tensor]:
        from torchvision import transforms

        half = (0.5, 0.5, 0.5)
        return transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(half, half),
            ]
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs: (batch, classes); targets: (batch,) int64."""
        return nn.functional.cross_entropy(outputs, targets)
