"""The campaign's folder while it is being written: one writer, whole lines, and a record of what is running."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from bench.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.csvfile import Row, append_rows, check_header, write_text_atomically
from bench.errors import UserError

RUNNING = "running.json"
WORKER_MODULE = "bench.worker"


class Store:
    """Appends to a campaign's files. Raises UserError on opening when the folder cannot be written or is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            probe = folder / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(f"could not write to {folder}: {error.strerror or error}; choose another --out") from None
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"another campaign is writing to {folder}; wait for it or choose another --out") from None

    @property
    def runs(self) -> Path:
        return self.folder / "runs.csv"

    @property
    def steps(self) -> Path:
        return self.folder / "steps.csv"

    def check(self) -> None:
        """Raise UserError now, not after an hour, where a file here has another header."""
        for path, columns in ((self.runs, RUN_COLUMNS), (self.steps, STEP_COLUMNS)):
            if path.exists():
                check_header(path, columns)

    def add(self, runs: Iterable[Row], steps: Iterable[Row]) -> None:
        """Append one run. Its steps go first: a row in runs.csv is the sign that the run is complete."""
        steps = list(steps)
        if steps:
            append_rows(self.steps, STEP_COLUMNS, steps)
        append_rows(self.runs, RUN_COLUMNS, runs)

    def set_aside_half_lines(self) -> list[str]:
        """Cut a half-written last line off each file, keep it beside, and say so. Returns the messages."""
        messages = []
        for path in (self.runs, self.steps):
            if not path.exists():
                continue
            data = path.read_bytes()
            if not data or data.endswith(b"\n"):
                continue
            end = data.rfind(b"\n") + 1
            aside = path.with_name(f"{path.name}.half-line-{datetime.now(UTC):%Y%m%dT%H%M%S}")
            aside.write_bytes(data[end:])
            with path.open("r+b") as file:
                file.truncate(end)
            if end == 0:
                path.unlink()
            messages.append(f"{path.name}: the last line was half written; it is kept in {aside.name}")
        return messages

    def note_running(self, run_id: str, pids: list[int]) -> None:
        write_text_atomically(self.folder / RUNNING, json.dumps({"run_id": run_id, "pids": pids}) + "\n")

    def note_idle(self) -> None:
        (self.folder / RUNNING).unlink(missing_ok=True)

    def end_orphans(self) -> list[int]:
        """End workers that a killed campaign left in this folder. Returns the pids that were still alive."""
        try:
            noted: dict[str, Any] = json.loads((self.folder / RUNNING).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        ended = []
        for pid in noted.get("pids", []):
            # A number may belong to somebody else by now: only a worker of this very folder is ended.
            try:
                command = psutil.Process(pid).cmdline()
                if WORKER_MODULE in command and any(str(self.folder.resolve()) in part for part in command):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
            except (psutil.Error, OSError):
                continue
        self.note_idle()
        return ended

    def close(self) -> None:
        self._lock.release()


def new_folder(root: Path, *, host: str, preset: str, now: float | None = None) -> Path:
    """results/<utc>-<host>-<preset>, made unique where two campaigns begin in the same second."""
    stamp = datetime.fromtimestamp(time.time() if now is None else now, UTC).strftime("%Y%m%dT%H%M%SZ")
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in host) or "host"
    folder = root / f"{stamp}-{safe}-{preset}"
    number = 1
    while folder.exists():
        number += 1
        folder = root / f"{stamp}-{safe}-{preset}-{number}"
    return folder
