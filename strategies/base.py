"""The contract between the harness and a strategy.

What the harness needs of a model it asks by a hook of `Strategy`, and every hook has a default that is right for a
whole model in one process.

Gradients are zeroed at the end of `apply`, before the next forward, as most training scripts do. Zeroing between
forward and backward instead was measured 2 to 16 % faster for bare DDP on CPU; all strategies keep to one order,
so that the comparison is of strategies and not of that choice.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from strategies.context import Context as Context
from strategies.context import CountingScaler, MakeModel, MakeOptimizer
from strategies.places import Asked as Asked
from strategies.places import Place as Place
from strategies.places import Plan as Plan
from strategies.places import Unsupported as Unsupported
from strategies.state import (
    changed,
    distance,
    load_optimizer,
    put_back_buffers,
    to_cpu,
    trainable,
)
from strategies.state import digest as digest
from strategies.state import sample_of as sample_of
from strategies.state import sampled_count as sampled_count


class Strategy(ABC):
    """Base of all strategies. A subclass says how it spreads (`plan`) and how it wraps the model (`wrap`).

    The harness calls the hooks in the order of a run, with one loop for all strategies:

        plan = strategy.plan(asked)                           # parent side, pure; raises Unsupported(reason)
        strategy.build(context, make_model, make_optimizer)   # every rank, from here on
        strategy.load_bare_state(state)                       # where a run starts from a checkpoint
        start = strategy.snapshot()
        for stretch in (warm_up, epoch_1, epoch_2, ...):
            with strategy.epoch():                            # a rank of role "serve" calls strategy.serve() instead
                for batch in stretch:
                    micro = [strategy.place(*part) for part in split(batch, accumulate)]
                    loss = strategy.forward_backward(micro)   # mean loss, or None on a rank where no loss lives
                    strategy.apply()                          # unscale, step, update scaler, zero_grad
            # after warm-up:    strategy.restore(start)
            # in warm-up:       strategy.gradient_names(), once, before apply()
            # around warm-up, before an epoch and after it: strategy.parameter_sample()
            # after an epoch:   strategy.settle(), fingerprint(), update_norm(sample), changed_tensors(sample),
            #                   trainable_count(), skipped_steps()
            # in a breakdown:   snapshot(), the stretch again with strategy.without_exchange(), restore()
            # a whole epoch:    with strategy.evaluating(): outputs = strategy.predict(inputs), for each batch
            # then, of a copy in pieces: bare_state(), and where ranks read parts of their own, a step tried twice
            #                   beside the timed ones: snapshot(), the step, settle(), bare_state(), restore()
        strategy.settle(), strategy.bare_state()              # where a checkpoint is written
        strategy.details(), strategy.warnings()
        strategy.close()

    `trainable_count`, `gradient_names`, `update_norm` and `changed_tensors` answer what the judge of a run wants to
    know. What no hook can say wrongly the harness counts itself: samples whose loss `context.loss` computed, and steps
    of optimizers. Some hooks are collective, as each says: every rank calls them, in this order, so that they may talk
    to each other on the default process group, which the harness itself never uses.

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

    context: Context
    model: nn.Module
    module: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    scaler: CountingScaler
    exchange: bool = True

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

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """A region of steps that exchange no gradients, for measuring what the exchange costs; replicas drift apart.

        Entered in breakdown runs, by every rank. Steps in it raise Unsupported where that cannot be.
        """
        self.exchange = False
        try:
            yield
        finally:
            self.exchange = True

    def epoch(self) -> AbstractContextManager[Any]:
        """A region around the loop over one stretch of steps, entered and left by every rank that trains.

        What must be done before the first step or once the last is over goes here, such as DDP's join. Not timed.
        """
        return nullcontext()

    def serve(self) -> None:
        """What a rank of role `serve` does where others run the loop over a stretch of steps; it is timed with them.

        Returns when the ranks that train are through, which they tell it in `epoch` or in their steps. Such a rank
        calls every collective hook with the others, and none of the loop's.
        """
        raise NotImplementedError(f"{type(self).__name__} plans a rank that serves, and has no serve()")

    def skipped_steps(self) -> int:
        """Optimizer steps that the loss scaler skipped since `build`, `restore` or the last time it was asked.

        Called after each timed epoch. Waits for the device. Not collective: ranks that skip unlike each other differ
        in their parameters, which is what the harness looks for.
        """
        skipped = self.scaler.skipped_steps()
        self.scaler.start_count()
        return skipped

    # -- evaluation -------------------------------------------------------------------------------------------

    def share_buffers(self) -> None:  # noqa: B027, most strategies have nothing to do here
        """Make the buffers (BatchNorm's running statistics) equal over replicas: a step of other hooks. Collective."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A region around `predict`: shares the buffers, then evaluation mode; back to training after. Collective."""
        self.share_buffers()
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor | None:
        """Outputs for one batch of test inputs as `place` returned them: (batch, outputs) float32.

        None on a rank where no output lives, such as the first stage of a pipeline. Called by every rank that reads a
        part, only within `evaluating`; the ranks of one part have the same batches, those of two parts may have
        unlike numbers of them, so it may talk within a part alone.
        """
        with self.context.autocast():
            return self.model(inputs).float()

    # -- state ------------------------------------------------------------------------------------------------

    def settle(self) -> None:  # noqa: B027, most strategies have nothing to do here
        """Bring the ranks to the state that counts: local SGD averages now. Collective.

        Called after each timed epoch, before its `fingerprint`, and before every other `bare_state`.
        """

    def snapshot(self) -> dict[str, Any]:
        """A copy of everything that training changes: residuals and counters of hooks, averagers, remote state too.

        Called after `build`, and after an epoch in breakdown runs and of a copy in pieces. Collective. The model's
        values, by their names, stand under "model" on the devices where they live.
        """
        return {
            "model": {name: _copied(value) for name, value in self.model.state_dict().items()},
            # Those that are not persistent are not in the above.
            "buffers": {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()},
            "further": copy.deepcopy(self.further_state()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "scaler": copy.deepcopy(self.scaler.state_dict()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot of this strategy, in place: wrappers and compiled graphs keep their tensors.

        Called after warm-up and after what a breakdown run tries out; the same snapshot may come again. Collective.
        """
        self.model.load_state_dict(state["model"])
        put_back_buffers(self.model, state["buffers"])
        self.load_further_state(copy.deepcopy(state["further"]))
        # A copy: torch keeps tensors of the same device and type as they are, and steps would change the snapshot.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.scaler.is_enabled():
            # The scale that warm-up has found is no result of training, and stays: the first steps would be skipped.
            settled = self.scaler.state_dict()["scale"]
            self.scaler.load_state_dict({**state["scaler"], "scale": settled})
        self.scaler.start_count()
        self.optimizer.zero_grad(set_to_none=True)

    def further_state(self) -> Any:
        """What else training changes in a strategy of one's own, such as a scheduler's or a counter's state.

        It is part of every `snapshot`, as a deep copy. A model's own such state goes into `get_extra_state` and
        `set_extra_state` of its modules, which torch makes part of `state_dict`.
        """
        return None

    def load_further_state(self, state: Any) -> None:  # noqa: B027, most strategies have nothing to do here
        """Go back to what `further_state` gave. Called in every `restore`."""

    def bare_state(self) -> dict[str, Any]:
        """State of the bare model ("model") and its optimizer ("optimizer"): whole tensors on the CPU.

        Names are those of the unwrapped model, so that it loads strictly. Collective; complete on rank 0, what the
        others return is not used. It shares the buffers first. Called where a checkpoint is written, and of a copy in
        pieces after each timed epoch, when "model" alone is looked at: "optimizer" may be empty without checkpoints.
        """
        self.share_buffers()
        model = to_cpu(self.model.state_dict())
        return {"model": dict(model), "optimizer": to_cpu(self.optimizer.state_dict())}

    def load_bare_state(self, state: Mapping[str, Any]) -> None:
        """Load what `bare_state` gave under any strategy, on any device; every rank is handed the whole. Collective.

        Called after `build`. Raises RuntimeError where names or shapes are not the model's.
        """
        self.model.load_state_dict(state["model"])
        if state.get("optimizer"):
            load_optimizer(self.optimizer, state["optimizer"])

    # -- what a judge of the run asks -------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """sha256 over the bytes of the parameters that this rank holds, by name, first 16 hex digits. Collective.

        Equal among the ranks of a piece where they hold the same, to the bit. Called after each timed epoch.
        """
        return digest(self.model.named_parameters())

    def trainable_count(self) -> int:
        """Number of values that training changes in the whole model. Collective over the pieces."""
        return sum(parameter.numel() for parameter in trainable(self.model))

    def gradient_names(self) -> tuple[str, ...]:
        """Names, in the bare model, of the parameters that hold a gradient now. Collective over the pieces.

        To be asked between `forward_backward` and `apply`, which lets go of the gradients.
        """
        return tuple(name for name, parameter in self.model.named_parameters() if parameter.grad is not None)

    def parameter_sample(self) -> Mapping[str, Tensor]:
        """Some values of each parameter that this rank holds, small and on the CPU, for `update_norm` to go by."""
        return sample_of(self.model.named_parameters())

    def update_norm(self, start: Mapping[str, Tensor]) -> float:
        """L2 norm of the change of the whole model's parameters since `start` was sampled. Collective over pieces.

        An estimate where `parameter_sample` does not hold all values. Called after each timed epoch.
        """
        return distance(self.model.named_parameters(), start)

    def changed_tensors(self, start: Mapping[str, Tensor]) -> int:
        """How many of the whole model's parameters have another value than when `start` was sampled. Collective."""
        return changed(self.model.named_parameters(), start)

    def traffic(self) -> Mapping[str, int]:
        """Bytes that this rank hands to the collectives of one optimizer step, by kind; not collective itself.

        Kinds are `all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `reduce`, ..., as torch calls them. It is
        the size of the tensors that a rank puts in, not what the algorithm then sends, which is the backend's choice:
        a broadcast counts its tensor on every rank. Empty for one process that exchanges nothing.
        """
        return {}

    def close(self) -> None:  # noqa: B027, most strategies have nothing to do here
        """Let go of what `build` made; the process group is the harness's."""


def _copied(value: Any) -> Any:
    """A copy of a tensor where it lives; of anything else that `get_extra_state` gave, a deep copy."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
