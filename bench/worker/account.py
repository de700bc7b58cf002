"""What a rank says of its whole run at the end: memory, start-up times, what the strategy used, the checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from bench.checkpoint import save_checkpoint
from bench.wire import EpochMeasurement, Measurement
from bench.worker.flops import flops_per_sample
from bench.worker.state import BareParameter, RunState

T = TypeVar("T")


def write_checkpoint(run: RunState) -> None:
    """Rank 0 writes the bare model and optimizer, where the run was asked to; all ranks gather them."""
    if not run.spec.checkpoint:
        return
    run.strategy.settle()
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


def own_peak_rss_bytes(run: RunState) -> int:
    """The same without what the probe took: the peak before it, where nothing has gone beyond the probe's since."""
    peak = peak_rss_bytes()
    return run.probe_rss[0] if run.probe_rss and peak <= run.probe_rss[1] else peak


Memory = tuple[int, int]
"""Of one process in bytes: what is its own alone, and what it shares with others."""


def memory_parts() -> list[Memory] | None:
    """Of this process and its loader workers; None where the kernel does not say."""
    try:
        own = psutil.Process()
        found = [process.memory_full_info() for process in (own, *own.children(recursive=True))]
        return [(int(info.uss), int(info.rss - info.uss)) for info in found]
    except (AttributeError, OSError, psutil.Error):
        return None


def shared_once(parts: Sequence[list[Memory] | None]) -> int | None:
    """Bytes of all processes together, with what they share counted once; None where any is not known.

    Shared pages are nearly the same ones in each: the data, and libraries or what a server had loaded. Dividing each
    page by the number of its sharers, as Linux's PSS does, would make a run smaller for every other process that lives.
    """
    known = [process for rank in parts for process in rank or ()]
    if not known or any(rank is None for rank in parts):
        return None
    return sum(own for own, _ in known) + max(shared for _, shared in known)


def gradient_bytes(parameters: Iterable[BareParameter]) -> int:
    """Bytes of the gradients of one replica: as many as its trainable parameters have."""
    return sum(parameter.count * parameter.element_bytes for parameter in parameters if parameter.trains)


def by_product(what: str, make: Callable[[], T], problems: list[str]) -> T | None:
    """What `make` gives, or None and a word in `problems`: it must not cost what was measured."""
    try:
        return make()
    except Exception as error:
        problems.append(f"no {what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None


def _texts(found: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(found).items()}


def _lines(found: Any) -> list[str]:
    if isinstance(found, str):
        return [found]
    return [str(line) for line in found]


def gather_run(
    run: RunState,
    epochs: list[EpochMeasurement],
    *,
    launch_seconds: float,
    init_seconds: float,
    build_seconds: float,
    warmup_seconds: float,
    compile_seconds: float | None,
) -> Measurement:
    """Everything of the run that is not of one epoch: maxima over ranks, memory, what the strategy used."""
    rss, parts = own_peak_rss_bytes(run), memory_parts()
    times = (launch_seconds, init_seconds, build_seconds, warmup_seconds)
    problems = run.problems
    probe = run.probes[0] if run.probes else None
    details = by_product("details()", lambda: _texts(run.strategy.details()), problems)
    problems += by_product("warnings()", lambda: _lines(run.strategy.warnings()), problems) or []
    flops = None
    if run.spec.count_flops and run.rank.rank == 0:
        flops = by_product("FLOPs of a sample", lambda: flops_per_sample(run.spec.workload), problems)
    ranks = run.rank.gather((times, run.peaks, rss, parts, gradient_bytes(run.parameters), compile_seconds))
    launch, init, building, warmup = (max(column) for column in zip(*(rank[0] for rank in ranks), strict=True))
    return Measurement(
        epochs=epochs,
        launch_seconds=launch,
        init_seconds=init,
        build_seconds=building,
        warmup_seconds=warmup,
        compile_seconds=max((rank[5] for rank in ranks if rank[5] is not None), default=None),
        flops_per_sample=flops,
        peak_memory_bytes=[value for rank in ranks for value in rank[1]],
        host_peak_rss_bytes=sum(rank[2] for rank in ranks),
        host_memory_bytes=shared_once([rank[3] for rank in ranks]),
        gradient_bytes=max(rank[4] for rank in ranks),
        details=details or {},
        warnings=problems,
        probe_flops_per_second=probe.flops_per_second if probe else None,
        probe_bytes_per_second=probe.bytes_per_second if probe else None,
    )
