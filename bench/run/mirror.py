"""A run's folder on a node that does not share the command's files: what is written at one end appears at the other.

Both ends of it. Files go in pieces and beats as ages, each a message that fits in a line (`bench.lines`); no message
holds a time of one machine's clock that the other would have to compare with its own.

    {"run": R, "file": NAME, "at": 0, "size": 812, "data": BASE64, "now": NANOSECONDS}
    {"run": R, "beats": [[RANK, PHASE, STEP, AGE_MS], ...]}
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import heartbeat
from bench.heartbeat import PHASES, Beat
from bench.wire import heartbeat_path

PIECE_BYTES = 420
BEATS_A_LINE = 20
LOG_PIECES_AT_ONCE = 100
"""Of all logs together in one look: orders are heard in between."""

MOST_BYTES = 4 << 20
"""Of one file. Of a longer log the rest stays behind, and its copy ends with a line that says so."""

NOT_SENT = ("heartbeat", "rendezvous", "spec.json")
WHOLE = ".json"
"""Files of this kind are written at once, so they are sent at once, and are there whole or not at all."""

Say = Callable[[Mapping[str, Any]], None]


def file_messages(run: str, path: Path, *, begin: int = 0, pieces: int | None = None) -> list[dict[str, Any]]:
    """The pieces of a file from `begin` on, `pieces` at most. All are of PIECE_BYTES, but the last of the file."""
    found: list[dict[str, Any]] = []
    now = time.perf_counter_ns()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(begin)
        while file.tell() < size and (pieces is None or len(found) < pieces):
            at = file.tell()
            data = base64.b64encode(file.read(PIECE_BYTES)).decode("ascii")
            found.append({"run": run, "file": path.name, "at": at, "size": size, "data": data, "now": now})
    return found


class Sender:
    """The end at which the ranks are: says what is new in a run's folder."""

    def __init__(self, folder: Path, run: str, say: Say) -> None:
        self.folder = folder
        self._run = run
        self._say = say
        self._sent: dict[str, int] = {}
        self._beats: dict[int, Beat] = {}

    def send(self, *, all_of_it: bool = False) -> None:
        """Files first, so that who is told of a rank's last phase has its account and its measurement already."""
        left = LOG_PIECES_AT_ONCE
        for path in sorted(self.folder.iterdir(), key=lambda path: (path.suffix != WHOLE, path.name)):
            if path.name in NOT_SENT or not path.is_file():
                continue
            with contextlib.suppress(OSError):
                if path.suffix == WHOLE:
                    self._send_file(path, pieces=None)
                elif left > 0 or all_of_it:
                    left -= self._send_file(path, pieces=None if all_of_it else left)
        self._send_beats()

    def _send_file(self, path: Path, *, pieces: int | None) -> int:
        """Send what is new of a file, `pieces` at most. Returns how many they were."""
        begin, size = self._sent.get(path.name, 0), path.stat().st_size
        most = size if path.suffix == WHOLE else min(size, MOST_BYTES)
        if begin >= most:
            return 0
        needed = -(-(most - begin) // PIECE_BYTES)
        messages = file_messages(self._run, path, begin=begin, pieces=needed if pieces is None else min(needed, pieces))
        for message in messages:
            self._say(message)
        if messages:
            self._sent[path.name] = min(begin + PIECE_BYTES * len(messages), messages[-1]["size"])
        return len(messages)

    def _send_beats(self) -> None:
        beats = heartbeat.read_beats(heartbeat_path(self.folder))
        new = [beat for beat in beats if beat.nanoseconds and self._beats.get(beat.rank) != beat]
        for first in range(0, len(new), BEATS_A_LINE):
            some = new[first : first + BEATS_A_LINE]
            told = [[b.rank, PHASES.index(b.phase), b.step, round(1000 * b.seconds_ago())] for b in some]
            self._say({"run": self._run, "beats": told})
        self._beats |= {beat.rank: beat for beat in new}


class Receiver:
    """The other end: writes what is said into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, message: Mapping[str, Any]) -> None:
        """Write what a message brings. Raises ValueError for a name that is no plain file's."""
        if "beats" in message:
            for rank, phase, step, age in message["beats"]:
                when = time.perf_counter_ns() - 1_000_000 * age
                heartbeat.write_beat(heartbeat_path(self.folder), Beat(rank, PHASES[phase], step, when))
            return
        name = message["file"]
        if name != Path(name).name or name in ("", ".", ".."):
            raise ValueError(f"a node sent a file of the name {name!r}")
        data = base64.b64decode(message["data"])
        path = self.folder / (f"{name}.part" if name.endswith(WHOLE) else name)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(message["at"])
            file.write(data)
        end = message["at"] + len(data)
        if name.endswith(WHOLE) and end == message["size"]:
            _own_clock(path, message["now"])
            path.replace(self.folder / name)
        elif end >= MOST_BYTES:
            with path.open("ab") as file:
                file.write(b"\n... (what the rank wrote after this stayed on its node)\n")


def _own_clock(path: Path, now: int) -> None:
    """Where a file says when something was, in nanoseconds of the sender's clock, put it on this machine's."""
    text = path.read_text(encoding="utf-8", errors="replace")
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("nanoseconds"), int):
            found["nanoseconds"] += time.perf_counter_ns() - now
            path.write_text(json.dumps(found), encoding="utf-8")
