"""What a rank makes before its first step: the data on its device, the model, the wrap and the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from bench import workloads
from bench.checkpoint import load_checkpoint
from bench.wire import RunSpec
from bench.worker.batches import Batches, Samples, TrainingBatches
from bench.worker.loader import FixedBatch, LoaderBatches
from bench.worker.rank import Rank
from bench.worker.state import BareParameter, RunState
from bench.worker.tally import Loss, Tally
from bench.workloads.base import Workload
from strategies import Registry
from strategies.base import Context


class Makers:
    """The workload's model and optimizer as a strategy gets to make them, and what is noted meanwhile.

    So the harness knows the bare model's parameters by name, whatever the strategy makes of them.
    """

    def __init__(self, workload: Workload, seed: int, tally: Tally) -> None:
        self._workload = workload
        self._seed = seed
        self._tally = tally
        self.parameters: tuple[BareParameter, ...] = ()

    def make_model(self) -> torch.nn.Module:
        """A fresh bare model in training mode: the same weights on every rank, and at every call."""
        torch.manual_seed(self._seed)
        model = self._workload.make_model().train()
        self.parameters = tuple(
            BareParameter(name, value.numel(), value.element_size(), value.requires_grad)
            for name, value in model.named_parameters()
        )
        return model

    def make_optimizer(self, parameters: Iterable[torch.nn.Parameter], *, fused: bool = False) -> torch.optim.Optimizer:
        """The workload's optimizer. It is handed a list: a generator would be empty at a second reading."""
        return self._tally.made(self._workload.make_optimizer(list(parameters), fused=fused))


class NoBatches:
    """Those of a rank that trains on no part."""

    def epoch(self, epoch: int, *, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())


def build_run(spec: RunSpec, rank: Rank) -> RunState:
    """Dataset on the device, model, wrap and optimizer; every rank starts from the same weights."""
    workload = workloads.load(spec.workload)
    registry = Registry.collect([Path(path) for path in spec.strategy_files])
    strategy = registry.load(spec.cell["strategy"])()
    batches = make_batches(spec, rank, workload)
    tally = Tally()
    makers = Makers(workload, spec.seed, tally)
    context = make_context(spec, rank, workload, loss=tally.counting(workload.loss))
    strategy.build(context, makers.make_model, makers.make_optimizer)
    if spec.initial_state:
        load_checkpoint(Path(spec.initial_state), strategy, workload=spec.workload)
    return RunState(spec, rank, workload, strategy, batches, strategy.snapshot(), makers.parameters, tally)


def make_context(spec: RunSpec, rank: Rank, workload: Workload, *, loss: Loss) -> Context:
    """What the strategy is told of its place and of the run."""
    return Context(
        rank=rank.rank,
        plan=spec.cell.plan,
        devices=rank.devices,
        loss=loss,
        input_shape=workloads.find(spec.workload).input_shape,
        precision=spec.cell["precision"],
        memory_format=spec.cell["memory_format"],
        compile=spec.cell["compile"],
        seed=spec.seed,
        threads_per_device=spec.threads_per_device,
        accumulate=spec.cell["accumulate"],
        options=spec.cell.options,
    )


def make_batches(spec: RunSpec, rank: Rank, workload: Workload) -> Batches:
    """The batches of this rank's part, by the pipeline that the cell names; none where it reads no part."""
    part = rank.place.part
    if part is None:
        return NoBatches()
    loader = spec.cell["data_pipeline"] == "loader"
    # Loader workers transform on the host; only their batches go to the device.
    home = torch.device("cpu") if loader else rank.devices[0]
    samples = Samples.load(Path(spec.train_inputs), Path(spec.train_targets), home)
    resident = TrainingBatches(samples, workload, spec.cell["batch_global"], part, spec.cell.plan.read_parts, spec.seed)
    if loader:
        pinned = rank.devices[0].type == "cuda"
        return LoaderBatches(resident, workers=spec.loader_workers, pin_memory=pinned)
    return FixedBatch(resident) if spec.cell["data_pipeline"] == "synthetic_device" else resident


def set_numerics(precision: str) -> None:
    """fp32 means IEEE float32 everywhere; torch's default runs cuDNN convolutions in TF32, which is `tf32` here."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
