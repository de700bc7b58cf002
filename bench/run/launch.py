"""Start the processes of one run, watch them to their end, and leave none alive.

The processes are started by the layer under torchrun (`torch.distributed.elastic.multiprocessing`), which gives each
rank its log and reaps it. They meet through a FileStore in the run's folder and gloo on the loopback interface, so
no port can collide and nothing listens on other addresses. What became of them is judged in `verdict`.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import heartbeat
from bench.errors import UserError
from bench.heartbeat import Beat
from bench.machine.network import loopback_variables
from bench.run.interrupts import undisturbed
from bench.run.leftovers import RUN_VARIABLE, end_sessions
from bench.run.verdict import Frame, judge, read_stack, timeout_reason
from bench.run.verdict import Outcome as Outcome
from bench.wire import RunSpec, heartbeat_path, measurement_path, stack_path

POLL_SECONDS = 0.05
PROGRESS_SECONDS = 0.25
PEER_GRACE_SECONDS = 1.5
EXIT_GRACE_SECONDS = 20.0
STACK_SECONDS = 1.0
KILL_SECONDS = 10
SPAWN_VARIABLE = "STRATEGYBENCH_SPAWN_NS"
_TORCH_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


OnProgress = Callable[[list[Beat]], None]


def launch(
    spec: RunSpec, *, on_progress: OnProgress | None = None, on_start: Callable[[list[int]], None] | None = None
) -> Outcome:
    """Run the processes of one run to their end and judge it.

    `on_progress` is called a few times a second with every rank's last beat, `on_start` once with the pids. No rank
    is alive when this returns or raises, whatever happens. Raises UserError when the run's folder cannot be written.
    """
    spec_file = _fresh_folder(spec)
    context = None
    try:
        # Ranks that were started but are not yet known here could not be ended.
        with undisturbed():
            context = _start(spec, spec_file)
            if on_start:
                on_start(list(context.pids().values()))
        return _Watch(context, spec, on_progress).until_judged()
    finally:
        with undisturbed():
            if context is not None:
                _end(context, Path(spec.folder))
            Path(spec.rendezvous).unlink(missing_ok=True)


def _fresh_folder(spec: RunSpec) -> Path:
    """The run's folder with nothing of an earlier attempt in it: a stale rendezvous or account would speak for this."""
    folder = Path(spec.folder)
    path = folder / "spec.json"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        Path(spec.rendezvous).unlink(missing_ok=True)
        heartbeat.create(heartbeat_path(folder), spec.processes)
        spec.write(path)
    except OSError as error:
        raise UserError(
            f"could not write to {folder}: {error.strerror or error}; what was measured before is kept"
        ) from None
    return path


def _start(spec: RunSpec, spec_file: Path) -> Any:
    from torch.distributed.elastic.multiprocessing import start_processes

    # torch announces every failure on stderr; it stands in the row and in the rank's log already.
    logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL + 1)
    environment = {rank: worker_environment(spec, rank) for rank in range(spec.processes)}
    with _own_handlers():
        return start_processes(
            name="bench",
            entrypoint=sys.executable,
            args={rank: ("-u", "-m", "bench.worker", str(spec_file)) for rank in range(spec.processes)},
            envs=environment,
            logs_specs=_rank_logs(Path(spec.folder)),
        )


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep torch's launcher from putting its handlers in place of the command's: SIGQUIT's alone, which is put back."""
    before = os.environ.get(_TORCH_SIGNALS)
    number = getattr(signal, "SIGQUIT", None)
    handler = signal.getsignal(number) if number is not None else None
    os.environ[_TORCH_SIGNALS] = "SIGQUIT"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TORCH_SIGNALS]
        else:
            os.environ[_TORCH_SIGNALS] = before
        if number is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def worker_environment(spec: RunSpec, rank: int) -> dict[str, str]:
    """Variables of one rank, beside those it inherits.

    All ranks of a run are on this machine, so they meet on the loopback interface whatever a preset variable says:
    another one would have them listen where other machines reach them. A variable that names no interface at all was
    refused before, since it is more likely a mistake than meant for other programs.
    """
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.processes),
        "LOCAL_WORLD_SIZE": str(spec.processes),
        SPAWN_VARIABLE: str(time.perf_counter_ns()),
        RUN_VARIABLE: str(Path(spec.folder).resolve()),
        # Every cell gets the same threads, whatever the user's shell says.
        "OMP_NUM_THREADS": str(spec.threads_per_device),
        "MKL_NUM_THREADS": str(spec.threads_per_device),
        # The driver's numbering, so that the GPUs a run uses are those that were detected and whose telemetry is read.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": os.pathsep.join([path for path in sys.path if path]),
    }
    if spec.device_kind == "cpu":
        # torch.nn.DataParallel takes every GPU that it can see, wherever the model is.
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables | loopback_variables()


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


class _Watch:
    """Polls the ranks until all have ended, one has failed, or the deadline has passed."""

    def __init__(self, context: Any, spec: RunSpec, on_progress: OnProgress | None) -> None:
        self._context = context
        self._spec = spec
        self._folder = Path(spec.folder)
        self._on_progress = on_progress
        self._begin = time.monotonic()
        self._last_progress = self._begin
        self._since: dict[str, float] = {}

    def until_judged(self) -> Outcome:
        while True:
            codes = self._codes()
            now = time.monotonic()
            if self._over(codes, now):
                return judge(codes, self._spec)
            if now - self._begin > self._spec.timeout_seconds:
                return self._timed_out(codes)
            if self._on_progress and now - self._last_progress > PROGRESS_SECONDS:
                self._last_progress = now
                self._on_progress(self._beats())
            time.sleep(POLL_SECONDS)

    def _codes(self) -> dict[int, int | None]:
        return {rank: handler.proc.poll() for rank, handler in self._context.subprocess_handlers.items()}

    def _beats(self) -> list[Beat]:
        return heartbeat.read_beats(heartbeat_path(self._folder))

    def _over(self, codes: dict[int, int | None], now: float) -> bool:
        """Whether there is nothing to wait for: peers of a failed rank get a moment to say what they know."""
        ended = [code for code in codes.values() if code is not None]
        if len(ended) == len(codes):
            return True
        if any(ended):
            return self._passed("failure", PEER_GRACE_SECONDS, now)
        if self._closed():
            return self._passed("closed", EXIT_GRACE_SECONDS, now)
        return bool(ended) and self._passed("exit", PEER_GRACE_SECONDS, now)

    def _closed(self) -> bool:
        """Whether the result is complete and every rank has said its last word, though it may not have exited."""
        return measurement_path(self._folder).exists() and all(beat.phase == "done" for beat in self._beats())

    def _passed(self, what: str, seconds: float, now: float) -> bool:
        return now - self._since.setdefault(what, now) > seconds

    def _timed_out(self, codes: dict[int, int | None]) -> Outcome:
        if self._closed():
            return judge(codes, self._spec)
        beats = self._beats()
        stacks = self._stacks([beat.rank for beat in beats if beat.nanoseconds and codes.get(beat.rank) is None])
        return Outcome("timeout", timeout_reason(beats, self._spec.timeout_seconds, stacks))

    def _stacks(self, ranks: Sequence[int]) -> dict[int, list[Frame]]:
        """Ask ranks that have begun for their Python stacks, which go to their logs; a stopped rank gives none."""
        ask = getattr(signal, "SIGUSR1", None)
        if ask is None:
            return {}
        for rank in ranks:
            self._context.subprocess_handlers[rank].proc.send_signal(ask)
        paths = {rank: stack_path(self._folder, rank) for rank in ranks}
        end = time.monotonic() + STACK_SECONDS
        while time.monotonic() < end and not all(read_stack(path) for path in paths.values()):
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return {rank: read_stack(path) for rank, path in paths.items()}


def _end(context: Any, folder: Path) -> None:
    """End every rank, and what a rank started and left behind in its session."""
    ranks = set(context.pids().values())
    context.close(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM, timeout=KILL_SECONDS)
    end_sessions(ranks, folder)
