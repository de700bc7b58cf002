"""What is left alive of a campaign that was not ended in order: told by a variable that its processes were given."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

RUN_VARIABLE = "STRATEGYBENCH_RUN_FOLDER"
"""In the environment of a rank the folder of its run; in that of a server, and of all it forks, the folder of runs."""


def marked(folder: Path) -> list[psutil.Process]:
    """The processes whose run's folder lies at or below `folder`, this one left out."""
    place, found = folder.resolve(), []
    for process in psutil.process_iter():
        try:
            named = process.environ().get(RUN_VARIABLE, "")
            if named and process.pid != os.getpid() and Path(named).is_relative_to(place):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def end_marked(folder: Path) -> list[int]:
    """End them. Returns the pids."""
    ended = []
    for process in marked(folder):
        try:
            process.kill()
            ended.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return ended
