"""What became of a run: judged from exit codes, the ranks' own accounts, the heartbeat and their stacks.

torch's "root cause" names the rank that was waiting when another one hangs or is killed; here the rank that caused
the failure is named, in its own words where it left any.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import heartbeat
from bench.heartbeat import Beat
from bench.wire import Measurement, RankError, RunSpec, error_path, heartbeat_path, measurement_path, stderr_path

_STACK_LINE = re.compile(r"^(frame #|\s*#\d+ |Fatal Python error|Thread 0x|Current thread|\s+File \"|\s*<.*>$)")
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
# A rank whose innermost Python frame is in one of these waits for its peers, or for a kernel that does.
_WAITING = ("torch/distributed/", "torch/autograd/", "torch/nn/parallel/", "torch/cuda/")
SIGKILL = 9  # signal.SIGKILL, which Windows lacks.
# How gloo and torch's stores say that a process group's own deadline has passed.
_GROUP_TIMEOUT = re.compile(r"timed? ?out", re.IGNORECASE)
_LIBRARIES = ("site-packages/", "dist-packages/", "lib/python")


@dataclass(frozen=True)
class Outcome:
    """What became of a run. `status` is one of the table's; `measurement` is there when it is complete.

    `start` is how its ranks were started, warm or cold. `lost` says that what started or watched them ended, so that
    the run itself cannot be blamed.
    """

    status: str
    reason: str = ""
    exit_code: int | None = None
    measurement: Measurement | None = None
    warnings: tuple[str, ...] = ()
    start: str = ""
    cores: tuple[tuple[int, ...], ...] = ()
    lost: bool = False


@dataclass(frozen=True)
class Frame:
    """One line of a rank's stack."""

    file: str
    line: int
    function: str

    @property
    def waiting(self) -> bool:
        return any(mark in Path(self.file).as_posix() for mark in _WAITING)

    @property
    def library(self) -> bool:
        # Frozen modules, such as the import system, stand in no file.
        return self.file.startswith("<") or any(mark in Path(self.file).as_posix() for mark in _LIBRARIES)

    def __str__(self) -> str:
        return f"{self.function}, {Path(self.file).name} line {self.line}"


Stacks = Mapping[int, Sequence[Frame]]


def judge(codes: Mapping[int, int | None], spec: RunSpec) -> Outcome:
    """The outcome from exit codes (None: still alive), the ranks' own accounts and the measurement.

    A complete measurement counts unless a rank raised while closing: ranks that abort at exit afterwards are a
    warning. Otherwise the cause is, in this order: a rank's own error, a rank ended by a signal, a rank that left too
    early, an error seen in a collective, which is what the neighbours of the failing rank report. Where that error is a
    group's own deadline, which may be shorter than the run's, the ranks still alive are those waited for: a timeout.
    """
    folder = Path(spec.folder)
    accounts = [account for rank in codes if (account := RankError.read(error_path(folder, rank)))]
    accounts.sort(key=lambda account: account.nanoseconds)
    own = [account for account in accounts if account.kind != "collective"]
    if own:
        return _own_error(own[0], codes, spec.cell["strategy"])
    if measurement_path(folder).exists():
        warnings = _late_ends(codes, heartbeat.read_beats(heartbeat_path(folder)))
        try:
            measurement = Measurement.read(measurement_path(folder))
            _check_ranks(measurement, spec)
        except ValueError as error:
            return Outcome("crashed", f"rank 0 left a measurement that cannot be used: {error}", codes.get(0))
        return Outcome("ok", measurement=measurement, warnings=warnings)
    return _without_measurement(codes, accounts, spec)


def _check_ranks(measurement: Measurement, spec: RunSpec) -> None:
    for epoch in measurement.epochs:
        if len(epoch.timed_seconds) != spec.processes:
            raise ValueError(f"it is of {len(epoch.timed_seconds)} ranks, the run had {spec.processes}")
        steps = {len(epoch.step_seconds[rank]) for rank in spec.cell.plan.trainers}
        if len(steps) != 1 or 0 in steps:
            raise ValueError(f"its ranks timed {', '.join(map(str, sorted(steps)))} steps")


def _own_error(first: RankError, codes: Mapping[int, int | None], strategy: str) -> Outcome:
    code = codes.get(first.rank)
    if first.kind == "unsupported":
        return Outcome("unsupported", first.message, code)
    return Outcome("oom" if first.kind == "oom" else "crashed", _told(first, strategy), code)


_UNUSED = "find_unused_parameters"


def _told(account: RankError, strategy: str) -> str:
    told = f"rank {account.rank} in {account.phase}: {account}"
    if _UNUSED not in account.message:
        return told
    return f"{told} (in this suite: --set {strategy}.{_UNUSED}=true, where the strategy has that option)"


def _late_ends(codes: Mapping[int, int | None], beats: Sequence[Beat]) -> tuple[str, ...]:
    """What went wrong after the result was complete."""
    warnings = []
    for rank, code in codes.items():
        if code is None:
            warnings.append(f"rank {rank} did not exit after the result was complete")
        elif code:
            warnings.append(f"rank {rank} ended with {exit_name(code)} after the result was complete")
        elif rank < len(beats) and beats[rank].phase != "done":
            warnings.append(f"rank {rank} exited with code 0 before it had closed, after the result was complete")
    return tuple(warnings)


def _without_measurement(codes: Mapping[int, int | None], accounts: Sequence[RankError], spec: RunSpec) -> Outcome:
    folder, strategy = Path(spec.folder), spec.cell["strategy"]
    beats = heartbeat.read_beats(heartbeat_path(folder))
    for rank, code in codes.items():
        if code is not None and code < 0:
            hint = ", which is how the kernel ends a process when memory runs out" if code == -SIGKILL else ""
            told = f"rank {rank} was ended by {exit_name(code)}{hint} ({_place(beats, rank)})"
            return Outcome("crashed", told + _last_words(folder, rank, code), code)
    for rank, code in codes.items():
        if code == 0 and not (rank < len(beats) and beats[rank].phase == "done"):
            return Outcome(
                "crashed", f"rank {rank} exited with code 0 before the run was complete ({_place(beats, rank)})", 0
            )
    ended = [rank for rank, code in codes.items() if code is not None]
    waited = next((account for account in accounts if _GROUP_TIMEOUT.search(account.message)), None)
    if waited and len(ended) < len(codes):
        return Outcome("timeout", "; ".join([_told(waited, strategy), *_late(beats, {}, ended)]))
    if accounts:
        return Outcome("crashed", _told(accounts[0], strategy), codes.get(accounts[0].rank))
    rank, code = next(((rank, code) for rank, code in codes.items() if code), (0, codes.get(0)))
    return Outcome("crashed", f"rank {rank} ended with {exit_name(code)} and left no account; see its log", code)


LAST_WORDS = 300
_TALKING = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP")


def _last_words(folder: Path, rank: int, code: int) -> str:
    """How the log of a rank ends that ended itself, such as C++'s "terminate called ... what()"; "" of others."""
    if exit_name(code) not in _TALKING:
        return ""
    try:
        with stderr_path(folder, rank).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 20 * LAST_WORDS))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    # What follows is a stack, innermost first: of an abort it says less than the message above it.
    spoken = [line.strip() for line in lines if line.strip() and not _STACK_LINE.match(line)]
    words = " ".join(spoken[-2:])
    return f"; its log ends with: {words[-LAST_WORDS:]}" if words else ""


def _place(beats: Sequence[Beat], rank: int) -> str:
    return f"last seen in {beats[rank].where}" if rank < len(beats) and beats[rank].nanoseconds else "never seen"


def timeout_reason(beats: Sequence[Beat], seconds: float, stacks: Stacks | None = None) -> str:
    """Which ranks had not come as far as the others when the deadline passed.

    Told from the suite's own heartbeat; ranks at the same beat are told apart by their stacks: one that is not
    waiting in a collective is the one that the others wait for.
    """
    return "; ".join([f"no result after {seconds:g} s", *_late(beats, stacks or {})])


def _late(beats: Sequence[Beat], stacks: Stacks, ended: Sequence[int] = ()) -> list[str]:
    """The ranks that the others waited for, one text a rank; those in `ended` have given up waiting."""
    where = {beat.rank: (heartbeat.PHASES.index(beat.phase), beat.step) for beat in beats}
    alive = [beat for beat in beats if beat.rank not in ended]
    behind = [beat for beat in alive if where[beat.rank] < max(where.values())]
    if not behind:
        waiting = {*ended, *_waiting(stacks)}
        behind = [beat for beat in alive if beat.rank not in waiting] if waiting else []
    now = time.perf_counter_ns()
    if behind and _waits_too(behind, alive, stacks):
        # Whoever left out an exchange waits in a later one: by its beats it is not the one that is behind.
        told = "; ".join(_seen(beat, stacks.get(beat.rank, ()), now) for beat in alive)
        return [f"every rank waits for the others, not all in the same exchange: {told}"]
    seen = [_seen(beat, stacks.get(beat.rank, ()), now) for beat in behind or alive]
    if 0 < len(behind) < len(beats):
        seen[0] = f"behind the others: {seen[0]}"
    return seen


def _waits_too(behind: Sequence[Beat], alive: Sequence[Beat], stacks: Stacks) -> bool:
    """Whether all that are alive wait in a collective, those that are behind the others too."""
    return len(behind) < len(alive) and {beat.rank for beat in alive} <= _waiting(stacks)


def _waiting(stacks: Stacks) -> set[int]:
    """The ranks that wait for others, by their stacks."""
    return {rank for rank, frames in stacks.items() if frames and frames[0].waiting}


def _seen(beat: Beat, stack: Sequence[Frame], now: int) -> str:
    if not beat.nanoseconds:
        return f"rank {beat.rank} never seen"
    # The innermost frame that is not a library's: there the reader can do something.
    frame = next((frame for frame in stack if not frame.library), stack[0] if stack else None)
    place = f" in {frame}" if frame else ""
    return f"rank {beat.rank} in {beat.where}, {beat.seconds_ago(now):.0f} s without progress{place}"


def read_stack(path: Path) -> list[Frame]:
    """The frames of the last stack that faulthandler wrote into a file, innermost first; empty where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    last = text.rpartition("most recent call first")[2]
    return [Frame(match["file"], int(match["line"]), match["function"]) for match in _FRAME.finditer(last)]


def exit_name(code: int | None) -> str:
    """`exit code 3`, or the name of the signal."""
    if code is None:
        return "no exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
