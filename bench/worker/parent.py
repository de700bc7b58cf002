"""What a rank tells its parent when it fails or is asked: its account, and its stack."""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from bench.wire import RankError, RunSpec, error_path, stack_path

_COLLECTIVE_MARKS = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl", "socket")
_OOM_MARKS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "status_alloc_failed",
)
_LONGEST_MESSAGE = 600


def show_stack_when_asked(folder: Path, rank: int) -> None:
    """Write this rank's Python stack to its log at SIGUSR1, even while it waits or computes in C."""
    if hasattr(faulthandler, "register"):
        # faulthandler keeps the file open from here on.
        faulthandler.register(signal.SIGUSR1, file=stack_path(folder, rank).open("w"), all_threads=False)


def classify(error: BaseException) -> str:
    """Which kind of failure this is: unsupported, oom, collective (a peer's failure seen from here) or error.

    An error that was raised because of another, or while another was handled, is of the kind of the one behind it: a
    strategy that wraps what gloo says of a dead peer has no failure of its own.
    """
    if type(error).__name__ == "Unsupported":
        return "unsupported"
    return next((kind for link in _chain(error) if (kind := _own_kind(link)) != "error"), "error")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what is behind it, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # `raise ... from None` says that what was handled has nothing to do with it.
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _own_kind(error: BaseException) -> str:
    name, message = type(error).__name__, _text(error).lower()
    if isinstance(error, MemoryError) or "OutOfMemory" in name:
        return "oom"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "oom"
    if isinstance(error, RuntimeError) and any(mark in message for mark in _OOM_MARKS):
        return "oom"
    if name.startswith("Dist") or (isinstance(error, RuntimeError) and any(m in message for m in _COLLECTIVE_MARKS)):
        return "collective"
    return "error"


def _text(error: BaseException) -> str:
    """The message; a plug-in's exception may fail to give one."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


def _own_words(text: str) -> str:
    """A loader worker's error arrives as text with its traceback in it: its own words are the last line."""
    head, mark, rest = text.partition("Original Traceback (most recent call last)")
    lines = [line for line in rest.splitlines() if line.strip()]
    return f"{head.strip()} {lines[-1].strip()}" if mark and lines else text


def describe(error: BaseException, kind: str, spec: RunSpec, rank: int) -> str:
    """The message for the row: one line, not too long; for oom with the batch and the device that did not hold it."""
    message = " ".join(_own_words(_text(error)).split()).encode("utf-8", "replace").decode("utf-8")
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}... (whole in the log)"
    if kind != "oom":
        return message
    return (
        f"{spec.cell.batch_per_part} samples per part did not fit on {device_of(spec, rank)} of rank {rank}: {message}"
    )


def device_of(spec: RunSpec, rank: int) -> str:
    """`cpu`, `cuda:1`, or `cuda:2 and cuda:3` for a process of two devices."""
    if spec.device_kind == "cpu":
        return "cpu"
    local = int(os.environ.get("LOCAL_RANK", rank))
    first = sum(place.devices for place in spec.cell.places[rank - local : rank])
    own = spec.cell.places[rank].devices
    return " and ".join(f"{spec.device_kind}:{first + index}" for index in range(own))


def report_failure(error: BaseException, spec: RunSpec, rank: int, phase: str) -> None:
    """Write the account to the run's folder and the traceback to the log."""
    kind = classify(error)
    account = RankError(
        rank=rank,
        kind=kind,
        phase=phase,
        type=type(error).__name__,
        message=describe(error, kind, spec, rank),
        nanoseconds=time.perf_counter_ns(),
    )
    # The account first: a log that cannot be written must not cost it.
    account.write(error_path(Path(spec.folder), rank))
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
