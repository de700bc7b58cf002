"""Where every rank is: a small file, mapped by all ranks and read by the parent.

A beat is one store into shared memory, cheap enough for every step. The parent shows it as progress, and when a
run hangs it tells which ranks had not arrived, which no collective's error message can.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

PHASES = ("start", "init", "build", "warmup", "timed", "gather", "evaluate", "checkpoint", "close", "done")
_SLOT = struct.Struct("<IIQ")


@dataclass(frozen=True)
class Beat:
    """A rank's last sign of life: phase, step in it, and the monotonic clock in nanoseconds."""

    rank: int
    phase: str
    step: int
    nanoseconds: int

    def seconds_ago(self, now: int | None = None) -> float:
        return ((time.perf_counter_ns() if now is None else now) - self.nanoseconds) * 1e-9

    @property
    def where(self) -> str:
        return self.phase + (f" after step {self.step}" if self.step else "")

    def __str__(self) -> str:
        return f"rank {self.rank} in {self.where}"


def create(path: Path, ranks: int) -> None:
    """Parent side: make the file with one empty slot a rank."""
    path.write_bytes(bytes(_SLOT.size * ranks))


def read_beats(path: Path) -> list[Beat]:
    """Parent side: every rank's last beat; empty where the file is gone."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    slots = _SLOT.iter_unpack(data[: len(data) // _SLOT.size * _SLOT.size])
    return [
        Beat(rank, PHASES[min(phase, len(PHASES) - 1)], step, when) for rank, (phase, step, when) in enumerate(slots)
    ]


def write_beat(path: Path, beat: Beat) -> None:
    """Parent side: put down another node's rank's last beat, as if the rank had."""
    with path.open("r+b") as file:
        file.seek(_SLOT.size * beat.rank)
        file.write(_SLOT.pack(PHASES.index(beat.phase), beat.step, max(beat.nanoseconds, 1)))


class Heartbeat:
    """Worker side: one rank's slot."""

    def __init__(self, path: Path, rank: int) -> None:
        # The parent makes the file; under a launcher that knows nothing of it the ranks do.
        needed = _SLOT.size * (rank + 1)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_size < needed:
                file.seek(needed - 1)
                file.write(b"\0")
                file.flush()
            self._map = mmap.mmap(descriptor, needed)
        self._offset = rank * _SLOT.size
        self._phase = 0

    def phase(self, name: str) -> None:
        self._phase = PHASES.index(name)
        self.step(0)

    def step(self, number: int) -> None:
        """Steps count from 1; 0 says that the phase has begun."""
        _SLOT.pack_into(self._map, self._offset, self._phase, number, time.perf_counter_ns())

    @property
    def current(self) -> str:
        return PHASES[self._phase]
