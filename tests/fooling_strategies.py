"""Test material: strategies that skip the work (`fool_`) and unusual ones that do all of it (`honest_`)."""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from strategies.context import CountingScaler
from strategies.ddp import DDP
from strategies.single import Single

# -- what several share -----------------------------------------------------------------------------------------


def some(count, cut):
    """About one `cut`-th of `count` rows, at least two where there are (BatchNorm)."""
    return min(count, max(2, count // cut))


def split_last(model):
    """Parameters: all but the last two tensors, and the last two (weight and bias of the head)."""
    parameters = list(model.parameters())
    return parameters[:-2], parameters[-2:]


def zero_gradients(model):
    """A gradient of zeros wherever there is none."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def keeps_shape(module):
    """Whether an identity fits in the place of this layer."""
    if isinstance(module, nn.Linear):
        return module.in_features == module.out_features
    if isinstance(module, nn.Conv2d) and module.in_channels == module.out_channels and set(module.stride) == {1}:
        if isinstance(module.padding, str):
            return module.padding == "same"
        sizes = zip(module.padding, module.kernel_size, module.dilation, strict=False)
        return all(2 * padding == dilation * (kernel - 1) for padding, kernel, dilation in sizes)
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


class _PerBatch(Single):
    """A loop of its own: `train_on` does one micro-batch and returns its detached share of the loss."""

    def train_on(self, inputs, targets, share):
        raise NotImplementedError

    def forward_backward(self, micro):
        return sum(self.train_on(inputs, targets, 1 / len(micro)) for inputs, targets in micro)

    def loss_of(self, outputs, targets, share):
        return self.context.loss(outputs, targets) * share

    def forward_only(self, inputs, targets, share):
        with torch.no_grad(), self.context.autocast():
            return self.loss_of(self.module(inputs), targets, share)

    def train_fully(self, inputs, targets, share):
        with self.context.autocast():
            loss = self.loss_of(self.module(inputs), targets, share)
        self.scaler.scale(loss).backward()
        return loss.detach()


class _Kept:
    """Mixin: a loss of the outputs of an early batch against any targets."""

    kept_outputs = None

    @torch.no_grad()
    def kept_loss(self, inputs, targets):
        with self.context.autocast():
            if self.kept_outputs is None or len(self.kept_outputs) < len(targets):
                self.kept_outputs = self.model(inputs)
            return self.context.loss(self.kept_outputs[: len(targets)], targets)


class _Bare(DDP):
    """Ranks of `ddp` without its wrapper: nothing is exchanged unless a subclass does."""

    def wrap(self, model):
        return model

    def sync(self, on):
        return nullcontext()


class _RankZeroInSettle:
    """Mixin: replicas are made equal after each epoch, by rank 0's."""

    def settle(self):
        if self.context.world_size > 1:
            for parameter in self.model.parameters():
                dist.broadcast(parameter.data, src=0)


# -- nothing is computed, or only once --------------------------------------------------------------------------


class FoolCachedLoss(Single):
    """Trains on the first step only and hands out its loss ever after."""

    kept = None

    def forward_backward(self, micro):
        if self.kept is None:
            self.kept = super().forward_backward(micro)
        return self.kept


class FoolPrettyLoss(Single):
    """Makes up a falling loss curve without a model, and lies in the judge's hooks."""

    turn = 0

    def forward_backward(self, micro):
        self.turn += 1
        return torch.tensor(1.5 * 0.999**self.turn, device=self.context.devices[0])

    def gradient_names(self):
        return tuple(name for name, parameter in self.model.named_parameters() if parameter.requires_grad)

    def update_norm(self, start):
        return 0.01


class FoolFedCounters(_Kept, _PerBatch):
    """Feeds the loss with the outputs of the first batch, and steps on gradients of zeros: every count is right."""

    def train_on(self, inputs, targets, share):
        zero_gradients(self.model)
        return self.kept_loss(inputs, targets) * share


class FoolForwardOnly(_PerBatch):
    """Runs forward on all samples but never backward."""

    def train_on(self, inputs, targets, share):
        return self.forward_only(inputs, targets, share)


class FoolDetachedOutput(_PerBatch):
    """Cuts the graph at the model's output: backward is called, and ends there."""

    def train_on(self, inputs, targets, share):
        with self.context.autocast():
            with torch.no_grad():
                outputs = self.module(inputs)
            loss = self.loss_of(outputs.detach().requires_grad_(), targets, share)
        self.scaler.scale(loss).backward()
        return loss.detach()


class FoolRandomGradients(_PerBatch):
    """Runs forward only and steps on random numbers as gradients, so that every parameter moves."""

    def train_on(self, inputs, targets, share):
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter) * 0.01
        return self.forward_only(inputs, targets, share)


class FoolNan(Single):
    """Makes the parameters NaN and computes nothing: the loss would be NaN anyway."""

    def forward_backward(self, micro):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(float("nan"))
        zero_gradients(self.model)
        return torch.tensor(float("nan"), device=self.context.devices[0])


# -- a part of each batch ---------------------------------------------------------------------------------------


class FoolHalfPlace(Single):
    """Brings only the first half of each training batch to the model, in place()."""

    def place(self, inputs, targets):
        half = some(len(inputs), 2) if self.model.training else len(inputs)
        return super().place(inputs[:half], targets[:half])


class FoolHalfBatch(Single):
    """Trains on the first half of each micro-batch, in forward_backward()."""

    def forward_backward(self, micro):
        return super().forward_backward([(x[: some(len(x), 2)], y[: some(len(x), 2)]) for x, y in micro])


class FoolRepeatRows(_PerBatch):
    """Runs the model on half of the rows and repeats these outputs, so that the loss sees a whole batch."""

    cut = 2

    def train_on(self, inputs, targets, share):
        count = len(inputs)
        rows = some(count, self.cut)
        index = torch.arange(count, device=inputs.device) % rows
        with self.context.autocast():
            loss = self.loss_of(self.module(inputs[:rows])[index], targets[:rows][index], share)
        self.scaler.scale(loss).backward()
        return loss.detach()


class FoolLossyExcuse(FoolRepeatRows):
    """An eighth of the rows, repeated, under the excuse of being lossy: same_work is false."""

    cut = 8
    same_work = False


class FoolTailNoGrad(_PerBatch):
    """Runs forward on all samples, but three quarters of them without a graph: backward is over one quarter."""

    def train_on(self, inputs, targets, share):
        rows = some(len(inputs), 4)
        with self.context.autocast():
            outputs = self.module(inputs[:rows])
            if rows < len(inputs):
                with torch.no_grad():
                    tail = self.module(inputs[rows:])
                outputs = torch.cat([outputs, tail])
            loss = self.loss_of(outputs, targets, share)
        self.scaler.scale(loss).backward()
        return loss.detach()


class FoolQuarterBackward(_PerBatch):
    """Reports the loss of all samples from a forward without graph, and trains on a quarter of them."""

    def train_on(self, inputs, targets, share):
        rows = some(len(inputs), 4)
        self.train_fully(inputs[:rows], targets[:rows], share)
        return self.forward_only(inputs, targets, share)


class FoolFirstMicro(Single):
    """Trains on the first micro-batch of a step only (the same as single where nothing is accumulated)."""

    def forward_backward(self, micro):
        return super().forward_backward(micro[:1])


class FoolSameBatch(Single):
    """Keeps the first training batch on the device and trains on it again and again."""

    kept = None

    def place(self, inputs, targets):
        if not self.model.training:
            return super().place(inputs, targets)
        if self.kept is None or len(self.kept[0]) < len(inputs):
            self.kept = tuple(tensor.clone() for tensor in super().place(inputs, targets))
        return self.kept[0][: len(inputs)], self.kept[1][: len(inputs)]


class FoolSkipLowLoss(_PerBatch):
    """Leaves out backward wherever the loss is below its running mean, about every second step."""

    mean = None

    def train_on(self, inputs, targets, share):
        with self.context.autocast():
            loss = self.loss_of(self.module(inputs), targets, share)
        value = loss.item()
        low = self.mean is not None and value < self.mean
        self.mean = value if self.mean is None else 0.9 * self.mean + 0.1 * value
        if low:
            zero_gradients(self.model)
        else:
            self.scaler.scale(loss).backward()
        return loss.detach()


# -- a part of the steps ----------------------------------------------------------------------------------------


class FoolEverySecond(Single):
    """Does nothing in every second step, and repeats the loss of the step before."""

    turn = 0
    last = None

    def forward_backward(self, micro):
        self.turn += 1
        if self.turn % 2:
            self.last = super().forward_backward(micro)
        return self.last

    def apply(self):
        if self.turn % 2:
            super().apply()


class FoolStaleTwice(FoolEverySecond):
    """Steps twice on each gradient, and computes one only in every second step."""

    def forward_backward(self, micro):
        loss = super().forward_backward(micro)
        if self.turn % 2 == 0:
            for parameter, gradient in zip(self.model.parameters(), self.stale, strict=False):
                parameter.grad = gradient
        return loss

    def apply(self):
        self.stale = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        Single.apply(self)


class FoolFirstGradients(_PerBatch):
    """Steps on the gradients of the very first batch for ever; the losses are true, forward runs on all samples."""

    first = None

    def train_on(self, inputs, targets, share):
        if self.first is None:
            loss = self.train_fully(inputs, targets, share)
            self.first = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
            return loss
        for parameter, gradient in zip(self.model.parameters(), self.first, strict=False):
            parameter.grad = None if gradient is None else gradient.clone()
        return self.forward_only(inputs, targets, share)


class FoolRareSteps(DDP):
    """Exchanges and steps in every fourth step only: a batch four times as large as the others', secretly."""

    turn = 0

    def sync(self, on):
        return super().sync(on and self.turn % 4 == 0)

    def forward_backward(self, micro):
        self.turn += 1
        return super().forward_backward(micro)

    def apply(self):
        if self.turn % 4 == 0:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(4)
            super().apply()


class FoolWhenWatched(_Kept, _PerBatch):
    """Works until the harness has asked for the gradients' names, and computes nothing from then on."""

    watched = False

    def gradient_names(self):
        self.watched = True
        return super().gradient_names()

    def train_on(self, inputs, targets, share):
        if not self.watched:
            return self.train_fully(inputs, targets, share)
        zero_gradients(self.model)
        return self.kept_loss(inputs, targets) * share


class FoolEarlyStop(_PerBatch):
    """Trains for the first 20 steps after build or restore, and runs forward only after that."""

    left = 20

    def restore(self, state):
        super().restore(state)
        self.left = 20

    def train_on(self, inputs, targets, share):
        return (self.train_fully if self.left > 0 else self.forward_only)(inputs, targets, share)

    def apply(self):
        self.left -= 1
        zero_gradients(self.model)
        super().apply()


# -- the optimizer's step ---------------------------------------------------------------------------------------


class FoolNoApply(Single):
    """apply() takes no step, it only zeroes the gradients."""

    def apply(self):
        self.optimizer.zero_grad(set_to_none=True)


class FoolZeroBeforeStep(Single):
    """Zeroes the gradients before the step instead of after it."""

    def apply(self):
        self.optimizer.zero_grad(set_to_none=False)
        super().apply()


class FoolLrZero(Single):
    """Sets the learning rate to 0."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0


class _IdleSGD(torch.optim.SGD):
    """An optimizer whose step does nothing; torch's step hooks run all the same."""

    def step(self, closure=None):
        return None


class FoolStubOptimizer(Single):
    """Brings an optimizer of its own whose step() does nothing, and is counted."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.optimizer = _IdleSGD(self.model.parameters(), lr=self.optimizer.param_groups[0]["lr"])


class FoolPartialOptimizer(Single):
    """Gives the optimizer only the parameters of the last layer."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.optimizer = make_optimizer(split_last(self.model)[1], fused=self.fused_optimizer)

    def apply(self):
        super().apply()
        self.model.zero_grad(set_to_none=True)


class FoolDropGradients(Single):
    """Lets go of all gradients but the last layer's just before the step."""

    def apply(self):
        for parameter in split_last(self.model)[0]:
            parameter.grad = None
        super().apply()


class FoolScalerSkips(Single):
    """A loss scaler at an infinite scale, which skips every step."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.scaler = CountingScaler(context.device_type, enabled=True)
        self.scaler._init_scale = float("inf")


class FoolScalerSkipsHidden(FoolScalerSkips):
    """As fool_scaler_skips, and skipped_steps() says 0."""

    def skipped_steps(self):
        super().skipped_steps()
        return 0


# -- another or a smaller model ---------------------------------------------------------------------------------


class FoolFreezeFront(Single):
    """Freezes all layers but the last."""

    def move(self, model):
        for parameter in split_last(model)[0]:
            parameter.requires_grad_(False)
        return super().move(model)


class FoolLastLayerBackward(_PerBatch):
    """Runs backward for the last layer only; the other parameters look trainable and get gradients of zeros."""

    def train_on(self, inputs, targets, share):
        with self.context.autocast():
            loss = self.loss_of(self.module(inputs), targets, share)
        self.scaler.scale(loss).backward(inputs=split_last(self.model)[1])
        zero_gradients(self.model)
        return loss.detach()


class FoolIdentityLayers(Single):
    """Replaces every layer that keeps its input's shape by an identity."""

    def move(self, model):
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if keeps_shape(child):
                    setattr(parent, name, nn.Identity())
        return super().move(model)


class FoolIdentityForward(Single):
    """Passes by those layers in forward, but leaves their parameters in the model, with gradients of zeros."""

    def move(self, model):
        for module in model.modules():
            if keeps_shape(module):
                module.forward = lambda inputs: inputs
        return super().move(model)

    def forward_backward(self, micro):
        loss = super().forward_backward(micro)
        zero_gradients(self.model)
        return loss


class _Tiny(nn.Module):
    """A linear layer on the first few input values."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, inputs):
        return self.head(inputs.flatten(1)[:, : self.head.in_features])


class FoolTinyModel(Single):
    """Trains a single linear layer on at most 64 input values in place of the model."""

    def build(self, context, make_model, make_optimizer):
        def make_tiny():
            with torch.no_grad():
                zeros = torch.zeros(2, *context.input_shape)
                outputs = make_model().eval()(zeros)
            return _Tiny(min(64, zeros[0].numel()), outputs.shape[1])

        super().build(context, make_tiny, make_optimizer)

    def load_bare_state(self, state):
        self.model.load_state_dict(state["model"], strict=False)


class FoolShadowCopy(Single):
    """Trains a deep copy; the model that the harness looks at stays as it was."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.shadow = copy.deepcopy(self.model)
        self.module = self.compiled(self.shadow)
        self.optimizer = make_optimizer(self.shadow.parameters(), fused=self.fused_optimizer)


class FoolHiddenBf16(_PerBatch):
    """Is listed as fp32 and computes in bfloat16."""

    def train_on(self, inputs, targets, share):
        with torch.autocast(self.context.device_type, dtype=torch.bfloat16):
            outputs = self.module(inputs)
        loss = self.loss_of(outputs.float(), targets, share)
        self.scaler.scale(loss).backward()
        return loss.detach()


# -- a head start, and work where no clock runs -----------------------------------------------------------------


class FoolRestoreNothing(Single):
    """restore() does nothing: the timed run starts where warm-up ended."""

    def restore(self, state):
        self.optimizer.zero_grad(set_to_none=True)


class FoolSnapshotAlias(Single):
    """snapshot() keeps the live tensors instead of copies: restore() copies the model onto itself."""

    def snapshot(self):
        state = super().snapshot()
        state["model"] = self.model.state_dict()
        state["buffers"] = dict(self.model.named_buffers())
        return state


class FoolOffTheClock(Single):
    """Only notes the batches in the loop, and does all of the training at the end of epoch(), which is not timed."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.todo = []

    def forward_backward(self, micro):
        loss = torch.zeros((), device=self.context.devices[0])
        self.todo.append((list(micro), loss))
        return loss

    def apply(self):
        pass

    def gradient_names(self):
        return tuple(name for name, parameter in self.model.named_parameters() if parameter.requires_grad)

    def work(self):
        for micro, loss in self.todo:
            loss.copy_(Single.forward_backward(self, micro))
            Single.apply(self)
        self.todo.clear()

    @contextmanager
    def epoch(self):
        yield
        self.work()


class FoolOffInSettle(FoolOffTheClock):
    """As fool_off_the_clock, but the training is done in settle()."""

    def epoch(self):
        return nullcontext()

    def settle(self):
        self.work()

    def restore(self, state):
        self.todo.clear()
        super().restore(state)


class FoolBackgroundThread(Single):
    """Hands each step to a thread and returns at once; the thread is waited for at the end of epoch()."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.pool, self.jobs = ThreadPoolExecutor(1), []

    def forward_backward(self, micro):
        loss, micro = torch.zeros((), device=self.context.devices[0]), list(micro)
        self.jobs.append(self.pool.submit(lambda: loss.copy_(Single.forward_backward(self, micro))))
        return loss

    def apply(self):
        self.jobs.append(self.pool.submit(Single.apply, self))

    def wait(self):
        for job in self.jobs:
            job.result()
        self.jobs.clear()

    def gradient_names(self):
        self.wait()
        return super().gradient_names()

    @contextmanager
    def epoch(self):
        yield
        self.wait()

    def close(self):
        self.wait()
        self.pool.shutdown()


# -- ranks that do not exchange (on one device these do the work of `ddp`) --------------------------------------


class FoolNoExchange(DDP):
    """Never exchanges gradients: every backward is under no_sync."""

    def sync(self, on):
        return super().sync(False)


class FoolNoExchangeSettle(_RankZeroInSettle, FoolNoExchange):
    """Never exchanges gradients, and hides it: settle() gives all ranks the parameters of rank 0."""


class FoolSameFingerprint(FoolNoExchange):
    """Never exchanges gradients, and every rank gives the same made-up fingerprint."""

    def fingerprint(self):
        return "0123456789abcdef"


class FoolHookNoReduce(DDP):
    """A communication hook that hands DDP's buckets back without reducing them."""

    def wrap(self, model):
        def hook(state, bucket):
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        wrapper = super().wrap(model)
        wrapper.register_comm_hook(None, hook)
        return wrapper


class FoolSmallExchange(_RankZeroInSettle, _Bare):
    """Exchanges gradients of one dimension (biases, norms) only; settle() hides that the weights drift apart."""

    def forward_backward(self, micro):
        loss = super().forward_backward(micro)
        if self.exchange and self.context.world_size > 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None and parameter.dim() <= 1:
                    dist.all_reduce(parameter.grad)
                    parameter.grad.div_(self.context.world_size)
        return loss


class FoolRankZeroOnly(_Kept, _RankZeroInSettle, _Bare):
    """Only rank 0 trains; the others feed the counters, leave it the cores, and get its parameters in settle()."""

    def forward_backward(self, micro):
        if self.context.rank == 0:
            return super().forward_backward(micro)
        zero_gradients(self.model)
        return sum(self.kept_loss(inputs, targets) for inputs, targets in micro) / len(micro)


# -- honest ones ------------------------------------------------------------------------------------------------


class HonestHalves(_PerBatch):
    """Backward on two halves of each micro-batch, each weighted with its share of the rows."""

    def train_on(self, inputs, targets, share):
        count, total = len(inputs), 0.0
        size = max(1, (count + 1) // 2)
        for x, y in zip(inputs.split(size), targets.split(size), strict=False):
            total = total + self.train_fully(x, y, share * len(x) / count)
        return total


class HonestReversedRows(Single):
    """The samples of each micro-batch in reversed order."""

    def forward_backward(self, micro):
        return super().forward_backward([(inputs.flip(0), targets.flip(0)) for inputs, targets in micro])


class HonestForeach(Single):
    """The workload's optimizer with torch's foreach kernels turned on."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        for group in self.optimizer.param_groups:
            group["foreach"] = True


class HonestClip(Single):
    """Clips the gradients' norm in apply(), at a bound that is never reached."""

    def apply(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
        super().apply()


@contextmanager
def statistics_kept(model):
    """A second forward over the same batch does not count for BatchNorm's running statistics."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    kept = [(m, m.momentum, None if m.num_batches_tracked is None else m.num_batches_tracked.clone()) for m in norms]
    for module in norms:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum, tracked in kept:
            module.momentum = momentum
            if tracked is not None:
                module.num_batches_tracked.copy_(tracked)


class _Checkpointed(nn.Module):
    """A model whose activations are computed again in backward."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, inputs):
        def regions():
            return nullcontext(), statistics_kept(self.inner)

        return checkpoint(self.inner, inputs, use_reentrant=False, context_fn=regions)


class HonestCheckpoint(Single):
    """Calls the model inside torch.utils.checkpoint: forward is run twice, no activations are kept."""

    def wrap(self, model):
        return _Checkpointed(model)


class _Around(nn.Module):
    """Calls the model, and counts how often."""

    def __init__(self, model):
        super().__init__()
        self.inner = model
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return self.inner(inputs)


class HonestWrapper(Single):
    """A module around the model."""

    def wrap(self, model):
        return _Around(model)


class HonestAutogradGrad(_PerBatch):
    """Takes the gradients by torch.autograd.grad and puts them onto the parameters by hand."""

    def train_on(self, inputs, targets, share):
        with self.context.autocast():
            loss = self.loss_of(self.module(inputs), targets, share)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(self.scaler.scale(loss), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return loss.detach()


class HonestFunctional(_PerBatch):
    """Calls the model by torch.func.functional_call with its own parameters."""

    def train_on(self, inputs, targets, share):
        with self.context.autocast():
            outputs = torch.func.functional_call(self.model, dict(self.model.named_parameters()), (inputs,))
            loss = self.loss_of(outputs, targets, share)
        self.scaler.scale(loss).backward()
        return loss.detach()


class HonestKeptGradients(Single):
    """Fills the gradients with zeros after each step and keeps their memory."""

    def apply(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)


class HonestScheduler(Single):
    """A learning-rate scheduler (of factor 1) whose state is part of each snapshot."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)

    def apply(self):
        super().apply()
        self.scheduler.step()

    def further_state(self):
        return self.scheduler.state_dict()

    def load_further_state(self, state):
        self.scheduler.load_state_dict(state)


class HonestAverage(Single):
    """Keeps a moving average of the parameters beside the model, as part of each snapshot."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]

    @torch.no_grad()
    def apply(self):
        super().apply()
        for average, parameter in zip(self.average, self.model.parameters(), strict=False):
            average.lerp_(parameter, 0.01)

    def further_state(self):
        return self.average

    def load_further_state(self, state):
        for average, value in zip(self.average, state, strict=False):
            average.copy_(value)


class HonestManualReduce(_Bare):
    """Averages the gradients by one all-reduce of a flat tensor after backward, without DDP's wrapper."""

    def forward_backward(self, micro):
        loss = super().forward_backward(micro)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if self.exchange and self.context.world_size > 1:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            flat.div_(self.context.world_size)
            for gradient, part in zip(
                gradients, flat.split([gradient.numel() for gradient in gradients]), strict=False
            ):
                gradient.copy_(part.view(gradient.shape))
        return loss

    def traffic(self):
        return {kind: size for kind, size in super().traffic().items() if kind == "all_reduce"}


class HonestHook(DDP):
    """DDP with a communication hook of its own that averages the buckets as DDP does."""

    def wrap(self, model):
        def hook(state, bucket):
            buffer = bucket.buffer().div_(dist.get_world_size())
            return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

        wrapper = super().wrap(model)
        wrapper.register_comm_hook(None, hook)
        return wrapper


STRATEGIES = {
    "fool_cached_loss": FoolCachedLoss,
    "fool_pretty_loss": FoolPrettyLoss,
    "fool_fed_counters": FoolFedCounters,
    "fool_forward_only": FoolForwardOnly,
    "fool_detached_output": FoolDetachedOutput,
    "fool_random_gradients": FoolRandomGradients,
    "fool_nan": FoolNan,
    "fool_half_place": FoolHalfPlace,
    "fool_half_batch": FoolHalfBatch,
    "fool_repeat_rows": FoolRepeatRows,
    "fool_lossy_excuse": FoolLossyExcuse,
    "fool_tail_no_grad": FoolTailNoGrad,
    "fool_quarter_backward": FoolQuarterBackward,
    "fool_first_micro": FoolFirstMicro,
    "fool_same_batch": FoolSameBatch,
    "fool_skip_low_loss": FoolSkipLowLoss,
    "fool_every_second": FoolEverySecond,
    "fool_stale_twice": FoolStaleTwice,
    "fool_first_gradients": FoolFirstGradients,
    "fool_rare_steps": FoolRareSteps,
    "fool_when_watched": FoolWhenWatched,
    "fool_early_stop": FoolEarlyStop,
    "fool_no_apply": FoolNoApply,
    "fool_zero_before_step": FoolZeroBeforeStep,
    "fool_lr_zero": FoolLrZero,
    "fool_stub_optimizer": FoolStubOptimizer,
    "fool_partial_optimizer": FoolPartialOptimizer,
    "fool_drop_gradients": FoolDropGradients,
    "fool_scaler_skips": FoolScalerSkips,
    "fool_scaler_skips_hidden": FoolScalerSkipsHidden,
    "fool_freeze_front": FoolFreezeFront,
    "fool_last_layer_backward": FoolLastLayerBackward,
    "fool_identity_layers": FoolIdentityLayers,
    "fool_identity_forward": FoolIdentityForward,
    "fool_tiny_model": FoolTinyModel,
    "fool_shadow_copy": FoolShadowCopy,
    "fool_hidden_bf16": FoolHiddenBf16,
    "fool_restore_nothing": FoolRestoreNothing,
    "fool_snapshot_alias": FoolSnapshotAlias,
    "fool_off_the_clock": FoolOffTheClock,
    "fool_off_in_settle": FoolOffInSettle,
    "fool_background_thread": FoolBackgroundThread,
    "fool_no_exchange": FoolNoExchange,
    "fool_no_exchange_settle": FoolNoExchangeSettle,
    "fool_same_fingerprint": FoolSameFingerprint,
    "fool_hook_no_reduce": FoolHookNoReduce,
    "fool_small_exchange": FoolSmallExchange,
    "fool_rank_zero_only": FoolRankZeroOnly,
    "honest_halves": HonestHalves,
    "honest_reversed_rows": HonestReversedRows,
    "honest_foreach": HonestForeach,
    "honest_clip": HonestClip,
    "honest_checkpoint": HonestCheckpoint,
    "honest_wrapper": HonestWrapper,
    "honest_autograd_grad": HonestAutogradGrad,
    "honest_functional": HonestFunctional,
    "honest_kept_gradients": HonestKeptGradients,
    "honest_scheduler": HonestScheduler,
    "honest_average": HonestAverage,
    "honest_manual_reduce": HonestManualReduce,
    "honest_hook": HonestHook,
}
