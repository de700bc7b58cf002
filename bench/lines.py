"""Messages between a campaign, the agents that watch its ranks, and their servers: a line of JSON each."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Mapping
from typing import Any

LONGEST_LINE = 900
"""Bytes of a line that an agent sends or is sent: whoever joins the output of several nodes keeps such lines whole."""


def encode(message: Mapping[str, Any], *, limit: int | None = LONGEST_LINE) -> bytes:
    """The message as one line. Raises ValueError for one that is longer than the limit."""
    line = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
    if limit is not None and len(line) > limit:
        raise ValueError(f"a message of {len(line)} bytes is longer than {limit}: {line[:80]!r}...")
    return line


def listen(stream: int, heard: queue.SimpleQueue[Any], who: object) -> None:
    """Put (who, messages) for whatever arrives on a stream, from a thread; (who, None) once it has ended.

    A thread and no select: pipes cannot be selected on everywhere.
    """

    def follow() -> None:
        lines = LineBuffer()
        while True:
            try:
                data = os.read(stream, 65536)
            except OSError:
                data = b""
            if not data:
                heard.put((who, None))
                return
            heard.put((who, lines.feed(data)))

    threading.Thread(target=follow, daemon=True).start()


class LineBuffer:
    """Puts messages together from whatever pieces they arrive in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with this piece. Lines that are no JSON object are passed over."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [message for line in lines if (message := _message(line)) is not None]


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
