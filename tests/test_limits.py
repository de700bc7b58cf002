"""Limits that the system sets, for real: cores, memory, and a host name that nobody knows."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import by_strategy, run, toy
from fault_strategies import Fault, write_table

LINUX_ROOT = sys.platform.startswith("linux") and os.geteuid() == 0
LIMIT_BYTES = 5 << 29


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
def test_one_core_is_not_shared_by_two_devices(tmp_path: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    done = run(["taskset", "-c", core, *toy(tmp_path / "out", devices="2")], timeout=60)
    assert done.returncode == 2, done.stderr
    assert "2 devices x 1 thread = 2 > 1 core; use fewer devices or threads per device" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not LINUX_ROOT or shutil.which("unshare") is None, reason="needs Linux and an administrator")
def test_a_host_name_of_ones_own_that_does_not_resolve_does_not_matter(tmp_path: Path) -> None:
    command = ["unshare", "-u", "sh", "-c", 'hostname no-such-host.invalid || exit 77; exec "$@"', "sh"]
    done = run([*command, *toy(tmp_path / "out", strategies=["ddp"])], timeout=90)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system allows no host name of one's own")
    assert done.returncode == 0, done.stderr
    row = by_strategy(tmp_path / "out")["ddp"]
    assert row["status"] == "ok"
    assert float(row["init_seconds"]) < 20


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group that may use no more memory than a campaign and a half; both versions of the interface."""
    name = f"strategybench-test-{os.getpid()}"
    for root, limit in (("memory", "memory.limit_in_bytes"), (".", "memory.max")):
        group = Path("/sys/fs/cgroup") / root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            # The interface's files are there or not; none is made.
            fd = os.open(group / limit, os.O_WRONLY)
            os.write(fd, str(LIMIT_BYTES).encode())
            os.close(fd)
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group for memory can be made here")


def test_memory_that_the_kernel_does_not_have_is_told_with_its_hint(tmp_path: Path, memory_cgroup: Path) -> None:
    table = write_table(tmp_path / "faults.py", {"exhaust": Fault("exhaust", 1)})
    command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(memory_cgroup / "cgroup.procs")]
    arguments = toy(tmp_path / "out", "--strategy-file", str(table), strategies=["exhaust"])
    done = run([*command, *arguments], timeout=120)
    assert done.returncode == 1, done.stderr
    row = by_strategy(tmp_path / "out")["exhaust"]
    assert (row["status"], row["exit_code"]) == ("crashed", "-9")
    assert row["reason"] == (
        "rank 1 was ended by SIGKILL, which is how the kernel ends a process when memory runs out "
        "(last seen in timed after step 1)"
    )
