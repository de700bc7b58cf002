"""The process that forks ranks: it has torch and this package loaded once a block, so that a rank starts at once.

    python -P -u -m bench.worker.server PARENT_PID      # started by the agent of its node

It has one thread and no CUDA context, knows no plug-in, and is the real parent of its ranks: it reaps them, tells how
they ended, and ends what they leave behind. On standard input come orders, a line each; on standard output go what
became of them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.kinship import PARENT_VARIABLE, adopt_orphans, die_with_parent, end_strays
from bench.lines import LineBuffer, encode

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.flop_counter",
    "torch._dynamo",
    "torchvision.models.resnet",
    "bench.worker.__main__",
    "bench.worker.life",
    "strategies.base",
)


class Server:
    """Forks a rank for each order, and says `pid` when it has begun and `code` when it has ended."""

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[str, int]] = {}
        self._orders = LineBuffer()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> None:
        """Until standard input ends; then every rank is ended too."""
        # A handler that does nothing: its signal only wakes the loop below.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    break
                for order in self._orders.feed(data):
                    self._fork(order)
        end_strays(())

    def _fork(self, order: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_rank(order, own)
        self._ranks[pid] = (order["run"], order["rank"])
        say({"run": order["run"], "rank": order["rank"], "pid": pid})

    def _reap(self) -> None:
        """Tell of every rank that has ended, once nothing of it is alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._ranks:
                run, rank = self._ranks.pop(pid)
                # A rank takes over its own orphans; only now, that it has ended, do they come here.
                end_strays(self._ranks)
                say({"run": run, "rank": rank, "code": os.waitstatus_to_exitcode(status)})


def say(message: dict[str, Any]) -> None:
    os.write(1, encode(message))


def _become_rank(order: dict[str, Any], server: int) -> None:
    """The forked process goes on as a fresh interpreter would have begun. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        die_with_parent(server)
        _own_streams(order["stdout"], order["stderr"])
        os.environ.update(order["environment"])
        # Ranks would draw the same numbers where a fresh interpreter's numpy seeds itself; Python's own generator does.
        np.random.seed()
        os.environ.pop(PARENT_VARIABLE, None)
        from bench.worker.__main__ import run_rank

        run_rank(Path(order["spec"]))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _own_streams(stdout: str, stderr: str) -> None:
    """Its own logs in place of the server's pipes, and no other file of the server."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, mode) in enumerate(((os.devnull, os.O_RDONLY), (stdout, flags), (stderr, flags))):
        opened = os.open(path, mode, 0o644)
        os.dup2(opened, number)
        if opened > 2:
            os.close(opened)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2:
            # The one that listed them is closed already.
            with contextlib.suppress(OSError):
                os.close(number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def unfit() -> str:
    """Why ranks must not be forked from this process, "" where they may."""
    import torch

    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"it has {threads} threads once everything is loaded"
    return "CUDA is in use in it" if torch.cuda.is_initialized() else ""


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    adopt_orphans()
    # Modules are not garbage: looking for some among them takes a seventh of the time that they take to load.
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    # What is loaded stays: neither collected nor, by a look of the collector, copied in every rank.
    gc.collect()
    gc.freeze()
    gc.enable()
    say({"server": os.getpid(), "unfit": unfit()})
    Server().serve()


if __name__ == "__main__":
    main()
