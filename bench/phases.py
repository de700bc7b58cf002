"""The phases of a run around its timed loop, each one function that the worker calls in turn."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from bench import workloads
from bench.breakdown import communication
from bench.checkpoint import load_checkpoint, save_checkpoint
from bench.flops import flops_per_sample
from bench.heartbeat import Heartbeat
from bench.loader import FixedBatch, LoaderBatches
from bench.pipeline import Batches, Samples, TrainingBatches, evaluation_batches
from bench.rank import Rank
from bench.run import Run, make_timer
from bench.spec import EpochMeasurement, Measurement, RunSpec
from bench.timing import ClockTimer, Timing
from bench.worker import run_steps
from bench.workloads.base import Workload
from strategies import Registry
from strategies.base import Context, Strategy

EVALUATION_BATCH = 250
WARMUP_EPOCH = 0


@dataclass
class Stopwatch:
    seconds: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Wall time of a with-block."""
    watch = Stopwatch()
    begin = time.perf_counter_ns()
    try:
        yield watch
    finally:
        watch.seconds = (time.perf_counter_ns() - begin) * 1e-9


def build(spec: RunSpec, rank: Rank) -> Run:
    """Dataset on the device, model, wrap and optimizer; every rank starts from the same weights."""
    workload = workloads.load(spec.workload)
    # Loader workers transform on the host; only their batches go to the device.
    home = torch.device("cpu") if spec.data_pipeline == "loader" else rank.devices[0]
    samples = Samples.load(Path(spec.train_inputs), Path(spec.train_targets), home)
    registry = Registry.collect([Path(path) for path in spec.strategy_files])
    strategy = registry.load(spec.strategy)()
    context = Context(
        rank=rank.rank,
        world_size=rank.world_size,
        devices=rank.devices,
        loss=workload.loss,
        input_shape=workloads.find(spec.workload).input_shape,
        precision=spec.precision,
        memory_format=spec.memory_format,
        compile=spec.compile,
        seed=spec.seed,
        threads_per_device=spec.threads_per_device,
        options=spec.options,
    )

    def make_model() -> torch.nn.Module:
        torch.manual_seed(spec.seed)
        return workload.make_model().train()

    strategy.build(context, make_model, workload.make_optimizer)
    if spec.initial_state:
        load_checkpoint(Path(spec.initial_state), strategy, workload=spec.workload)
    batches = make_batches(spec, rank, samples, workload)
    return Run(spec, rank, workload, strategy, batches, strategy.snapshot(), _count_steps(strategy))


def make_batches(spec: RunSpec, rank: Rank, samples: Samples, workload: Workload) -> Batches:
    """The batches of this rank's shard, by the pipeline that the cell names."""
    resident = TrainingBatches(samples, workload, spec.batch_global, rank.shard, spec.shards, spec.seed)
    if spec.data_pipeline == "loader":
        pinned = rank.devices[0].type == "cuda"
        return LoaderBatches(resident, workers=spec.loader_workers, pin_memory=pinned)
    return FixedBatch(resident) if spec.data_pipeline == "synthetic_device" else resident


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


def warm_up(run: Run, heartbeat: Heartbeat) -> float | None:
    """Real steps, untimed; then model, optimizer, scaler and random numbers go back to their start.

    Returns the seconds of the first step where the run is compiled, None otherwise.
    """
    timer = ClockTimer(run.rank.synchronize, run.rank.barrier)
    batches = run.batches.epoch(WARMUP_EPOCH, steps=run.spec.warmup_steps)
    timing, _ = run_steps(run.strategy, batches, accumulate=run.spec.accumulate, timer=timer, heartbeat=heartbeat)
    run.strategy.restore(run.start)
    # A second copy of the model would lie beside the first for the whole run, and count as its memory.
    run.start.clear()
    torch.manual_seed(run.spec.seed + 1 + run.rank.rank)
    return timing.steps[0] if run.spec.compile != "off" and timing.steps else None


def timed_epoch(run: Run, epoch: int, heartbeat: Heartbeat) -> tuple[Timing, list[Tensor | None]]:
    """The timed region: the same loop as warm-up, over the epoch's first `steps` steps."""
    run.steps_taken[0] = 0
    gpus = [device for device in run.rank.devices if device.type == "cuda"]
    # Training's own peak: what warm-up tried out and what evaluation needs are no part of it.
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    batches = run.batches.epoch(epoch, steps=run.spec.steps)
    timer = make_timer(run)
    result = run_steps(run.strategy, batches, accumulate=run.spec.accumulate, timer=timer, heartbeat=heartbeat)
    before = run.peaks or [0] * len(gpus)
    run.peaks[:] = [max(torch.cuda.max_memory_allocated(gpu), peak) for gpu, peak in zip(gpus, before, strict=True)]
    return result


def gather_epoch(run: Run, epoch: int, timing: Timing, losses: list[Tensor | None]) -> EpochMeasurement:
    """What all ranks measured of one epoch, after the clock has stopped."""
    own = _scalars(losses)
    mine = {
        "timing": timing,
        "losses": own,
        "hash": parameter_hash(run.strategy),
        "skipped": len(losses) - int(run.steps_taken[0]) if run.strategy.scaler.is_enabled() else 0,
    }
    exchange = communication(run, epoch, timing)
    ranks = run.rank.gather(mine)
    by_rank = [rank["losses"] for rank in ranks if rank["losses"]]
    if losses and not by_rank:
        raise TypeError("forward_backward() returned None on every rank; one must return the mean loss")
    finite = all(math.isfinite(loss) for rank in by_rank for loss in rank)
    timings: list[Timing] = [rank["timing"] for rank in ranks]
    return EpochMeasurement(
        epoch=epoch,
        timed_seconds=[timing.total for timing in timings],
        step_seconds=[timing.steps for timing in timings],
        data_wait=[timing.data_wait for timing in timings],
        samples=run.spec.batch_global * len(timing.steps),
        loss_first=_mean([rank[0] for rank in by_rank]) if finite else None,
        loss_last=_mean([rank[-1] for rank in by_rank]) if finite else None,
        finite=finite,
        skipped_steps=max(rank["skipped"] for rank in ranks),
        parameter_hashes=[rank["hash"] for rank in ranks],
        forward_backward=_totals([timing.forward_backward for timing in timings]),
        optimizer=_totals([timing.optimizer for timing in timings]),
        **exchange,
    )


def _scalars(losses: list[Tensor | None]) -> list[float]:
    """The losses of the ranks that have one, read from the device. Raises TypeError for anything else."""
    for loss in losses:
        if loss is not None and not (isinstance(loss, Tensor) and loss.numel() == 1):
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise TypeError(
                f"forward_backward() returned a {type(loss).__name__}{shape}; a tensor of one value, or None, is due"
            )
    return [float(loss) for loss in losses if loss is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _totals(lists: list[list[float] | None]) -> list[float] | None:
    return [sum(values) for values in lists if values is not None] or None


def parameter_hash(strategy: Strategy) -> str:
    """sha256 over the parameters' bytes in the order of their names, first 16 hex digits."""
    digest = hashlib.sha256()
    for name, parameter in sorted(strategy.model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def evaluate(run: Run, measured: EpochMeasurement) -> EpochMeasurement:
    """Exact accuracy over the whole test set: every rank its part, no padding. Only for workloads that classify."""
    if not run.workload.classifies or run.spec.synthetic:
        return measured
    with stopwatch() as watch:
        run.strategy.share_buffers()
        samples = Samples.load(Path(run.spec.test_inputs), Path(run.spec.test_targets), run.rank.devices[0])
        run.strategy.model.eval()
        correct = torch.zeros((), dtype=torch.int64)
        seen = 0
        part = {"batch": EVALUATION_BATCH, "shard": run.rank.shard, "shards": run.spec.shards}
        for inputs, targets in evaluation_batches(samples, run.workload, **part):
            placed, wanted = run.strategy.place(inputs, targets)
            correct += (run.strategy.predict(placed).argmax(1) == wanted).sum().cpu()
            seen += len(wanted)
        run.strategy.model.train()
    ranks = run.rank.gather((int(correct), seen, watch.seconds))
    share = run.spec.ranks_per_replica
    return replace(
        measured,
        correct=sum(rank[0] for rank in ranks) // share,
        evaluated=sum(rank[1] for rank in ranks) // share,
        eval_seconds=max(rank[2] for rank in ranks),
    )


def write_checkpoint(run: Run) -> None:
    """Rank 0 writes the bare model and optimizer, where the run was asked to; the others wait."""
    if not run.spec.checkpoint:
        return
    run.strategy.share_buffers()
    state = run.strategy.bare_state()
    if run.rank.rank == 0:
        save_checkpoint(Path(run.spec.checkpoint), state, workload=run.spec.workload, epoch=run.spec.epochs)


def peak_rss_bytes() -> int:
    """Peak resident memory of this process in bytes."""
    try:
        import resource
    except ImportError:
        # Windows has no such module; its own counter says the same.
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def pss_bytes() -> int | None:
    """Memory of this process and its loader workers in bytes, each page divided among all that share it.

    None where the kernel does not say.
    """
    try:
        own = psutil.Process()
        return sum(int(process.memory_full_info().pss) for process in (own, *own.children(recursive=True)))
    except (AttributeError, OSError, psutil.Error):
        return None


def gradient_bytes(strategy: Strategy) -> int:
    """Bytes of the gradients of one replica: as many as its trainable parameters have."""
    return sum(p.numel() * p.element_size() for p in strategy.model.parameters() if p.requires_grad)


def gather_run(
    run: Run,
    epochs: list[EpochMeasurement],
    *,
    launch_seconds: float,
    init_seconds: float,
    build_seconds: float,
    warmup_seconds: float,
    compile_seconds: float | None,
) -> Measurement:
    """Everything of the run that is not of one epoch: maxima over ranks, memory, what the strategy used."""
    rss, pss = peak_rss_bytes(), pss_bytes()
    times = (launch_seconds, init_seconds, build_seconds, warmup_seconds, compile_seconds or 0.0)
    ranks = run.rank.gather((times, run.peaks, rss, pss))
    launch, init, building, warmup, compiling = (max(column) for column in zip(*(r[0] for r in ranks), strict=True))
    return Measurement(
        epochs=epochs,
        launch_seconds=launch,
        init_seconds=init,
        build_seconds=building,
        warmup_seconds=warmup,
        compile_seconds=compiling if compile_seconds is not None else None,
        flops_per_sample=flops_per_sample(run.spec.workload) if run.spec.count_flops and run.rank.rank == 0 else None,
        peak_memory_bytes=[value for rank in ranks for value in rank[1]],
        host_peak_rss_bytes=sum(rank[2] for rank in ranks),
        host_pss_bytes=None if any(rank[3] is None for rank in ranks) else sum(rank[3] for rank in ranks),
        gradient_bytes=gradient_bytes(run.strategy),
        details=dict(run.strategy.details()),
        warnings=list(run.strategy.warnings()),
    )
