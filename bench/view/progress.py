"""What `bench run` shows while it measures: a live line on a terminal, one plain line a run elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import IO, Any, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from bench.heartbeat import Beat
from bench.run.reporter import Reporter, duration


class _Lasting:
    """A stream that swallows what cannot be written: a terminal that was closed must not end hours of measurement."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lasting(console: Console) -> Console:
    """The same console on such a stream: everything that rich writes goes through it, from its threads too."""
    console.file = cast(IO[str], _Lasting(console.file))
    return console


class Quiet:
    """Says nothing but what is to be known of files that were changed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr)

    def plan(self, runs: int) -> None:
        pass

    def begin(self, name: str, block: int, blocks: int) -> None:
        pass

    def beats(self, name: str, beats: list[Beat], timed_steps: int) -> None:
        pass

    def waits(self, name: str, what: str) -> None:
        pass

    def end(self, name: str, result: str) -> None:
        pass

    def download(self, done: int, total: int) -> None:
        pass


class Lines(Quiet):
    """One line when a run has ended: for logs."""

    def __init__(self, console: Console) -> None:
        self._console = lasting(console)
        self._done = 0
        self._runs = 0

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.note(text)

    def plan(self, runs: int) -> None:
        self._runs = self._done + runs

    def end(self, name: str, result: str) -> None:
        self._done += 1
        self.note(f"[{self._done}/{self._runs}] {name}: {result}")


class Live(Quiet):
    """A bar of the campaign with the time left by the speed so far, and below it a line for each run that is alive.

    Results scroll above it.
    """

    def __init__(self, console: Console) -> None:
        self._console = lasting(console)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._download: TaskID | None = None
        self._begun = time.monotonic()
        self._done = 0
        self._runs = 0
        self._live: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.note(text)

    def plan(self, runs: int) -> None:
        if self._task is None:
            self._task = self._progress.add_task("runs", total=runs, left="")
            self._begun = time.monotonic()
        self._runs = self._done + runs
        self._progress.update(self._task, total=self._runs)

    def begin(self, name: str, block: int, blocks: int) -> None:
        if self._task is not None:
            of = f"/{blocks}" if blocks else ""
            self._progress.update(self._task, description=f"runs, block {block + 1}{of}")
        self._forget(name)
        self._live[name] = self._progress.add_task(f"  {name}", total=None, left="starting")

    def beats(self, name: str, beats: list[Beat], timed_steps: int) -> None:
        if not beats or name not in self._live:
            return
        slowest = min(beats, key=lambda beat: beat.nanoseconds)
        task = self._live[name]
        self._progress.update(task, left=slowest.phase)
        if slowest.phase == "timed":
            self._progress.update(task, completed=slowest.step, total=timed_steps or None)

    def waits(self, name: str, what: str) -> None:
        if name in self._live:
            self._progress.update(self._live[name], left="waits for its turn")

    def _forget(self, name: str) -> None:
        if name in self._live:
            self._progress.remove_task(self._live.pop(name))

    def end(self, name: str, result: str) -> None:
        self._done += 1
        self.note(f"{name}: {result}")
        self._forget(name)
        if self._task is not None:
            left = (time.monotonic() - self._begun) / self._done * (self._runs - self._done)
            self._progress.update(self._task, completed=self._done, left=f"about {duration(left)} left")

    def download(self, done: int, total: int) -> None:
        if self._download is None:
            self._download = self._progress.add_task("downloading data", total=total or None, left="")
        self._progress.update(self._download, completed=done, total=total or None)
        if total and done >= total:
            self._progress.remove_task(self._download)
            self._download = None


def make_reporter(*, quiet: bool) -> Reporter:
    """The reporter that suits where stderr goes."""
    if quiet:
        return Quiet()
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Lines(console)
