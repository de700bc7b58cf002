"""A model small enough that a run is all start-up: for tests of the machinery, not for figures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bench.workloads.base import Workload


class Toy(Workload):
    """Linear 10-10, ReLU, linear 10-5; mean squared error; SGD with learning rate 0.001."""

    classifies = False
    augments = False

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))

    def make_optimizer(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.001, fused=fused or None)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs, targets: (batch, 5) float32."""
        return nn.functional.mse_loss(outputs, targets)

    def to_input(self, stored: Tensor, flip: Tensor | None) -> Tensor:
        """Vectors are stored as the model reads them: (batch, 10) float32."""
        return stored
