"""What a strategy is told about its run, and the scaler that counts which optimizer steps were real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from strategies.places import Place, Plan

_AUTOCAST_TYPES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}

MakeModel = Callable[[], nn.Module]
Loss = Callable[[Tensor, Tensor], Tensor]


class MakeOptimizer(Protocol):
    """Makes the workload's optimizer over some parameters, with torch's fused kernels where asked for."""

    def __call__(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer: ...


class CountingScaler(torch.amp.GradScaler):
    """A loss scaler that knows how many of the optimizer steps it was asked for it has skipped."""

    def __init__(self, device: str, *, enabled: bool) -> None:
        super().__init__(device, enabled=enabled)
        self._counted: set[torch.optim.Optimizer] = set()
        self.start_count()

    def start_count(self) -> None:
        """Count from here on."""
        self._asked = 0
        self._taken: Any = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if self.is_enabled():
            if optimizer not in self._counted:
                self._counted.add(optimizer)
                optimizer.register_step_post_hook(self._count)
            self._asked += 1
        return super().step(optimizer, *args, **kwargs)

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A fused optimizer is always called and skips in its own kernel; the count stays on the device.
        found = getattr(optimizer, "found_inf", None)
        self._taken = self._taken + (1 if found is None else (found == 0).sum())

    def skipped_steps(self) -> int:
        """Steps skipped since the count began, 0 without scaling. Waits for the device."""
        return self._asked - int(self._taken)


@dataclass(frozen=True)
class Context:
    """What a strategy is told about its place in the run.

    rank: this process; its place is `plan.places[rank]`. plan: the places of all ranks.
    devices: those of this process.
    loss: from outputs and targets to the mean loss over the batch, a scalar.
    input_shape: of one sample as the model reads it, without the batch.
    accumulate: micro-batches of an optimizer step.
    options: those of the strategy's options that are not at their default.
    """

    rank: int
    plan: Plan
    devices: tuple[torch.device, ...]
    loss: Loss
    input_shape: tuple[int, ...]
    precision: str = "fp32"
    memory_format: str = "contiguous"
    compile: str = "off"
    seed: int = 0
    threads_per_device: int = 1
    accumulate: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self.plan.processes

    @property
    def place(self) -> Place:
        """The place of this rank."""
        return self.plan.places[self.rank]

    @property
    def device_type(self) -> str:
        return self.devices[0].type

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast region of this precision; does nothing for fp32 and tf32."""
        dtype = _AUTOCAST_TYPES.get(self.precision)
        return torch.autocast(self.device_type, dtype=dtype) if dtype else nullcontext()

    def make_scaler(self) -> CountingScaler:
        """A loss scaler that scales for float16 and passes everything through otherwise."""
        return CountingScaler(self.device_type, enabled=self.precision == "amp-fp16")
