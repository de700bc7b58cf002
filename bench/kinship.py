"""Ties between processes: dying with a parent, taking over orphans, and leaving none alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection

import psutil

PARENT_VARIABLE = "STRATEGYBENCH_PARENT_PID"
"""Whom a rank dies with. Another launcher, such as torchrun, sets none."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FOLLOW_SECONDS = 1.0
_REAP_SECONDS = 5.0


def die_with_parent(parent_pid: int) -> None:
    """End this process when the parent dies.

    On Linux the kernel sends SIGKILL, whatever the process does; elsewhere a thread looks every second, which a call
    into C that keeps the interpreter's lock delays. `parent_pid` 0 leaves the process alone, for launchers that are not
    the parent.
    """
    if parent_pid == 0:
        return
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_follow, args=(parent_pid,), daemon=True).start()
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        # The parent died before the request was in force.
        os._exit(1)


def _follow(parent_pid: int) -> None:
    """Exit once the parent has.

    Windows has no new parent for an orphan, and a virtual environment's Python there stands between the two: the
    parent itself is asked for as well.
    """
    try:
        parent = psutil.Process(parent_pid)
        while parent.is_running() and (sys.platform == "win32" or os.getppid() == parent_pid):
            time.sleep(_FOLLOW_SECONDS)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, whatever session they made for themselves.

    Where the kernel knows no such thing they go to the system's first process, as anywhere.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_strays(known: Collection[int]) -> list[int]:
    """End every child of this process that is not known, and theirs, which come here as orphans. Returns the pids."""
    ended: list[int] = []
    if not hasattr(os, "WNOHANG"):
        return ended
    end = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < end:
        strays = [child.pid for child in psutil.Process().children() if child.pid not in known]
        if not strays:
            break
        for pid in strays:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    ended.append(pid)
        time.sleep(0.005)
    return ended


def end_session(pid: int) -> None:
    """End a process that leads a session of its own, and all that stayed in it."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.Error, OSError):
        psutil.Process(pid).kill()
