"""Have the ranks of one run started, watch them to their end, and leave none alive.

A node's agent starts and ends them (`bench.run.agent`). They meet through a FileStore in the run's folder and gloo on
the loopback interface, so no port can collide and nothing listens on other addresses. What became of them is judged in
`verdict`.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench import heartbeat
from bench.errors import UserError
from bench.heartbeat import Beat
from bench.run.interrupts import undisturbed
from bench.run.node import LiveRun, LocalNode
from bench.run.verdict import Frame, judge, read_stack, timeout_reason
from bench.run.verdict import Outcome as Outcome
from bench.wire import RunSpec, heartbeat_path, measurement_path, stack_path

POLL_SECONDS = 0.05
PROGRESS_SECONDS = 0.25
PEER_GRACE_SECONDS = 1.5
EXIT_GRACE_SECONDS = 20.0
STACK_SECONDS = 1.0


OnProgress = Callable[[list[Beat]], None]


def launch(
    spec: RunSpec,
    *,
    node: LocalNode | None = None,
    on_progress: OnProgress | None = None,
    on_start: Callable[[list[int]], None] | None = None,
) -> Outcome:
    """Run the ranks of one run on a node to their end and judge it. Without a node they get one of their own.

    `on_progress` is called a few times a second with every rank's last beat, `on_start` once with the pids. No rank
    is alive when this returns or raises, whatever happens. Raises UserError when the run's folder cannot be written.
    """
    if node is None:
        with LocalNode() as own:
            return launch(spec, node=own, on_progress=on_progress, on_start=on_start)
    spec_file = _fresh_folder(spec)
    run: LiveRun | None = None
    try:
        # Ranks that were asked for but are not yet known here could not be ended.
        with undisturbed():
            run = node.start(spec, spec_file)
        outcome = _Watch(node, run, spec, on_progress, on_start).until_judged()
        return replace(outcome, start=run.how, cores=spec.cores, warnings=(*outcome.warnings, *_otherwise_started(run)))
    finally:
        with undisturbed():
            if run is not None:
                node.end(run)
            Path(spec.rendezvous).unlink(missing_ok=True)


def _otherwise_started(run: LiveRun) -> tuple[str, ...]:
    if not run.why:
        return ()
    return (f"ranks were not forked, since the process that would fork them is not fit for it: {run.why}",)


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


class _Watch:
    """Listens to the node until all ranks have ended, one has failed, or the deadline has passed."""

    def __init__(
        self,
        node: LocalNode,
        run: LiveRun,
        spec: RunSpec,
        on_progress: OnProgress | None,
        on_start: Callable[[list[int]], None] | None,
    ) -> None:
        self._node = node
        self._run = run
        self._on_start = on_start
        self._spec = spec
        self._folder = Path(spec.folder)
        self._on_progress = on_progress
        self._begin = time.monotonic()
        self._last_progress = self._begin
        self._since: dict[str, float] = {}

    def until_judged(self) -> Outcome:
        while True:
            self._node.pump(POLL_SECONDS)
            if self._on_start and self._run.started:
                self._on_start(list(self._run.pids.values()))
                self._on_start = None
            codes = self._run.exit_codes()
            now = time.monotonic()
            if self._run.lost and not self._closed():
                return Outcome("crashed", self._run.lost, lost=True)
            if self._over(codes, now):
                return judge(codes, self._spec)
            if now - self._begin > self._spec.timeout_seconds:
                return self._timed_out(codes)
            if self._on_progress and now - self._last_progress > PROGRESS_SECONDS:
                self._last_progress = now
                self._on_progress(self._beats())

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
        self._node.ask_for_stacks(self._run, list(ranks))
        paths = {rank: stack_path(self._folder, rank) for rank in ranks}
        end = time.monotonic() + STACK_SECONDS
        while time.monotonic() < end and not all(read_stack(path) for path in paths.values()):
            self._node.pump(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return {rank: read_stack(path) for rank, path in paths.items()}
