"""An agent's end of what ranks and it say about the floor (`bench.floor`): named pipes in a folder of this node."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.floor import ORDERS_VARIABLE, SAYS_VARIABLE
from bench.lines import encode, listen


def can_share_floor() -> bool:
    """Whether this system has named pipes."""
    return hasattr(os, "mkfifo")


class Pipes:
    """The pipes of all runs on a node. What ranks say is put into `heard`, from `self`."""

    def __init__(self, heard: queue.SimpleQueue[Any], say: Callable[[Mapping[str, Any]], None]) -> None:
        """`say` tells whoever started the agent of the folder, which stays behind where the agent is killed."""
        self._heard = heard
        self._say = say
        self._folder: Path | None = None
        self._orders: dict[tuple[str, int], int] = {}
        self._waiting: dict[str, dict[int, dict[str, Any]]] = {}

    def variables(self, run: str, rank: int) -> dict[str, str]:
        """Make the pipes of a rank, and what its environment says of them."""
        folder = self._open()
        path = folder / f"{run}-{rank}"
        if (run, rank) not in self._orders:
            os.mkfifo(path, 0o600)
            # For reading too: there is then always a writer, and opening waits for nobody.
            self._orders[run, rank] = os.open(path, os.O_RDWR)
        return {ORDERS_VARIABLE: str(path), SAYS_VARIABLE: str(folder / "says")}

    def _open(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="strategybench-floor-"))
            self._say({"folder": str(self._folder)})
            says = self._folder / "says"
            os.mkfifo(says, 0o600)
            listen(os.open(says, os.O_RDWR), self._heard, self)
        return self._folder

    def heard(self, message: Mapping[str, Any], ranks: int) -> dict[str, Any] | None:
        """Take in that a rank waits. What is to be said of its run once all its ranks do, None before."""
        run = message["run"]
        waiting = self._waiting.setdefault(run, {})
        waiting[message["rank"]] = dict(message)
        if len(waiting) < ranks:
            return None
        del self._waiting[run]
        speeds = [found["step_seconds"] for found in waiting.values() if "step_seconds" in found]
        speed = {"step_seconds": max(speeds)} if speeds else {}
        return {"run": run, "waits": message["waits"], **speed}

    def give(self, run: str, told: Mapping[str, Any]) -> None:
        """Give the floor to a run: each of its ranks is told to go on."""
        line = encode(told)
        for (name, _), pipe in self._orders.items():
            if name == run:
                os.write(pipe, line)

    def forget(self, run: str) -> None:
        """A run has ended: its pipes go."""
        self._waiting.pop(run, None)
        for name, rank in [key for key in self._orders if key[0] == run]:
            os.close(self._orders.pop((name, rank)))
            if self._folder is not None:
                (self._folder / f"{name}-{rank}").unlink(missing_ok=True)

    def close(self) -> None:
        for name in {run for run, _ in self._orders}:
            self.forget(name)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
