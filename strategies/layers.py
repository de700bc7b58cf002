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
    # A subclass with a forward of its own may do anything with its layers.
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return list(model)
    raise Unsupported(f"{type(model).__name__} has no sequence() of layers, so it cannot be split over devices")


_OWN = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def replace_batch_norm(model: nn.Module, layer_type: type[nn.modules.batchnorm._BatchNorm]) -> nn.Module:
    """Put a layer of that type in the place of every BatchNorm layer of a model, in place; returns the model.

    Parameters and buffers are the same objects, frozen ones stay so, and a layer that is used in several places is
    replaced by one. Raises Unsupported for a layer that does more than BatchNorm: with a forward, hooks, parameters,
    buffers or layers of its own, which a replacement would lose.
    """
    made: dict[nn.Module, nn.Module] = {}
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _replaced(model, layer_type)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm) and not isinstance(child, layer_type):
                if child not in made:
                    made[child] = _replaced(child, layer_type)
                parent._modules[name] = made[child]
    return model


def _replaced(
    layer: nn.modules.batchnorm._BatchNorm, layer_type: type[nn.modules.batchnorm._BatchNorm]
) -> nn.modules.batchnorm._BatchNorm:
    what = _more_than_batch_norm(layer)
    if what:
        raise Unsupported(
            f"{type(layer).__name__} has {what}, which a BatchNorm over all replicas in its place would lose"
        )
    made = layer_type(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    made._parameters.update(layer._parameters)
    made._buffers.update(layer._buffers)
    return made.train(layer.training)


def _more_than_batch_norm(layer: nn.modules.batchnorm._BatchNorm) -> str:
    if type(layer).forward is not nn.modules.batchnorm._BatchNorm.forward:
        return "a forward of its own"
    if any(getattr(layer, name, None) for name in _HOOKS):
        return "hooks"
    if {*layer._parameters, *layer._buffers} - _OWN or layer._modules:
        return "parameters, buffers or layers of its own"
    return ""
