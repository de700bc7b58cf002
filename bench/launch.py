"""Start the processes of one run, watch them, and say what became of them.

The processes are started by the layer under torchrun (`torch.distributed.elastic.multiprocessing`), which gives each
rank its log and reaps it. They meet through a FileStore in the run's folder and gloo on the loopback interface, so
no port can collide and nothing listens on other addresses. Judging a failure is done here: torch's "root cause"
names the rank that was waiting when another one hangs or is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import heartbeat
from bench.heartbeat import Beat
from bench.machine import loopback_interface
from bench.spec import Measurement, RankError, RunSpec, error_path, heartbeat_path, measurement_path

POLL_SECONDS = 0.05
PEER_GRACE_SECONDS = 1.5
EXIT_GRACE_SECONDS = 20.0
KILL_SECONDS = 10


@dataclass(frozen=True)
class Outcome:
    """What became of a run. `status` is one of the table's; `measurement` is there when it is complete."""

    status: str
    reason: str = ""
    exit_code: int | None = None
    measurement: Measurement | None = None
    warnings: tuple[str, ...] = ()


OnProgress = Callable[[list[Beat]], None]


def launch(
    spec: RunSpec, *, on_progress: OnProgress | None = None, on_start: Callable[[list[int]], None] | None = None
) -> Outcome:
    """Run the processes of one run to their end and judge it.

    `on_progress` is called a few times a second with every rank's last beat, `on_start` once with the pids. No rank
    is alive when this returns or raises, whatever happens.
    """
    folder = Path(spec.folder)
    folder.mkdir(parents=True, exist_ok=True)
    heartbeat.create(heartbeat_path(folder), spec.processes)
    spec_file = folder / "spec.json"
    spec.write(spec_file)
    # torch announces every failure on stderr; it stands in the row and in the rank's log already.
    logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL + 1)
    handlers = _current_handlers()
    context = _start(spec, spec_file)
    _restore_handlers(handlers)
    try:
        if on_start:
            on_start(list(context.pids().values()))
        return _watch(context, spec, on_progress)
    finally:
        context.close(_kill_signal(), timeout=KILL_SECONDS)
        Path(spec.store).unlink(missing_ok=True)


def _start(spec: RunSpec, spec_file: Path) -> Any:
    from torch.distributed.elastic.multiprocessing import start_processes

    environment = {rank: worker_environment(spec, rank) for rank in range(spec.processes)}
    return start_processes(
        name="bench",
        entrypoint=sys.executable,
        args={rank: ("-u", "-m", "bench.worker", str(spec_file)) for rank in range(spec.processes)},
        envs=environment,
        logs_specs=_rank_logs(Path(spec.folder)),
    )


def worker_environment(spec: RunSpec, rank: int) -> dict[str, str]:
    """Variables of one rank, beside those it inherits."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.processes),
        "LOCAL_WORLD_SIZE": str(spec.processes),
        "STRATEGYBENCH_SPAWN_NS": str(time.perf_counter_ns()),
        # Every cell gets the same threads, whatever the user's shell says.
        "OMP_NUM_THREADS": str(spec.threads_per_device),
        "MKL_NUM_THREADS": str(spec.threads_per_device),
        "PYTHONPATH": os.pathsep.join([path for path in sys.path if path]),
    }
    interface = loopback_interface()
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        variables["GLOO_SOCKET_IFNAME"] = interface
    return variables


def _rank_logs(folder: Path) -> Any:
    """Where torch's launcher puts each rank's output: flat in the run's folder."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class RankLogs(LogsSpecs):
        @property
        def root_log_dir(self) -> str:
            return str(folder)

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            return LogsDest(
                stdouts={rank: str(folder / f"rank{rank}.stdout.log") for rank in envs},
                stderrs={rank: str(folder / f"rank{rank}.stderr.log") for rank in envs},
                error_files={rank: str(folder / f"torch-error-{rank}.json") for rank in envs},
            )

    return RankLogs()


def _watch(context: Any, spec: RunSpec, on_progress: OnProgress | None) -> Outcome:
    """Poll until every rank has ended or one has failed, or the deadline passes."""
    folder = Path(spec.folder)
    begin = time.monotonic()
    first_failure = first_exit = None
    last_progress = 0.0
    while True:
        codes = {rank: handler.proc.poll() for rank, handler in context.subprocess_handlers.items()}
        now = time.monotonic()
        ended = {rank: code for rank, code in codes.items() if code is not None}
        if len(ended) == spec.processes:
            return judge(codes, spec)
        if any(ended.values()):
            # Peers get a moment to notice and to say what they know, then they are ended.
            first_failure = first_failure or now
            if now - first_failure > PEER_GRACE_SECONDS:
                return judge(codes, spec)
        elif ended:
            first_exit = first_exit or now
            grace = EXIT_GRACE_SECONDS if measurement_path(folder).exists() else PEER_GRACE_SECONDS
            if now - first_exit > grace:
                return judge(codes, spec)
        if now - begin > spec.timeout_seconds:
            return Outcome("timeout", timeout_reason(heartbeat.read(heartbeat_path(folder)), spec.timeout_seconds))
        if on_progress and now - last_progress > 0.25:
            last_progress = now
            on_progress(heartbeat.read(heartbeat_path(folder)))
        time.sleep(POLL_SECONDS)


def judge(codes: Mapping[int, int | None], spec: RunSpec) -> Outcome:
    """The outcome from exit codes (None: still alive), the ranks' own accounts and the measurement.

    A complete measurement wins: ranks that abort at exit afterwards are a warning. Otherwise the cause is, in this
    order: a rank ended by a signal, a rank's own error, a rank that left too early, an error seen in a collective.
    """
    folder = Path(spec.folder)
    if measurement_path(folder).exists():
        late = [
            f"rank {rank} ended with {exit_name(code)} after the result was complete"
            for rank, code in codes.items()
            if code
        ]
        hung = [
            f"rank {rank} did not exit after the result was complete" for rank, code in codes.items() if code is None
        ]
        return Outcome("ok", measurement=Measurement.read(measurement_path(folder)), warnings=(*late, *hung))
    accounts = [account for rank in codes if (account := RankError.read(error_path(folder, rank)))]
    accounts.sort(key=lambda account: account.nanoseconds)
    signalled = [(rank, code) for rank, code in codes.items() if code is not None and code < 0]
    own = [account for account in accounts if account.kind != "collective"]
    if own:
        first = own[0]
        status = first.kind if first.kind in ("oom", "unsupported") else "crashed"
        reason = str(first) if status == "unsupported" else f"rank {first.rank} in {first.phase}: {first}"
        return Outcome(status, first.message if status == "unsupported" else reason, codes.get(first.rank))
    if signalled:
        rank, code = signalled[0]
        beat = _beat_of(folder, rank)
        hint = ", which is how the kernel ends a process when memory runs out" if code == -signal.SIGKILL else ""
        return Outcome("crashed", f"rank {rank} was ended by {exit_name(code)}{hint} ({beat})", code)
    early = [rank for rank, code in codes.items() if code == 0 and not _arrived(folder, rank)]
    if early:
        beat = _beat_of(folder, early[0])
        return Outcome("crashed", f"rank {early[0]} exited with code 0 before the run was complete ({beat})", 0)
    if accounts:
        first = accounts[0]
        return Outcome("crashed", f"rank {first.rank} in {first.phase}: {first}", codes.get(first.rank))
    failed = next(((rank, code) for rank, code in codes.items() if code), (0, None))
    return Outcome("crashed", f"rank {failed[0]} ended with {exit_name(failed[1])} and left no account", failed[1])


def _beat_of(folder: Path, rank: int) -> str:
    beats = heartbeat.read(heartbeat_path(folder))
    return str(beats[rank]) if rank < len(beats) else "never seen"


def _arrived(folder: Path, rank: int) -> bool:
    beats = heartbeat.read(heartbeat_path(folder))
    return rank < len(beats) and beats[rank].phase in ("close", "done")


def timeout_reason(beats: list[Beat], seconds: float) -> str:
    """Which ranks had not come as far as the others when the deadline passed, from the suite's own heartbeat."""
    where = [(heartbeat.PHASES.index(beat.phase), beat.step) for beat in beats]
    reason = f"no result after {seconds:g} s"
    if not beats:
        return reason
    furthest = max(where)
    behind = [beat for beat, place in zip(beats, where, strict=True) if place < furthest]
    now = time.perf_counter_ns()
    named = behind or beats
    seen = "; ".join(
        f"{beat}, last seen {beat.seconds_ago(now):.0f} s ago" if beat.nanoseconds else f"rank {beat.rank} never seen"
        for beat in named
    )
    return f"{reason}; {'behind the others: ' if behind else ''}{seen}"


def exit_name(code: int | None) -> str:
    """`exit code 3`, or the name of the signal."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _kill_signal() -> signal.Signals:
    return signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM


def _current_handlers() -> dict[int, Any]:
    """torch's launcher puts its own handlers in place of the command's; they are put back right after."""
    numbers = (getattr(signal, name, None) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
    return {int(number): signal.getsignal(number) for number in numbers if number is not None}


def _restore_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)
