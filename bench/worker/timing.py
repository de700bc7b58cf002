"""The clock of the timed region. The loop calls four marks; which clock they read depends on the device.

On CPU the marks read `perf_counter_ns`. On CUDA the region's length is read from the same clock after a
synchronize, and the steps from events that are recorded on the stream and read only afterwards, so that no step
waits for the device. A breakdown timer synchronizes at every mark: its runs never enter a headline figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

NANOSECONDS = 1e-9
Clock = Callable[[], int]
Wait = Callable[[], None]


@dataclass(frozen=True)
class Timing:
    """What one rank measured; all in seconds. The lists have one value a timed step.

    `turns` has one for each turn, and `total` is their sum; steps that were timed without a break are one turn.
    """

    total: float
    steps: list[float]
    data_wait: list[float]
    forward_backward: list[float] | None = None
    apply: list[float] | None = None
    turns: list[float] = field(default_factory=list)


class Timer(Protocol):
    """The marks of the loop, in the order it calls them."""

    def start(self) -> None: ...
    def data_ready(self) -> None: ...
    def gradients_ready(self) -> None: ...
    def step_done(self) -> None: ...
    def stop(self) -> Timing: ...


class ClockTimer:
    """Marks read from a nanosecond clock.

    `synchronize` waits for all devices of this process, `barrier` for all ranks.
    """

    def __init__(self, synchronize: Wait, barrier: Wait, *, clock: Clock = time.perf_counter_ns) -> None:
        self._synchronize = synchronize
        self._barrier = barrier
        self._clock = clock
        self._data: list[int] = []
        self._steps: list[int] = []

    def start(self) -> None:
        self._synchronize()
        self._barrier()
        self._start = self._clock()

    def data_ready(self) -> None:
        self._data.append(self._clock())

    def gradients_ready(self) -> None:
        pass

    def step_done(self) -> None:
        self._steps.append(self._clock())

    def stop(self) -> Timing:
        self._synchronize()
        end = self._clock()
        begins = [self._start, *self._steps][: len(self._steps)]
        return Timing(
            total=(end - self._start) * NANOSECONDS,
            steps=_differences(begins, self._steps),
            data_wait=_differences(begins, self._data),
        )


class EventTimer:
    """Steps from CUDA events on this process's first device, the whole region from the clock."""

    def __init__(
        self, synchronize: Wait, barrier: Wait, make_event: Callable[[], Any], *, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._synchronize = synchronize
        self._barrier = barrier
        self._make_event = make_event
        self._clock = clock
        self._data: list[Any] = []
        self._steps: list[Any] = []

    def _mark(self) -> Any:
        event = self._make_event()
        event.record()
        return event

    def start(self) -> None:
        self._synchronize()
        self._barrier()
        self._start = self._clock()
        self._first = self._mark()

    def data_ready(self) -> None:
        self._data.append(self._mark())

    def gradients_ready(self) -> None:
        pass

    def step_done(self) -> None:
        self._steps.append(self._mark())

    def stop(self) -> Timing:
        self._synchronize()
        end = self._clock()
        begins = [self._first, *self._steps][: len(self._steps)]
        milliseconds = 1e-3
        return Timing(
            total=(end - self._start) * NANOSECONDS,
            steps=[a.elapsed_time(b) * milliseconds for a, b in zip(begins, self._steps, strict=True)],
            data_wait=[a.elapsed_time(b) * milliseconds for a, b in zip(begins, self._data, strict=True)],
        )


class BreakdownTimer:
    """Every mark synchronizes first, so that a phase's time is its own; slower, and never a headline run."""

    def __init__(self, synchronize: Wait, barrier: Wait, *, clock: Clock = time.perf_counter_ns) -> None:
        self._synchronize = synchronize
        self._barrier = barrier
        self._clock = clock
        self._marks: list[int] = []

    def start(self) -> None:
        self._synchronize()
        self._barrier()
        self._mark()

    def _mark(self) -> None:
        self._synchronize()
        self._marks.append(self._clock())

    data_ready = gradients_ready = step_done = _mark

    def stop(self) -> Timing:
        marks = self._marks
        begins, data, gradients, ends = marks[0:-1:3], marks[1::3], marks[2::3], marks[3::3]
        return Timing(
            total=(marks[-1] - marks[0]) * NANOSECONDS,
            steps=_differences(begins, ends),
            data_wait=_differences(begins, data),
            forward_backward=_differences(data, gradients),
            apply=_differences(gradients, ends),
        )


class TurnTimer:
    """The same marks, with a timer of its own for each turn: between two of them the floor is given away.

    `deal` is how many steps each turn has; a rank that times none, since it only serves, has one turn.
    """

    def __init__(self, make_timer: Callable[[], Timer], deal: Sequence[int], give_away: Callable[[], object]) -> None:
        self._make_timer = make_timer
        self._left = list(deal)
        self._give_away = give_away
        self._timer = make_timer()
        self._steps = 0
        self._done: list[Timing] = []

    def start(self) -> None:
        self._timer.start()

    def data_ready(self) -> None:
        self._timer.data_ready()

    def gradients_ready(self) -> None:
        self._timer.gradients_ready()

    def step_done(self) -> None:
        self._timer.step_done()
        self._steps += 1
        if len(self._left) > 1 and self._steps == self._left[0]:
            self._done.append(self._timer.stop())
            self._left.pop(0)
            self._steps = 0
            self._timer = self._make_timer()
            self._give_away()
            self._timer.start()

    def stop(self) -> Timing:
        return joined([*self._done, self._timer.stop()])


def joined(turns: Sequence[Timing]) -> Timing:
    """The timings of a run's turns as one."""
    return Timing(
        total=sum(turn.total for turn in turns),
        steps=[step for turn in turns for step in turn.steps],
        data_wait=[wait for turn in turns for wait in turn.data_wait],
        forward_backward=_all_or_none([turn.forward_backward for turn in turns]),
        apply=_all_or_none([turn.apply for turn in turns]),
        turns=[turn.total for turn in turns],
    )


def _all_or_none(lists: Sequence[list[float] | None]) -> list[float] | None:
    found = [values for values in lists if values is not None]
    return [value for values in found for value in values] if len(found) == len(lists) else None


def _differences(begins: Sequence[int], ends: Sequence[int]) -> list[float]:
    return [(end - begin) * NANOSECONDS for begin, end in zip(begins, ends, strict=True)]


@dataclass
class Stopwatch:
    seconds: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Wall time of a with-block."""
    watch = Stopwatch()
    begin = time.perf_counter_ns()
    try:
        yield watch
    finally:
        watch.seconds = (time.perf_counter_ns() - begin) * 1e-9
