"""Whether one more run fits beside those that live already: free memory of the host and of the GPUs, with a reserve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from bench.machine.gpus import load_nvml
from bench.machine.host import memory_limit_bytes, memory_used_in_cgroup

MOST_RUNS = 32
"""Runs that live side by side at most: with more of them a round takes so long that a machine drifts in it."""

RESERVE_SHARE = 0.1
"""Share of each memory that stays free: evaluation and the system need some too."""

EXCLUSIVE_PROCESS = 3  # nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

Free = Mapping[str, tuple[int, int]]
"""Free and total bytes of each memory, by its name."""


def host_memory() -> tuple[int, int]:
    """Free and total bytes for this process: the machine's, or those that its cgroup leaves."""
    total, free = memory_limit_bytes(), psutil.virtual_memory().available
    used = memory_used_in_cgroup()
    return (free if used is None else min(free, total - used)), total


def memories(gpus: Sequence[int], nvml: Any = None) -> dict[str, tuple[int, int]]:
    """Free and total bytes of the host, and of the GPUs of these driver's indices where the driver tells."""
    found = {"host": host_memory()}
    for index in gpus:
        try:
            nvml = nvml or load_nvml()
            nvml.nvmlInit()
            info = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))
            found[f"GPU {index}"] = int(info.free), int(info.total)
        except Exception:
            # No such library, no such driver, a GPU that shares the host's memory: then nothing is known of it.
            continue
    return found


def exclusive_gpus(gpus: Sequence[int], nvml: Any = None) -> list[int]:
    """Those of the GPUs that admit one process only, so that two runs cannot be on them at once."""
    found = []
    for index in gpus:
        try:
            nvml = nvml or load_nvml()
            nvml.nvmlInit()
            mode = nvml.nvmlDeviceGetComputeMode(nvml.nvmlDeviceGetHandleByIndex(index))
        except Exception:
            continue
        if mode == EXCLUSIVE_PROCESS:
            found.append(index)
    return found


class Room:
    """Counts what each run takes, and says when the next one might not fit: `look()` gives what is free now.

    A run is expected to take as much as the largest before it; of the first one nothing is expected.
    """

    def __init__(self, look: Callable[[], Free]) -> None:
        self._look = look
        self._before = look()
        self._largest: dict[str, int] = {}
        self._runs = 0

    def admitted(self) -> None:
        """A run was started and warmed up since the last call, or since the beginning."""
        self._runs += 1
        now = self._look()
        for name, (free, _) in now.items():
            taken = self._before.get(name, (free, 0))[0] - free
            self._largest[name] = max(taken, self._largest.get(name, 0))
        self._before = now

    def full(self) -> str:
        """What is full, so that no further run should be started; "" where one should fit."""
        if self._runs >= MOST_RUNS:
            return f"a cohort of {MOST_RUNS} runs"
        self._before = self._look()
        for name, (free, total) in self._before.items():
            needed = self._largest.get(name, 0) + RESERVE_SHARE * total
            if free < needed:
                gib = 2**30
                return (
                    f"{name} memory: {free / gib:.1f} of {total / gib:.1f} GiB are free, a run takes up to "
                    f"{self._largest.get(name, 0) / gib:.1f} GiB and {RESERVE_SHARE:.0%} stay free"
                )
        return ""
