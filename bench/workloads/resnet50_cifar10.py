"""ResNet-50 on CIFAR-10, as the best-known comparison of parallel strategies trains it.

The stem is torchvision's own, made for 224x224 images: a 7x7 convolution of stride 2 and a max pool leave 8x8 of a
32x32 image, and a sample costs about 0.5 GFLOP forward and backward. A stem made for CIFAR (3x3, no pool) would
cost 16 times that; figures of the two cannot be compared, so the stem is part of what this workload's name means.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from bench.workloads.base import CifarClassification


class SequentialResNet(ResNet):
    """torchvision's ResNet, unchanged, that can also name its layers in the order they run."""

    def sequence(self) -> list[nn.Module]:
        """Layers whose composition is `forward`."""
        blocks = [block for stage in (self.layer1, self.layer2, self.layer3, self.layer4) for block in stage]
        head = [self.avgpool, nn.Flatten(1), self.fc]
        return [self.conv1, self.bn1, self.relu, self.maxpool, *blocks, *head]


class ResNet50Cifar10(CifarClassification):
    """SGD with learning rate 0.001 and momentum 0.9, cross entropy, random horizontal flip."""

    def make_model(self) -> nn.Module:
        return SequentialResNet(Bottleneck, [3, 4, 6, 3], num_classes=10)

    def make_optimizer(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, fused=fused or None)
