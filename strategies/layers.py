"""The layers of a bare model: those with BatchNorm, and the order in which they run where that is a sequence."""

from __future__ import annotations

from torch import nn

from strategies.places import Unsupported


def batch_norm_layers(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Every BatchNorm layer of a model."""
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def sequence_of(model: nn.Module) -> list[nn.Module]:
    """The model as layers that run one after another: its own `sequence()`, or the children of an nn.Sequential.

    Raises Unsupported where the model has neither.
    """
    own = getattr(model, "sequence", None)
    if callable(own):
        return list(own())
    if isinstance(model, nn.Sequential):
        return list(model.children())
    raise Unsupported(f"{type(model).__name__} has no sequence() of layers, so it cannot be split over devices")
