"""Arithmetic of a workload, counted by torch and not by hand."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bench import workloads

_BATCH = 2


def flops_per_sample(workload_name: str) -> float:
    """FLOPs of forward and backward for one sample, multiply and add counted apart (torch.utils.flop_counter).

    Counted on the meta device: shapes only, nothing is computed. Element-wise work and BatchNorm are not counted.
    """
    workload = workloads.load(workload_name)
    shape = workloads.find(workload_name).input_shape
    model = workload.make_model().to("meta").train()
    inputs = torch.empty(_BATCH, *shape, device="meta")
    with FlopCounterMode(display=False) as counter:
        outputs = [value for value in tree_leaves(model(inputs)) if isinstance(value, torch.Tensor)]
        torch.stack([value.float().sum() for value in outputs if value.requires_grad]).sum().backward()
    return counter.get_total_flops() / _BATCH
