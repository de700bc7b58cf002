"""Fixtures shared by the tests."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import forked_command
import platformdirs
import psutil
import pytest

from bench.run.node import LocalNode

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
OWN_TEMPORARY = ("wandb-", "pymp-")
"""Folders that wandb and multiprocessing make for this process: they go when it ends."""
SLOW = ("test_warm_start", "test_faults", "test_chaos", "test_faults_outside", "test_checkpoint", "test_readme")
MOST_WORKERS = 8


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes that share the tests: two a core, since most of them wait for others half of their time.

    None where a figure is measured, or where a few files are named, which are through before processes have started.
    """
    whole = config.args == config.getini("testpaths")
    cores = len(psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else []) or os.cpu_count()
    return min(MOST_WORKERS, 2 * (cores or 1)) if whole and not config.option.benchmark_only else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no process is left with one of them at the end."""
    place = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish() -> None:
    """What is loaded stays: looking for garbage in all of torch and pandas takes tenths of a second each time."""
    gc.collect()
    gc.freeze()


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
    forked_command.stop()
    _await_none(_own_processes)
    _await_none(lambda: _segments() - segments)
    _await_none(lambda: {name for name in _names(own_folders) if not any(mark in name for mark in OWN_TEMPORARY)})
    caches = {".hypothesis", ".benchmarks", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build"}
    for folder, names in before.items():
        assert _names(folder) - names - caches == set(), folder


@pytest.fixture(scope="session")
def node(nothing_is_left_behind: None) -> Iterator[LocalNode]:
    """One agent and its server for all tests that only start ranks."""
    with LocalNode() as made:
        yield made
