"""Fixtures shared by the tests."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import platformdirs
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


def _own_processes() -> dict[int, str]:
    """Command lines of processes that this session's tests started, directly or not, and that are still alive."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid in mine or process.environ().get(SESSION_VARIABLE) != str(os.getpid()):
                continue
            command = " ".join(process.cmdline())
            # Python's own helper, which ends with this process. One without a command has ended and waits to be reaped.
            if command and "multiprocessing.resource_tracker" not in command:
                found[process.pid] = command
        except psutil.Error:
            continue
    return found


def _segments() -> set[str]:
    """Shared memory of Python and torch; other programs have theirs in the same folder."""
    return {name for name in _names(SHARED_MEMORY) if name.startswith(("torch_", "psm_", "sem.mp-"))}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _await_none(left: Callable[[], Collection[object]], *, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while left() and time.monotonic() < end:
        time.sleep(0.1)
    assert not left()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders of the session's own in place of the user's cache and the system's temporary files.

    What the tests and their processes put there can neither reach the user's nor be mixed up with another program's.
    """
    caches = {
        # These are downloads and compilations, not the suite's: they may be used again.
        "PIP_CACHE_DIR": str(Path(platformdirs.user_cache_dir("pip"))),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "torchinductor_tests"),
    }
    temporary, cache = tmp_path_factory.mktemp("temporary"), tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in caches.items():
            patch.setenv(name, os.environ.get(name, value))
        patch.setenv("TMPDIR", str(temporary))
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setattr(tempfile, "tempdir", None)
        yield temporary
    # Large, and pytest keeps the folders of the last sessions.
    shutil.rmtree(cache)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(own_folders: Path) -> Iterator[None]:
    """After all tests no process is alive, and shared memory, temporary files and the checkout hold nothing new."""
    os.environ[SESSION_VARIABLE] = str(os.getpid())
    # Tests abort ranks on purpose: no core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    before = {folder: _names(folder) for folder in (ROOT, ROOT / "results")}
    segments = _segments()
    yield
    _await_none(_own_processes)
    _await_none(lambda: _segments() - segments)
    # Folders that wandb makes when it is imported go when this process ends.
    assert {name for name in _names(own_folders) if "wandb-" not in name} == set()
    caches = {".hypothesis", ".benchmarks", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build"}
    for folder, names in before.items():
        assert _names(folder) - names - caches == set(), folder
