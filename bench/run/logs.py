"""What ranks print, bounded: the beginning and the end of each log stay, and what was cut is said.

While a rank runs, the disk space of the middle is given back and the file keeps its length, so that nothing is lost
that is written meanwhile (Linux, on file systems with holes; elsewhere a log grows until its run ends). Once the run is
over the file is put together anew.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

HEAD_BYTES = 4 << 20
TAIL_BYTES = 2 << 20
MOST_BYTES = HEAD_BYTES + 4 * TAIL_BYTES
"""A log that is longer is cut."""

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_BLOCK = 1 << 16


def give_back_middle(path: Path) -> None:
    """Free the disk space of what will be cut, while the file is still being written."""
    if not sys.platform.startswith("linux"):
        return
    try:
        size = path.stat().st_size
        if size <= MOST_BYTES:
            return
        length = (size - TAIL_BYTES - HEAD_BYTES) // _BLOCK * _BLOCK
        with path.open("r+b") as file:
            fallocate = ctypes.CDLL(None).fallocate
            fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, HEAD_BYTES, length)
    except (OSError, AttributeError):
        return


def cut(path: Path) -> None:
    """Leave the two ends of a log that nobody writes any more, and say between them how much was cut."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= MOST_BYTES:
                return
            file.seek(size - TAIL_BYTES)
            tail = file.read()
            file.truncate(HEAD_BYTES)
            file.seek(HEAD_BYTES)
            file.write(b"\n[... %d bytes were cut here ...]\n" % (size - HEAD_BYTES - len(tail)) + tail)
    except OSError:
        return


def logs_of(folder: Path) -> list[Path]:
    """The ranks' logs in a run's folder."""
    return sorted(folder.glob("rank*.std*.log"))
