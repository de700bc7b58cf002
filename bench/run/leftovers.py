"""What a rank started and left behind: found in the rank's session, and told by a variable that it inherited."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import psutil

RUN_VARIABLE = "STRATEGYBENCH_RUN_FOLDER"


def end_sessions(ranks: Collection[int], folder: Path) -> list[int]:
    """End what is alive in the sessions of these ranks and belongs to a run at or below `folder`. Returns the pids.

    torch's launcher gives each rank a session of its own, which outlives the rank as long as a member lives. Systems
    without sessions have nothing to look in.
    """
    if not hasattr(os, "getsid"):
        return []
    place, ended = folder.resolve(), []
    for pid in psutil.pids():
        try:
            # The number of an ended rank may be another session's by now: the variable tells them apart.
            if os.getsid(pid) in ranks and _run_folder(process := psutil.Process(pid)).is_relative_to(place):
                process.kill()
                ended.append(pid)
        except (psutil.Error, OSError):
            continue
    return ended


def _run_folder(process: psutil.Process) -> Path:
    return Path(process.environ().get(RUN_VARIABLE, ""))
