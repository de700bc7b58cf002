"""What ranks print, bounded while they run: the beginning and the end of each log stay, and what was cut is said."""

from __future__ import annotations

import os
from pathlib import Path

HEAD_BYTES = 4 << 20
TAIL_BYTES = 2 << 20
MOST_BYTES = HEAD_BYTES + 4 * TAIL_BYTES
"""A log is cut when it is longer. What it was opened for appends, so that a rank goes on behind the cut."""

_CUT = b"\n[... about %d bytes were cut here ...]\n"


def bound(path: Path, cut: int = 0) -> int:
    """Cut a log that is too long. Returns how many bytes have been cut from it, `cut` of them before.

    What a rank writes in the moment of the cut may be lost with it.
    """
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= MOST_BYTES:
                return cut
            file.seek(size - TAIL_BYTES)
            tail = file.read(TAIL_BYTES)
            cut += size - HEAD_BYTES - len(tail)
            file.truncate(HEAD_BYTES)
            file.seek(0, os.SEEK_END)
            file.write(_CUT % cut + tail)
            return cut
    except OSError:
        return cut


class Bounded:
    """The logs of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cut: dict[Path, int] = {}

    def look(self) -> None:
        """Cut those that have become too long."""
        for path in self._folder.glob("rank*.std*.log"):
            self._cut[path] = bound(path, self._cut.get(path, 0))
