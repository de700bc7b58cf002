"""torch.nn.DataParallel: one process drives N GPUs, scattering the batch and gathering the outputs each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from strategies.base import Context, Strategy, Unsupported
from strategies.places import Asked, Plan, one_process
from strategies.state import bytes_of, trainable


class InAutocast(nn.Module):
    """Opens autocast inside each replica's thread: DataParallel passes on that it is enabled, not its type."""

    def __init__(self, model: nn.Module, context: Context) -> None:
        super().__init__()
        self.model = model
        self._context = context

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ...) on this replica's device."""
        with self._context.autocast():
            outputs: Tensor = self.model(x)
        return outputs


class DataParallel(Strategy):
    """One process, N GPUs. The global batch lives on the first GPU, and so does the loss."""

    def plan(self, asked: Asked) -> Plan:
        if asked.device_type == "cpu" and asked.devices > 1:
            raise Unsupported("torch.nn.DataParallel on CPU forwards to one replica, so more devices change nothing")
        return one_process(asked.devices, copies=asked.devices)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.context.device_type == "cpu":
            return nn.DataParallel(model)
        if self.context.precision.startswith("amp-"):
            model = InAutocast(model, self.context)
        return nn.DataParallel(model, device_ids=[device.index for device in self.context.devices])

    def compiled(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        if self.context.compile != "off" and len(self.context.devices) > 1:
            raise Unsupported(
                "torch.compile does not reach the threads in which torch.nn.DataParallel runs its replicas"
            )
        return super().compiled(module)

    def traffic(self) -> Mapping[str, int]:
        """What one process moves between its GPUs in each micro-batch: the model to the others, the gradients back.

        Counted once for each tensor that goes out from the first GPU (`broadcast`: parameters and buffers) or is summed
        there (`reduce`: gradients), however many GPUs there are. The batch, which is scattered, and the outputs, which
        are gathered, are left out: their size is the workload's, not the model's. Empty on one device.
        """
        if len(self.context.devices) == 1:
            return {}
        times = self.context.accumulate
        return {
            "broadcast": times * (bytes_of(self.model.parameters()) + bytes_of(self.model.buffers())),
            "reduce": times * bytes_of(trainable(self.model)),
        }
