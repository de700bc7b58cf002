"""Runs side by side, timed in alternation: one has the floor, all others wait.

Everything is exclusive: each run is started, built and warmed up while all others wait, then come rounds in which each
has a turn of timed steps, in a random order of every round, and then what follows, one run at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.floor import REST
from bench.machine.room import Room
from bench.run.attempt import Attempt
from bench.run.interrupts import Interrupted, undisturbed
from bench.run.launch import POLL_SECONDS, Outcome
from bench.run.node import LocalNode

FEWEST_TURNS = 4
"""Of a run that has as many steps: with fewer a drift of the machine does not hit all runs alike."""


@dataclass(frozen=True)
class Dealt:
    """How the steps of a cohort's runs are dealt: `steps` gives those of a run, `whole` if they are a whole epoch."""

    turns: int
    steps: Callable[[Attempt], int]
    whole: Callable[[Attempt], bool]


Deal = Callable[[Sequence[Attempt]], Dealt]
Again = Callable[[Attempt, Outcome], str]


def turns_of(seconds: Sequence[float], steps: Iterable[int], *, turn_seconds: float) -> int:
    """In how many turns runs are timed of which each takes so many seconds, and has so many steps.

    About `turn_seconds` each in the mean over the runs, never under one step, and at least FEWEST_TURNS where there are
    as many steps. Where no speed is known, as many as there are steps.
    """
    most = min(steps)
    if not seconds:
        return most
    wanted = round(sum(seconds) / len(seconds) / turn_seconds)
    return max(1, min(most, max(wanted, FEWEST_TURNS)))


class Alternation:
    """Measures one cohort. `deal` is asked once all runs are warm, `again` why a run that is over is measured again."""

    def __init__(self, node: LocalNode, *, seed: str, deal: Deal, again: Again, room: Room) -> None:
        self._node = node
        self._random = random.Random(seed)
        self._deal = deal
        self._again = again
        self._room = room
        self.live: list[Attempt] = []
        self.over: list[Attempt] = []

    def measure(self, attempts: Iterable[Callable[[], Attempt]]) -> tuple[int, str]:
        """Measure the runs that these make, as many as there is room for: their number, and what there was none in."""
        admitted, why = 0, ""
        try:
            for make in attempts:
                why = self._room.full() if self.live else ""
                if why:
                    break
                self._admit(make())
                admitted += 1
            self._rounds()
        except Interrupted as signal:
            for attempt in self.live:
                attempt.interrupted(signal.name)
            raise
        finally:
            for attempt in self.live:
                attempt.close()
        return admitted, why

    def _admit(self, attempt: Attempt) -> None:
        self.live.append(attempt)
        attempt.__enter__()
        self._until_it_waits(attempt)
        self._room.admitted()

    def _rounds(self) -> None:
        dealt: Dealt | None = None
        while self.live:
            dealt = dealt or self._deal(self.live)
            order = list(self.live)
            # What follows the last turn is not timed; by the order of their start, since the first counts for all.
            if any(attempt.waits != REST for attempt in order):
                self._random.shuffle(order)
            for attempt in order:
                self._look_at_the_others(attempt)
                if attempt not in self.live:
                    continue
                attempt.go(steps=dealt.steps(attempt), turns=dealt.turns, whole_epoch=dealt.whole(attempt))
                self._until_it_waits(attempt)

    def _until_it_waits(self, attempt: Attempt) -> None:
        """Until it gives the floor away or is over."""
        while attempt.look() is None:
            if attempt.waits:
                attempt.pause()
                return
            self._node.pump(POLL_SECONDS)
        self._record(attempt)

    def _look_at_the_others(self, attempt: Attempt) -> None:
        """Whether a run that waits is over, killed from outside: its rows are written while nobody is timed."""
        for other in list(self.live):
            if other.look() is not None:
                self._record(other)

    def _record(self, attempt: Attempt) -> None:
        outcome = attempt.outcome
        assert outcome is not None
        with undisturbed():
            self.live.remove(attempt)
            self.over.append(attempt)
            attempt.record(outcome, again=self._again(attempt, outcome))


def one_by_one(
    node: LocalNode, attempts: Iterable[Callable[[], Attempt]], *, deal: Deal, again: Again
) -> Iterable[Attempt]:
    """Measure runs one after the other, each from its start to its end. Gives each once it is over.

    One that waits is there to show its speed: it goes on at once, with its steps dealt into one turn.
    """
    for make in attempts:
        attempt = make()
        try:
            with attempt:
                while attempt.look() is None:
                    if attempt.waits:
                        attempt.pause()
                        dealt = deal([attempt])
                        attempt.go(steps=dealt.steps(attempt), turns=1, whole_epoch=dealt.whole(attempt))
                    node.pump(POLL_SECONDS)
                assert attempt.outcome is not None
                with undisturbed():
                    attempt.record(attempt.outcome, again=again(attempt, attempt.outcome))
        except Interrupted as signal:
            attempt.interrupted(signal.name)
            raise
        yield attempt
