"""The contract between the harness and a strategy.

The harness runs one loop for all strategies; a strategy is a handful of hooks that it calls in this order:

    plan = strategy.plan(asked)                       # parent side, pure; raises Unsupported(reason)
    strategy.build(context, make_model, make_optimizer)
    for step, batch in enumerate(batches):
        micro = [strategy.place(*part) for part in split(batch, accumulate)]
        loss = strategy.forward_backward(micro)       # mean loss, or None on a rank where no loss lives
        strategy.apply()                              # unscale, step, update scaler, zero_grad
    strategy.close()

Gradients are zeroed at the end of `apply`, before the next forward, as most training scripts do. Zeroing between
forward and backward instead was measured 2 to 16 % faster for bare DDP on CPU; all strategies keep to one order,
so that the comparison is of strategies and not of that choice.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from strategies.places import Asked as Asked
from strategies.places import Place as Place
from strategies.places import Plan as Plan
from strategies.places import Unsupported as Unsupported

_AUTOCAST_TYPES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}

MakeModel = Callable[[], nn.Module]


class MakeOptimizer(Protocol):
    """Makes the workload's optimizer over some parameters, with torch's fused kernels where asked for."""

    def __call__(self, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer: ...


Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Context:
    """What a strategy is told about its place in the run. `devices` are those of this process."""

    rank: int
    world_size: int
    devices: tuple[torch.device, ...]
    loss: Loss
    input_shape: tuple[int, ...]
    precision: str = "fp32"
    memory_format: str = "contiguous"
    compile: str = "off"
    seed: int = 0
    threads_per_device: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_type(self) -> str:
        return self.devices[0].type

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast region of this precision; does nothing for fp32 and tf32."""
        dtype = _AUTOCAST_TYPES.get(self.precision)
        return torch.autocast(self.device_type, dtype=dtype) if dtype else nullcontext()

    def make_scaler(self) -> torch.amp.GradScaler:
        """A loss scaler that scales for float16 and passes everything through otherwise."""
        return torch.amp.GradScaler(self.device_type, enabled=self.precision == "amp-fp16")


class Strategy(ABC):
    """Base of all strategies. A subclass says how it spreads (`plan`) and how it wraps the model (`wrap`).

    Class attributes:
        default_precision: by device type, used where the matrix does not name a precision.
        precisions: those that make sense for this strategy, any other is unsupported; empty where all do.
        default_memory_format, default_compile: used where the matrix does not name them.
        default_options: the strategy's own knobs and their defaults; an option not in here is an error.
        fused_optimizer: whether the optimizer runs torch's fused kernels rather than its default.
        same_work: whether its losses equal `single`'s up to BatchNorm statistics and rounding; false for
            lossy gradient compression, and then the loss gate does not judge it.
        uses_process_group: whether it needs one even for a single process.
        plain_twin: the name of the strategy that this one is at another precision of, as `ddp` is of `ddp_amp`.
        tuned_twin: the name of the strategy that is this one as an expert would set it up, its own if it is that.
    """

    default_precision: ClassVar[Mapping[str, str]] = {"cpu": "fp32", "cuda": "fp32"}
    precisions: ClassVar[Sequence[str]] = ()
    default_memory_format: ClassVar[str] = "contiguous"
    default_compile: ClassVar[str] = "off"
    default_options: ClassVar[Mapping[str, Any]] = {}
    fused_optimizer: ClassVar[bool] = False
    same_work: ClassVar[bool] = True
    uses_process_group: ClassVar[bool] = False
    plain_twin: ClassVar[str] = ""
    tuned_twin: ClassVar[str] = ""

    exchange: bool = True
    """Off only while the harness measures what the exchange of gradients costs: replicas drift apart then."""

    context: Context
    model: nn.Module
    module: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    @abstractmethod
    def plan(self, asked: Asked) -> Plan:
        """The place of each rank over the devices asked for. Pure. Raises Unsupported with the reason."""

    # -- building ---------------------------------------------------------------------------------------------

    def build(self, context: Context, make_model: MakeModel, make_optimizer: MakeOptimizer) -> None:
        """Model, then wrap, then optimizer. `make_model` gives the same weights on every rank."""
        self.context = context
        self.model = self.move(make_model())
        self.module = self.compiled(self.wrap(self.model))
        self.optimizer = make_optimizer(self.model.parameters(), fused=self.fused_optimizer)
        self.scaler = context.make_scaler()

    def move(self, model: nn.Module) -> nn.Module:
        """Put the bare model where it lives."""
        return model.to(self.context.devices[0]).to(memory_format=self.memory_format)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the moved model for parallel execution."""
        return model

    def compiled(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        if self.context.compile == "off":
            return module
        mode = None if self.context.compile == "default" else self.context.compile
        return torch.compile(module, mode=mode)

    @property
    def memory_format(self) -> torch.memory_format:
        last = self.context.memory_format == "channels_last"
        return torch.channels_last if last else torch.contiguous_format

    def option(self, name: str) -> Any:
        """The value of one of `default_options`, as set for this run."""
        return self.context.options.get(name, self.default_options[name])

    def details(self) -> Mapping[str, str]:
        """What the strategy actually used, for the row: such as the BatchNorm layer or the split point."""
        return {}

    def warnings(self) -> Sequence[str]:
        """What a careful reader of this strategy's row should know."""
        return ()

    # -- training ---------------------------------------------------------------------------------------------

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Bring one micro-batch to where the model reads it. inputs: (batch, ...) float32; targets: (batch, ...)."""
        device = self.context.devices[0]
        if inputs.dim() == 4:
            inputs = inputs.to(device, memory_format=self.memory_format, non_blocking=True)
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def sync(self, on: bool) -> AbstractContextManager[Any]:
        """A region in which backward does (`on`) or does not exchange gradients between ranks."""
        return nullcontext()

    def forward_backward(self, micro: Sequence[tuple[Tensor, Tensor]]) -> Tensor | None:
        """Run forward and backward over the micro-batches of one step; gradients are exchanged once, on the last.

        Returns the mean loss over this process's samples as a detached scalar tensor, not yet read from the device.
        """
        total: Tensor | None = None
        for index, (inputs, targets) in enumerate(micro):
            with self.sync(self.exchange and index == len(micro) - 1):
                with self.context.autocast():
                    loss = self.context.loss(self.module(inputs), targets)
                if len(micro) > 1:
                    loss = loss / len(micro)
                self.scaler.scale(loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        return total

    def apply(self) -> None:
        """Unscale, step, update the scaler, and zero the gradients for the next step."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    # -- evaluation and state ---------------------------------------------------------------------------------

    def share_buffers(self) -> None:  # noqa: B027, most strategies have nothing to do here
        """Make the buffers (BatchNorm's running statistics) equal over replicas, before evaluating or saving."""

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Outputs of the bare model for one batch, in evaluation mode: (batch, outputs) float32."""
        with self.context.autocast():
            return self.model(inputs).float()

    def snapshot(self) -> dict[str, Any]:
        """A copy of everything that training changes."""
        return {
            "model": {name: value.detach().clone() for name, value in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "scaler": copy.deepcopy(self.scaler.state_dict()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot, in place: wrappers and compiled graphs keep their tensors."""
        self.model.load_state_dict(state["model"])
        # A copy: torch keeps tensors of the same device and type as they are, and steps would change the snapshot.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.optimizer.zero_grad(set_to_none=True)

    def bare_state(self) -> dict[str, Any]:
        """State of the bare model and its optimizer on the CPU, in the names of the unwrapped model."""
        model = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        return {"model": model, "optimizer": _to_cpu(self.optimizer.state_dict())}

    def load_bare_state(self, state: Mapping[str, Any]) -> None:
        """Load what `bare_state` gave under any strategy, on any device."""
        self.model.load_state_dict(state["model"])
        if state.get("optimizer"):
            self.optimizer.load_state_dict(copy.deepcopy(dict(state["optimizer"])))
            _align_layouts(self.optimizer)

    def close(self) -> None:  # noqa: B027, most strategies have nothing to do here
        """Let go of what `build` made; the process group is the harness's."""


def _align_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the strides of its parameters: fused kernels walk both alike, whatever layout was saved."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_cpu(item) for item in value)
    return value


def split(batch: tuple[Tensor, Tensor], accumulate: int) -> list[tuple[Tensor, Tensor]]:
    """Cut one batch into `accumulate` micro-batches of equal size. Raises ValueError where it does not divide."""
    inputs, targets = batch
    if accumulate == 1:
        return [(inputs, targets)]
    if len(inputs) % accumulate:
        raise ValueError(f"{len(inputs)} samples do not divide into {accumulate} micro-batches")
    return list(zip(inputs.chunk(accumulate), targets.chunk(accumulate), strict=True))


def batch_norm_layers(model: nn.Module) -> list[nn.Module]:
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
        return list(itertools.chain(model.children()))
    raise Unsupported(f"{type(model).__name__} has no sequence() of layers, so it cannot be split over devices")
