"""torch.nn.DataParallel: one process drives N GPUs, scattering the batch and gathering the outputs each step."""

from __future__ import annotations

from torch import nn

from strategies.base import Plan, Strategy, Unsupported


class DataParallel(Strategy):
    """One process, N GPUs. The global batch lives on the first GPU, and so does the loss."""

    def plan(self, devices: int, device_type: str) -> Plan:
        if device_type == "cpu" and devices > 1:
            raise Unsupported("torch.nn.DataParallel on CPU forwards to one replica, so more devices change nothing")
        return Plan(processes=1, devices_per_process=devices, replicas=devices)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.context.device_type == "cpu":
            return nn.DataParallel(model)
        return nn.DataParallel(model, device_ids=[device.index for device in self.context.devices])
