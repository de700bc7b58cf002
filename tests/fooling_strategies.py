"""Strategies that leave out work, and honest ones that look as if they did."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from strategies.ddp import DDP
from strategies.places import data_parallel
from strategies.single import Single

# -- work left out ----------------------------------------------------------------------------------------------------


class Once(Single):
    """Forward once, the loss kept for ever; no step."""

    def forward_backward(self, micro):
        if not hasattr(self, "kept"):
            self.kept = super().forward_backward(micro)
        return self.kept

    def apply(self):
        pass


class HalfBatch(Single):
    """Trains on the first half of each batch."""

    def forward_backward(self, micro):
        return super().forward_backward([(x[: len(x) // 2], y[: len(y) // 2]) for x, y in micro])


class HalfPlaced(DDP):
    """Leaves half of each batch behind on its way to the device."""

    def place(self, inputs, targets):
        return super().place(inputs[::2], targets[::2])


class NoBackward(Single):
    """Forward on all, no gradient, an optimizer that steps on nothing."""

    def forward_backward(self, micro):
        with torch.no_grad():
            return torch.stack([self.context.loss(self.module(x), y) for x, y in micro]).mean()


class EverySecondStep(Single):
    """Applies every second gradient."""

    count = 0

    def apply(self):
        self.count += 1
        if self.count % 2:
            super().apply()
        else:
            self.optimizer.zero_grad()


class NoRate(Single):
    """A learning rate of 0."""

    def build(self, *arguments):
        super().build(*arguments)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0


class Frozen(Single):
    """Trains the last layer alone."""

    def build(self, context, make_model, make_optimizer):
        def frozen():
            model = make_model()
            for parameter in list(model.parameters())[:-2]:
                parameter.requires_grad_(False)
            return model

        super().build(context, frozen, make_optimizer)


class FewInOptimizer(Single):
    """Computes all gradients and leaves most parameters to no optimizer."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, lambda parameters, **kw: make_optimizer(list(parameters)[-1:], **kw))


class NoExchange(DDP):
    """Ranks that never tell each other their gradients."""

    def forward_backward(self, micro):
        self.exchange = False
        return super().forward_backward(micro)


class ZeroedFirst(Single):
    """Throws the gradients away just before the step."""

    def apply(self):
        self.optimizer.zero_grad(set_to_none=True)
        super().apply()


class Copied(Single):
    """Trains on a copy's outputs: the named model is never touched."""

    def build(self, *arguments):
        super().build(*arguments)
        self.module = copy.deepcopy(self.model)


class NotANumber(Single):
    """Its loss is no number."""

    def forward_backward(self, micro):
        super().forward_backward(micro)
        return torch.tensor(float("nan"))


class Smaller(Single):
    """Another, smaller model in place of the workload's."""

    def build(self, context, make_model, make_optimizer):
        def smaller():
            model = make_model()
            last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
            return nn.Sequential(nn.Flatten(1), nn.LazyLinear(last.out_features))

        def made():
            model = smaller()
            model(torch.zeros(2, *context.input_shape))
            return model

        super().build(context, made, make_optimizer)


class AllSkipped(Single):
    """Steps that find an infinity and are skipped."""

    def build(self, *arguments):
        super().build(*arguments)
        self.scaler = type(self.scaler)("cpu", enabled=True)

    def apply(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(float("inf"))
        super().apply()


class OtherRates(Single):
    """A hundredth of the learning rate."""

    def build(self, *arguments):
        super().build(*arguments)
        for group in self.optimizer.param_groups:
            group["lr"] /= 100


# -- all of the work, in a way of its own -----------------------------------------------------------------------------


class Halves(Single):
    """Backward on two halves, whose gradients are averaged."""

    def forward_backward(self, micro):
        halves = [(a, b) for x, y in micro for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]
        return super().forward_backward(halves)


class Foreach(Single):
    """An optimizer with other kernels."""

    def build(self, *arguments):
        super().build(*arguments)
        for group in self.optimizer.param_groups:
            group["foreach"] = True


class Clipped(DDP):
    """Clips gradients at a bound that none reaches."""

    def apply(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e6)
        super().apply()


class Recomputed(Single):
    """Computes activations twice rather than keeping them."""

    def build(self, *arguments):
        super().build(*arguments)
        model = self.model
        self.module = lambda x: checkpoint(model, x, use_reentrant=False)


class Wrapped(DDP):
    """One more module around the model."""

    def wrap(self, model):
        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model

            def forward(self, x):
                return self.inner(x)

        return super().wrap(Around())


class ByHand(Single):
    """Averages gradients itself in place of DistributedDataParallel."""

    uses_process_group = True

    def plan(self, asked):
        return data_parallel(asked.devices)

    def apply(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.context.world_size
        super().apply()


class Scheduled(Single):
    """A schedule whose state goes back with all else."""

    def build(self, *arguments):
        super().build(*arguments)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)

    def apply(self):
        super().apply()
        self.schedule.step()

    def further_state(self):
        return self.schedule.state_dict()

    def load_further_state(self, state):
        self.schedule.load_state_dict(state)


STRATEGIES = {
    "fool_once": Once,
    "fool_half_batch": HalfBatch,
    "fool_half_placed": HalfPlaced,
    "fool_no_backward": NoBackward,
    "fool_every_second_step": EverySecondStep,
    "fool_no_rate": NoRate,
    "fool_frozen": Frozen,
    "fool_few_in_optimizer": FewInOptimizer,
    "fool_no_exchange": NoExchange,
    "fool_zeroed_first": ZeroedFirst,
    "fool_copied": Copied,
    "fool_not_a_number": NotANumber,
    "fool_smaller": Smaller,
    "fool_all_skipped": AllSkipped,
    "fool_other_rates": OtherRates,
    "honest_halves": Halves,
    "honest_foreach": Foreach,
    "honest_clipped": Clipped,
    "honest_recomputed": Recomputed,
    "honest_wrapped": Wrapped,
    "honest_by_hand": ByHand,
    "honest_scheduled": Scheduled,
}
