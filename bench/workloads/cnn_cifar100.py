"""A small convolutional network on CIFAR-100: little arithmetic for its parameters, so communication shows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from bench.workloads.base import CifarClassification


class CnnCifar100(CifarClassification):
    """Convolutions 3-64-128, adaptive pool to 8x8, 256 hidden, 100 classes; Adam with learning rate 0.001."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((8, 8)),
            nn.Flatten(1),
            nn.Linear(128 * 8 * 8, 256),
            nn.ReLU(),
            nn.Linear(256, 100),
        )

    def make_optimizer(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.001, fused=fused or None)
