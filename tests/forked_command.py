"""The command in a process of its own that need not import what it uses: forked from one that has done so.

Everything else is as in a fresh interpreter: its arguments, variables, folder, streams, signals, and its own agent and
server, which it starts as it always does. Variables that libraries read while they are loaded come too late for it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any, NoReturn

LOADED = (
    "no_collection",
    "torch",
    "bench.cli",
    "bench.run.campaign",
    "bench.run.job",
    "bench.run.prepare",
    "bench.run.resume",
    "bench.view.finish",
    "bench.view.progress",
    "bench.view.report",
    "bench.view.table",
    "strategies.data_parallel",
    "strategies.ddp",
    "strategies.model_parallel",
    "strategies.single",
)


class ForkedCommand:
    """`python -m bench WORDS` as a process, with the part of subprocess.Popen[str] that tests use."""

    def __init__(self, words: Sequence[str], *, cwd: Path | None, environment: Mapping[str, str]) -> None:
        self.args = ["bench", *words]
        self._streams = [tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") for _ in range(2)]  # noqa: SIM115
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(LOADED))
        self._process = context.Process(
            target=_be_the_command,
            args=(self.args, str(cwd or Path.cwd()), dict(environment), *map(_Stream, self._streams)),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        out, err = (_whole(stream) for stream in self._streams)
        return out, err


def _whole(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read())


class _Stream:
    """An open file on its way to the forked process."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (reduction.DupFd(self._file.fileno()),)


def _detached(handle: Any) -> int:
    return int(handle.detach())


def _be_the_command(argv: list[str], folder: str, environment: dict[str, str], out: int, err: int) -> NoReturn:
    code: Any = 1
    gc.freeze()
    gc.enable()
    try:
        for number, opened in ((1, out), (2, err)):
            os.dup2(opened, number)
            os.close(opened)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, stream, open(number, "w", encoding="utf-8", buffering=1, closefd=False))  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        time.tzset()
        os.chdir(folder)
        sys.argv = argv
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        from bench.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def stop() -> None:
    """End the process that the commands are forked from."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
