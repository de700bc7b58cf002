"""What a rank makes before its first step: the data on its device, the model, the wrap and the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bench import workloads
from bench.checkpoint import load_checkpoint
from bench.wire import RunSpec
from bench.worker.batches import Batches, Samples, TrainingBatches
from bench.worker.loader import FixedBatch, LoaderBatches
from bench.worker.rank import Rank
from bench.worker.state import RunState
from bench.workloads.base import Workload
from strategies import Registry
from strategies.base import Context, Strategy


def make_run(spec: RunSpec, rank: Rank) -> RunState:
    """Dataset on the device, model, wrap and optimizer; every rank starts from the same weights."""
    workload = workloads.load(spec.workload)
    # Loader workers transform on the host; only their batches go to the device.
    home = torch.device("cpu") if spec.cell["data_pipeline"] == "loader" else rank.devices[0]
    samples = Samples.load(Path(spec.train_inputs), Path(spec.train_targets), home)
    registry = Registry.collect([Path(path) for path in spec.strategy_files])
    strategy = registry.load(spec.cell["strategy"])()
    context = Context(
        rank=rank.rank,
        world_size=rank.world_size,
        devices=rank.devices,
        loss=workload.loss,
        input_shape=workloads.find(spec.workload).input_shape,
        precision=spec.cell["precision"],
        memory_format=spec.cell["memory_format"],
        compile=spec.cell["compile"],
        seed=spec.seed,
        threads_per_device=spec.threads_per_device,
        options=spec.cell.options,
    )

    def make_model() -> torch.nn.Module:
        torch.manual_seed(spec.seed)
        return workload.make_model().train()

    strategy.build(context, make_model, workload.make_optimizer)
    if spec.initial_state:
        load_checkpoint(Path(spec.initial_state), strategy, workload=spec.workload)
    batches = make_batches(spec, rank, samples, workload)
    return RunState(spec, rank, workload, strategy, batches, strategy.snapshot(), _count_steps(strategy))


def make_batches(spec: RunSpec, rank: Rank, samples: Samples, workload: Workload) -> Batches:
    """The batches of this rank's part, by the pipeline that the cell names."""
    resident = TrainingBatches(
        samples, workload, spec.cell["batch_global"], rank.place.part or 0, spec.cell.plan.read_parts, spec.seed
    )
    if spec.cell["data_pipeline"] == "loader":
        pinned = rank.devices[0].type == "cuda"
        return LoaderBatches(resident, workers=spec.loader_workers, pin_memory=pinned)
    return FixedBatch(resident) if spec.cell["data_pipeline"] == "synthetic_device" else resident


def set_numerics(precision: str) -> None:
    """fp32 means IEEE float32 everywhere; torch's default runs cuDNN convolutions in TF32, which is `tf32` here."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True


def _count_steps(strategy: Strategy) -> list[Any]:
    """A counter of the optimizer's real steps, which the loss scaler of float16 may skip."""
    taken: list[Any] = [0]
    if strategy.scaler.is_enabled():

        def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # A fused optimizer is always called and skips in its own kernel; the count stays on the device.
            found = getattr(optimizer, "found_inf", None)
            taken[0] = taken[0] + (1 if found is None else (found == 0).sum())

        strategy.optimizer.register_step_post_hook(count)
    return taken
