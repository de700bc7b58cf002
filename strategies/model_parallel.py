"""Model-parallel DDP: each replica is split over two devices of one process, replicas average their gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from strategies.base import Unsupported
from strategies.ddp import DDP
from strategies.layers import sequence_of
from strategies.places import Asked, Plan, data_parallel

DEVICES_PER_REPLICA = 2


class Staged(nn.Module):
    """A model whose layers run in order on several devices; the bare model keeps its own parameter names."""

    def __init__(self, model: nn.Module, stages: list[list[nn.Module]], devices: tuple[torch.device, ...]) -> None:
        super().__init__()
        self.model = model
        # Plain lists, not ModuleLists: the layers belong to `model`, and must not be registered twice.
        self._stages = list(zip(stages, devices, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ...) on the first device; returns the last layer's output on the last device."""
        for layers, device in self._stages:
            x = x.to(device, non_blocking=True)
            for layer in layers:
                x = layer(x)
        return x


def layer_costs(layers: list[nn.Module], input_shape: tuple[int, ...]) -> list[int]:
    """FLOPs of each layer's forward pass for a batch of two, counted by torch.utils.flop_counter."""
    costs = []
    x = torch.zeros(2, *input_shape)
    with torch.no_grad():
        for layer in layers:
            training = layer.training
            layer.eval()
            with FlopCounterMode(display=False) as counter:
                x = layer(x)
            layer.train(training)
            costs.append(counter.get_total_flops())
    return costs


def split_point(costs: list[int]) -> int:
    """Number of layers in the first half, so that the costlier half is as cheap as can be; both get a layer.

    Raises Unsupported for fewer than two layers.
    """
    if len(costs) < 2:
        raise Unsupported(f"a model of {len(costs)} layer cannot be split over two devices")
    return min(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))


class DDPModelParallel(DDP):
    """Replicas = devices / 2; the halves of a replica take turns, so this saves memory rather than time."""

    def plan(self, asked: Asked) -> Plan:
        if asked.devices % DEVICES_PER_REPLICA:
            raise Unsupported(f"ddp_mp needs two devices a replica; {asked.devices} is odd")
        return data_parallel(asked.devices // DEVICES_PER_REPLICA, devices=DEVICES_PER_REPLICA)

    def move(self, model: nn.Module) -> nn.Module:
        layers = sequence_of(model)
        costs = layer_costs(layers, self.context.input_shape)
        cut = split_point(costs)
        self._stages = [layers[:cut], layers[cut:]]
        for stage, device in zip(self._stages, self.context.devices, strict=True):
            for layer in stage:
                layer.to(device).to(memory_format=self.memory_format)
        share = sum(costs[:cut]) / max(sum(costs), 1)
        self._details = {"split": f"{cut}/{len(layers)} layers", "first_half_flops": f"{share:.3f}"}
        return model

    def wrap(self, model: nn.Module) -> nn.Module:
        self._staged = Staged(model, self._stages, self.context.devices)
        return super().wrap(self._staged)

    def device_ids(self) -> None:
        return None

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = super().place(inputs, targets)
        return inputs, targets.to(self.context.devices[-1], non_blocking=True)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        with self.context.autocast():
            return self._staged(inputs).float()

    def details(self) -> Mapping[str, str]:
        return self._details
