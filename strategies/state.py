"""What the hooks about a model's state are made of: digests, norms, and copies that another device can read."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn


def digest(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over the parameters' bytes in the order of their names, first 16 hex digits."""
    found = hashlib.sha256()
    for name, parameter in sorted(parameters, key=lambda pair: pair[0]):
        found.update(name.encode())
        found.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


SAMPLED = 4096
"""Values of a parameter that a sample of it holds, about; all of one that has fewer."""


def sample_of(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Some values of each parameter, evenly spread over it, as float64 on the CPU: a copy of little size, by name."""
    return {name: _sampled(parameter) for name, parameter in parameters}


def distance(parameters: Iterable[tuple[str, Tensor]], start: Mapping[str, Tensor]) -> float:
    """L2 norm of the parameters less what they were when `start` was sampled, over all values together.

    Estimated from the sampled values: the mean square of a parameter's times its size. Exact for parameters of up to
    SAMPLED values.
    """
    squares = [
        parameter.numel() * float((_sampled(parameter) - start[name]).square().mean())
        for name, parameter in parameters
        if parameter.numel()
    ]
    return math.sqrt(math.fsum(squares))


def changed(parameters: Iterable[tuple[str, Tensor]], start: Mapping[str, Tensor]) -> int:
    """How many of the parameters differ from their sample."""
    return sum(not torch.equal(_sampled(parameter), start[name]) for name, parameter in parameters)


@lru_cache
def _is_prime(number: int) -> bool:
    """1 counts as one here."""
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _stride(count: int) -> int:
    # A prime: one that shares a factor with the length of a row would meet some places of the rows alone.
    return next(n for n in itertools.count(max(1, count // SAMPLED)) if _is_prime(n))


def sampled_count(count: int) -> int:
    """How many values a sample holds of a parameter of `count` values."""
    return len(range(0, count, _stride(count)))


def _sampled(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:: _stride(parameter.numel())].to("cpu", torch.float64, copy=True)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the values of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def to_cpu(value: Any) -> Any:
    """The same nest of dictionaries, lists and tuples with its tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(item) for item in value)
    return value


def put_back_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Give a model's buffers the values they had, in place where their shape is still the same."""
    for name, value in buffers.items():
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        now = getattr(owner, leaf, None)
        if isinstance(now, Tensor) and now.shape == value.shape and now.dtype == value.dtype:
            now.detach().copy_(value)
        else:
            setattr(owner, leaf, value.clone())


IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Settings of an optimizer that say how it computes, not what: they are the strategy's and not the state's."""


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, whatever kernels and layouts it had where it was saved; this one keeps its own."""
    own = [{name: group[name] for name in IMPLEMENTATION if name in group} for group in optimizer.param_groups]
    loaded = copy.deepcopy(dict(state))
    for group, kept in zip(loaded["param_groups"], own, strict=False):
        for name in IMPLEMENTATION:
            group.pop(name, None)
        group.update(kept)
    optimizer.load_state_dict(loaded)
    align_layouts(optimizer)


def align_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the strides of its parameters: fused kernels walk both alike, whatever layout was saved."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
