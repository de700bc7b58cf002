"""A worker's ties to its parent: it dies with it, and tells it why it failed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from bench.spec import RankError, RunSpec, error_path

_PR_SET_PDEATHSIG = 1
_COLLECTIVE_MARKS = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl", "socket")
_OOM_MARKS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies (Linux); workers of torch's launcher outlive it otherwise.

    `parent_pid` 0 leaves the worker alone, for launchers that are not the parent.
    """
    if parent_pid == 0 or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        # The parent died before the request was in force.
        os._exit(1)


def classify(error: BaseException) -> str:
    """Which kind of failure this is: unsupported, oom, collective (a peer's failure seen from here) or error."""
    name, message = type(error).__name__, str(error).lower()
    if name == "Unsupported":
        return "unsupported"
    if isinstance(error, MemoryError) or "OutOfMemory" in name:
        return "oom"
    if isinstance(error, RuntimeError) and any(mark in message for mark in _OOM_MARKS):
        return "oom"
    if name.startswith("Dist") or (isinstance(error, RuntimeError) and any(m in message for m in _COLLECTIVE_MARKS)):
        return "collective"
    return "error"


def describe(error: BaseException, kind: str, spec: RunSpec, rank: int) -> str:
    """The message for the row; for oom with the batch and the device that did not hold it."""
    message = " ".join(str(error).split())
    if kind != "oom":
        return message
    batch = spec.batch_global // spec.replicas
    return f"{batch} samples a replica did not fit on {spec.device_kind} of rank {rank}: {message}"


def report_failure(error: BaseException, spec: RunSpec, rank: int, phase: str) -> None:
    """Write the traceback to the log and the account to the run's folder."""
    nanoseconds = time.perf_counter_ns()
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    kind = classify(error)
    account = RankError(
        rank=rank,
        kind=kind,
        phase=phase,
        type=type(error).__name__,
        message=describe(error, kind, spec, rank),
        nanoseconds=nanoseconds,
    )
    account.write(error_path(Path(spec.folder), rank))
