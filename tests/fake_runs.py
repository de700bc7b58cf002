"""Runs without processes: what `bench.run.launch.Watched` and Telemetry would say of them, as told beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import pytest

from bench.run import attempt
from bench.run.launch import Outcome
from bench.wire import RunSpec

Life = Callable[[RunSpec], Iterable[str | Outcome]]
"""What becomes of a run: words for what it waits, each while it has no floor, and its outcome in the end."""


class FakeRun:
    """Stands for LiveRun."""

    step_seconds: float | None = None


class FakeWatched:
    """Each `look` after the start or `go` takes the next thing that becomes of the run."""

    life: Life
    order: list[tuple[str, str]]

    def __init__(self, spec: RunSpec, node: object) -> None:
        self.spec = spec
        self.run = FakeRun()
        self.waits = ""
        self.pids: list[int] = []
        self.told: list[dict[str, Any]] = []
        self._coming: Iterator[str | Outcome] = iter(type(self).life(spec))

    def __enter__(self) -> Self:
        self.order.append((self.spec.run_id, "start"))
        return self

    def __exit__(self, *_: object) -> None:
        self.order.append((self.spec.run_id, "end"))

    def go(self, **told: Any) -> None:
        self.order.append((self.spec.run_id, self.waits))
        self.told.append(told)
        self.waits = ""

    def pause(self) -> None:
        pass

    def look(self) -> Outcome | None:
        if self.waits:
            return None
        coming = next(self._coming)
        if isinstance(coming, Outcome):
            return coming
        self.waits = coming
        return None

    def progress_is_due(self) -> bool:
        return False


class FakeTelemetry:
    """Gives each run the next of the readings, and nothing once there are no more."""

    readings: Iterator[dict[str, Any]]

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def result(self) -> dict[str, Any]:
        return next(self.readings, {})


def fake_runs(
    monkeypatch: pytest.MonkeyPatch, life: Life, readings: Iterable[dict[str, Any]] = ()
) -> tuple[list[tuple[str, str]], Iterator[dict[str, Any]]]:
    """Have campaigns measure such runs. Gives what happened in which order, and the readings that are left."""

    class Watched(FakeWatched):
        pass

    class Telemetry(FakeTelemetry):
        pass

    Watched.life = staticmethod(life)
    Watched.order = []
    Telemetry.readings = iter(readings)
    monkeypatch.setattr(attempt, "Watched", Watched)
    monkeypatch.setattr(attempt, "Telemetry", Telemetry)
    return Watched.order, Telemetry.readings
