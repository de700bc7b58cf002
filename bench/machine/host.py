"""The host: cores and memory within the limits that bind this process, and whether runs can be started here.

Facts come from the kernel and psutil; each function takes its source as an argument, so that all are tested with fakes.
"""

import os
import platform
import re
import shutil
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")

PROC_CGROUP = Path("/proc/self/cgroup")

CPUINFO = Path("/proc/cpuinfo")

# --- cores and memory -------------------------------------------------------------------------------------------------


def _cgroup_folders(controller: str, *, root: Path, proc: Path) -> list[Path]:
    """This process's cgroup folder for a controller and all folders above it; the limits of each of them bind.

    Both hierarchies, v1 by controller and v2 unified. A container may be shown a path that exists only outside it;
    the walk upwards then ends at its own root.
    """
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: dict[Path, None] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controllers, root / controller]
        else:
            continue
        relative = Path(path.lstrip("/"))
        folders.update(dict.fromkeys(base / part for base in bases for part in (relative, *relative.parents)))
    return list(folders)


def _read_words(*files: Path) -> list[str]:
    """The words in these files; empty when one of them cannot be read."""
    try:
        return " ".join(file.read_text(encoding="utf-8") for file in files).split()
    except OSError:
        return []


def cpu_quota(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> float | None:
    """Cores that the cgroup's CPU quota allows, such as 1.5; None without a quota."""
    quotas = []
    for folder in _cgroup_folders("cpu", root=root, proc=proc):
        new, old = folder / "cpu.max", (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        for words in (_read_words(new), _read_words(*old)):
            # No quota is written as 'max' by v2 and as -1 by v1.
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def available_cores(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> int:
    """Logical cores this process may keep busy: the affinity mask, cut to the whole cores of the cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = cpu_quota(root=root, proc=proc)
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def core_ids(usable: int) -> tuple[int, ...]:
    """The numbers of the cores in this process's affinity mask; empty where a quota allows only `usable` of them.

    To be asked before torch is imported: variables such as OMP_PROC_BIND have OpenMP bind the process to one core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return cores if len(cores) == usable else ()


def memory_limit_bytes(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> int:
    """Bytes of memory this process may use: the machine's, or the cgroup's limit where that is lower."""
    folders = _cgroup_folders("memory", root=root, proc=proc)
    words = [_read_words(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(found[0]) for found in words if found and found[0].isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def memory_used_in_cgroup(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> int | None:
    """Bytes in use where a cgroup's limit binds, without the page cache, which gives way; None without a limit."""
    for folder in _cgroup_folders("memory", root=root, proc=proc):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            bound, used = _read_words(folder / limit), _read_words(folder / usage)
            # Without a limit v1 has a number beyond any memory, v2 the word max.
            if bound and bound[0].isdigit() and int(bound[0]) < psutil.virtual_memory().total and used:
                words = _read_words(folder / "memory.stat")
                counts = dict(zip(words[::2], words[1::2], strict=False))
                return max(0, int(used[0]) - int(counts.get("inactive_file", counts.get("total_inactive_file", 0))))
    return None


def shared_memory_bytes(path: Path = Path("/dev/shm")) -> int | None:
    """Free bytes in the shared memory that data loaders use; None where the platform has no such folder."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's model, such as 'AMD EPYC 7763 64-Core Processor'."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine() or "unknown CPU"


def unsupported_platform_reason(*, system: str | None = None, has_gloo: bool = True) -> str | None:
    """Why runs cannot be started on this operating system, in one sentence; None where they can.

    `has_gloo` is `torch.distributed.is_available() and torch.distributed.is_gloo_available()`, for callers that have
    torch imported: builds for Windows and macOS may lack it.
    """
    system = system or platform.system()
    if system not in ("Linux", "Darwin", "Windows"):
        return f"torch.distributed has no build for {system}; runs need Linux, macOS or Windows."
    if not has_gloo:
        name = {"Darwin": "macOS"}.get(system, system)
        return f"This build of torch for {name} has no torch.distributed with gloo; install one that has it."
    return None
