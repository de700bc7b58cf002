"""Where a campaign says what it does: the protocol that whatever shows progress keeps."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from bench.heartbeat import Beat


class Reporter(Protocol):
    """Where the runner says what it does. Everything goes to stderr: stdout is for results."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def plan(self, runs: int) -> None: ...
    def begin(self, name: str, block: int, blocks: int) -> None: ...
    def beats(self, name: str, beats: list[Beat], timed_steps: int) -> None: ...
    def waits(self, name: str, what: str) -> None: ...
    def end(self, name: str, result: str) -> None: ...
    def download(self, done: int, total: int) -> None: ...


def duration(seconds: float) -> str:
    """90 -> '1 min 30 s'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
