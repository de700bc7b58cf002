"""Who may work: of runs that live side by side one has the floor, and all others wait in a read that costs nothing.

A rank says that it waits through a pipe that all ranks of a node share, and reads from one of its own until it is told
to go on. Both are named by its environment; without them it never waits, as under a launcher that knows of no turns.

    {"run": R, "rank": 0, "waits": "turn", "step_seconds": 0.7}      from a rank
    {"turns": 4, "steps": 8}                                         to it: go on
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from bench.lines import LineBuffer, encode

ORDERS_VARIABLE = "STRATEGYBENCH_ORDERS"
SAYS_VARIABLE = "STRATEGYBENCH_SAYS"

FIRST_TURN, TURN, REST = "first turn", "turn", "rest"
"""What a rank waits for: warmed up, to be told how its steps are dealt; the next turn of timed steps; what follows."""


def deal(steps: int, turns: int) -> list[int]:
    """How many steps each turn has: whole ones, dealt evenly, and never a turn without one.

    deal(8, 3) == [2, 3, 3]: turn k ends after floor(k * steps / turns) steps.
    """
    turns = max(1, min(turns, steps))
    ends = [turn * steps // turns for turn in range(turns + 1)]
    return [end - begin for begin, end in pairwise(ends)]


class Floor:
    """A rank's end. `waited_seconds` is how long it has waited in all."""

    def __init__(self, run: str, rank: int, *, orders: str = "", says: str = "") -> None:
        """`orders` and `says` are paths of named pipes; with "" it has the floor for good."""
        self._run = run
        self._rank = rank
        self._orders = os.open(orders, os.O_RDONLY) if orders else None
        self._says = os.open(says, os.O_WRONLY) if says else None
        self._heard = LineBuffer()
        self.waited_seconds = 0.0

    @classmethod
    def from_environment(cls, run: str, rank: int) -> Floor:
        return cls(run, rank, orders=os.environ.get(ORDERS_VARIABLE, ""), says=os.environ.get(SAYS_VARIABLE, ""))

    @property
    def shared(self) -> bool:
        """Whether other runs live beside this one."""
        return self._orders is not None and self._says is not None

    def wait(self, what: str, **facts: Any) -> Mapping[str, Any]:
        """Give the floor away and wait until it comes back. Returns what came with it; {} where it is never shared.

        Raises EOFError where nobody can give it back any more.
        """
        if self._orders is None or self._says is None:
            return {}
        begin = time.perf_counter()
        os.write(self._says, encode({"run": self._run, "rank": self._rank, "waits": what, **facts}))
        while True:
            data = os.read(self._orders, 4096)
            if not data:
                raise EOFError("whoever gives the floor to this run is gone")
            messages = self._heard.feed(data)
            if messages:
                self.waited_seconds += time.perf_counter() - begin
                return messages[-1]
