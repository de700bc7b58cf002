"""The registry of workloads: a table of names and facts, so that listing and planning need no torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.workloads.base import Workload


@dataclass(frozen=True)
class WorkloadEntry:
    """What planning must know of a workload.

    `data_kind` names the samples it wants, `batch` is its usual global batch, `input_shape` one sample's shape as
    the model sees it, and `batch_norm` whether a part needs at least two samples a micro-batch.
    """

    name: str
    module: str
    attribute: str
    data_kind: str
    batch: int
    input_shape: tuple[int, ...]
    batch_norm: bool
    description: str


WORKLOADS = {
    entry.name: entry
    for entry in (
        WorkloadEntry(
            "resnet50-cifar10",
            "bench.workloads.resnet50_cifar10",
            "ResNet50Cifar10",
            "cifar10",
            256,
            (3, 32, 32),
            True,
            "torchvision's ResNet-50 with its own stem (7x7 stride 2, max pool) on 32x32 images, SGD",
        ),
        WorkloadEntry(
            "cnn-cifar100",
            "bench.workloads.cnn_cifar100",
            "CnnCifar100",
            "cifar100",
            256,
            (3, 32, 32),
            False,
            "two convolutions (64, 128) and two linear layers on CIFAR-100, Adam",
        ),
        WorkloadEntry(
            "toy",
            "bench.workloads.toy",
            "Toy",
            "toy",
            64,
            (10,),
            False,
            "linear 10-10, ReLU, linear 10-5 on generated vectors, mean squared error, SGD: for fast tests",
        ),
    )
}


def find(name: str) -> WorkloadEntry:
    """The entry of that name. Raises UserError listing the known ones."""
    if name not in WORKLOADS:
        raise UserError(f"unknown workload {name!r}; known are {', '.join(WORKLOADS)}", keys=("workload",))
    return WORKLOADS[name]


def load(name: str) -> Workload:
    """The workload itself; imports torch."""
    entry = find(name)
    workload: Workload = getattr(importlib.import_module(entry.module), entry.attribute)()
    return workload
