"""Fixtures shared by the tests."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

DATA_VARIABLE = "STRATEGYBENCH_TEST_DATA"


@pytest.fixture(scope="session")
def cifar_root() -> Path:
    """The folder that holds cifar-10-batches-py; tests that need real images skip without it."""
    folder = os.environ.get(DATA_VARIABLE, "")
    if not (Path(folder) / "cifar-10-batches-py").is_dir():
        pytest.skip(f"{DATA_VARIABLE} names no folder with cifar-10-batches-py")
    return Path(folder)


SESSION_VARIABLE = "STRATEGYBENCH_TEST_SESSION"
ROOT = Path(__file__).parents[1]
SHARED_MEMORY = Path("/dev/shm")


def _own_workers() -> list[str]:
    """Workers that this session's tests started, directly or not, and that are still alive."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if "bench.worker" in command and process.environ().get(SESSION_VARIABLE) == str(os.getpid()):
                found.append(" ".join(command))
        except psutil.Error:
            continue
    return found


def _segments() -> set[str]:
    """Shared memory of Python and torch; other programs have theirs in the same folder."""
    return {name for name in _names(SHARED_MEMORY) if name.startswith(("torch_", "psm_", "sem.mp-"))}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """After all tests no rank is alive, and neither shared memory nor the checkout holds anything new."""
    os.environ[SESSION_VARIABLE] = str(os.getpid())
    # Tests abort ranks on purpose: no core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    before = {folder: _names(folder) for folder in (ROOT, ROOT / "results")}
    segments = _segments()
    yield
    assert _own_workers() == []
    end = time.monotonic() + 10
    while (left := _segments() - segments) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == set()
    caches = {".hypothesis", ".benchmarks", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build"}
    for folder, names in before.items():
        assert _names(folder) - names - caches == set(), folder
