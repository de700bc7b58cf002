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
from typing import Any, Self

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
    with Watched(spec, node) as watched:
        while True:
            node.pump(POLL_SECONDS)
            if on_start and watched.pids:
                on_start(watched.pids)
                on_start = None
            outcome = watched.look()
            if outcome is not None:
                return outcome
            if on_progress and watched.progress_is_due():
                on_progress(watched.beats())


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


class Watched:
    """A run in whose ranks' lives somebody looks from time to time, until all have ended, one has failed, or its
    deadline has passed. The deadline counts the time in which it has the floor.

    with Watched(spec, node) as watched:    # starts the ranks; none is alive afterwards, whatever happens
        while (outcome := watched.look()) is None:
            node.pump(POLL_SECONDS)
    """

    def __init__(self, spec: RunSpec, node: LocalNode) -> None:
        self.spec = spec
        self._node = node
        self._run: LiveRun | None = None
        self._folder = Path(spec.folder)
        self._worked = 0.0
        self._since: dict[str, float] = {}
        self._begin = self._last_progress = time.monotonic()

    def __enter__(self) -> Self:
        spec_file = _fresh_folder(self.spec)
        self._begin = self._last_progress = time.monotonic()
        # Ranks that were asked for but are not yet known here could not be ended.
        with undisturbed():
            self._run = self._node.start(self.spec, spec_file)
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            if self._run is not None:
                self._node.end(self._run)
            Path(self.spec.rendezvous).unlink(missing_ok=True)

    @property
    def run(self) -> LiveRun:
        assert self._run is not None
        return self._run

    @property
    def pids(self) -> list[int]:
        """Those of all ranks, once all have begun; before, none."""
        return list(self._run.pids.values()) if self._run is not None and self._run.started else []

    @property
    def waits(self) -> str:
        """For what its ranks wait without the floor, "" while they work."""
        return self.run.waits

    def go(self, **told: Any) -> None:
        """Give it the floor."""
        self._begin = time.monotonic()
        self._since.clear()
        self._node.go(self.run, **told)

    def pause(self) -> None:
        """It has given the floor away: its time does not count until `go`."""
        self._worked += time.monotonic() - self._begin

    def look(self) -> Outcome | None:
        """What became of it, None while it is not over."""
        outcome = self._judged()
        if outcome is None:
            return None
        told = (*outcome.warnings, *_otherwise_started(self.run))
        return replace(outcome, start=self.run.how, cores=self.spec.cores, warnings=told)

    def _judged(self) -> Outcome | None:
        codes = self.run.exit_codes()
        now = time.monotonic()
        if self.run.lost and not self._closed():
            return Outcome("crashed", self.run.lost, lost=True)
        if self._over(codes, now):
            return judge(codes, self.spec)
        if not self.waits and self._worked + now - self._begin > self.spec.timeout_seconds:
            return self._timed_out(codes)
        return None

    def progress_is_due(self) -> bool:
        """True a few times a second."""
        now = time.monotonic()
        due = now - self._last_progress > PROGRESS_SECONDS
        self._last_progress = now if due else self._last_progress
        return due

    def beats(self) -> list[Beat]:
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
        return measurement_path(self._folder).exists() and all(beat.phase == "done" for beat in self.beats())

    def _passed(self, what: str, seconds: float, now: float) -> bool:
        return now - self._since.setdefault(what, now) > seconds

    def _timed_out(self, codes: dict[int, int | None]) -> Outcome:
        if self._closed():
            return judge(codes, self.spec)
        beats = self.beats()
        stacks = self._stacks([beat.rank for beat in beats if beat.nanoseconds and codes.get(beat.rank) is None])
        return Outcome("timeout", timeout_reason(beats, self.spec.timeout_seconds, stacks))

    def _stacks(self, ranks: Sequence[int]) -> dict[int, list[Frame]]:
        """Ask ranks that have begun for their Python stacks, which go to their logs; a stopped rank gives none."""
        ask = getattr(signal, "SIGUSR1", None)
        if ask is None:
            return {}
        self._node.ask_for_stacks(self.run, list(ranks))
        paths = {rank: stack_path(self._folder, rank) for rank in ranks}
        end = time.monotonic() + STACK_SECONDS
        while time.monotonic() < end and not all(read_stack(path) for path in paths.values()):
            self._node.pump(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return {rank: read_stack(path) for rank, path in paths.items()}
