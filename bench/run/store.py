"""The campaign's folder while it is being written: one writer, whole lines, and a record of what is running."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bench.errors import UserError
from bench.files import write_text_atomically
from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.results.csvfile import Row, append_rows, as_read, check_header
from bench.results.folder import read_runs
from bench.run.leftovers import end_marked

RUNNING = "running.json"
LONGEST_SCRUBBED = 8 << 20
"""Bytes that are looked at together: a longer line is cut there, and a name across such a cut would stay."""


class Store:
    """Appends to a campaign's files. Raises UserError on opening when the folder cannot be written or is in use.

    `private` are words that must not reach a file, such as the user's name; `scrub` takes them out of a text.
    """

    def __init__(self, folder: Path, *, private: Sequence[str] = ()) -> None:
        self.folder = folder
        self._running: dict[str, list[int]] = {}
        self._private = [re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])", re.IGNORECASE) for word in private]
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            probe = folder / f".write-{os.getpid()}"
            probe.write_bytes(b"probe")
            probe.unlink()
        except OSError as error:
            raise UserError(f"could not write to {folder}: {error.strerror or error}; choose another --out") from None
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"another campaign is writing to {folder}; wait for it or choose another --out") from None
        except (OSError, NotImplementedError) as error:
            raise UserError(f"could not lock {folder}: {error}; choose an --out on a disk that has locks") from None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What runs.csv holds, read once `tidy` has mended it, and kept up with what is added."""
        return read_runs(self.runs) if self.runs.exists() else []

    @property
    def runs(self) -> Path:
        return self.folder / "runs.csv"

    @property
    def steps(self) -> Path:
        return self.folder / "steps.csv"

    def scrub(self, text: str) -> str:
        """The text without the user's home folder and without the private words; unchanged where there are none."""
        if not self._private:
            return text
        home = Path(os.path.expanduser("~"))  # noqa: PTH111, which raises where there is none
        # A user without a home folder has the root for one, which is in every path, or none at all.
        if home.is_absolute() and home != Path(home.anchor):
            text = re.sub(rf"{re.escape(str(home))}(?![\w-])", "~", text)
        for word in self._private:
            text = word.sub("(left out)", text)
        return text

    def scrub_files(self, folder: Path) -> None:
        """The same for every file below `folder`, compressed ones included."""
        if not self._private:
            return
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            try:
                self._scrub_file(path)
            except (OSError, EOFError, zlib.error):
                # What cannot be read, such as a trace that was cut short, cannot be shown to be clean.
                path.unlink(missing_ok=True)

    def _scrub_file(self, path: Path) -> None:
        """By lines, so that a file of any length takes little memory; what is no UTF-8 passes through as it is."""
        opened = gzip.open if path.suffix == ".gz" else open
        scrubbed = path.with_name(f".{path.name}.scrubbed")
        changed = False
        try:
            with opened(path, "rb") as old, opened(scrubbed, "wb") as new:
                while line := old.readline(LONGEST_SCRUBBED):
                    text = line.decode("utf-8", "surrogateescape")
                    clean = self.scrub(text)
                    changed = changed or clean != text
                    new.write(clean.encode("utf-8", "surrogateescape"))
            if changed:
                scrubbed.replace(path)
        finally:
            scrubbed.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise UserError now, not after an hour, where a file here has another header."""
        for path, columns in ((self.runs, RUN_COLUMNS), (self.steps, STEP_COLUMNS)):
            # A first line that is not whole is no header yet.
            if path.exists() and _first_line(path).endswith(b"\n"):
                check_header(path, columns)

    def add(self, runs: Iterable[Row], steps: Iterable[Row]) -> list[dict[str, Any]]:
        """Append one run, and return its rows as the file now holds them.

        Its steps go first: a row in runs.csv is the sign that the run is complete.
        """
        steps = list(steps)
        if steps:
            append_rows(self.steps, STEP_COLUMNS, steps)
        rows = [self._scrubbed(row) for row in runs]
        held = self.rows
        append_rows(self.runs, RUN_COLUMNS, rows)
        added = [as_read(RUN_COLUMNS, row) for row in rows]
        held.extend(added)
        return added

    def _scrubbed(self, row: Row) -> Row:
        texts = {name: self.scrub(row[name]) for name in ("reason", "warnings", "details") if row.get(name)}
        return {**row, **texts}

    def tidy(self, *, epochs: int) -> list[str]:
        """Set aside what a campaign that was cut off left half written, and say so. Returns the messages.

        `epochs` is how many rows a measured run has. Raises UserError where a file is not of this version; one with
        another header is left as it is.
        """
        self.check()
        messages = self._set_aside_half_lines()
        messages += self._set_aside_a_run_cut_short(epochs)
        return [*messages, *self._set_aside_steps_without_a_run()]

    def _set_aside_half_lines(self) -> list[str]:
        """Cut a half-written last line off each file and keep it beside; a file without a whole line goes."""
        messages = []
        for path in (self.runs, self.steps):
            if not path.exists():
                continue
            data = path.read_bytes()
            end = data.rfind(b"\n") + 1
            if data and end == len(data):
                continue
            aside = self._aside(path, "half-line", data[end:]) if data else None
            if end:
                with path.open("r+b") as file:
                    file.truncate(end)
            else:
                path.unlink()
            kept = f"the last line was half written; it is kept in {aside.name}" if aside else "the file was empty"
            messages.append(f"{path.name}: {kept}")
        return messages

    def _set_aside_a_run_cut_short(self, epochs: int) -> list[str]:
        """A run's rows are one write; where it was cut, the file ends with fewer rows than the run has epochs.

        A run that gave no measurement has one row, whatever its epochs.
        """
        rows = read_runs(self.runs) if self.runs.exists() else []
        if not rows:
            return []
        run_id, measured = rows[-1]["run_id"], rows[-1]["timed_steps"] is not None
        count = sum(1 for _ in itertools.takewhile(lambda row: row["run_id"] == run_id, reversed(rows)))
        # In a file that was sorted by hand a whole run's rows may lie apart.
        everywhere = sum(row["run_id"] == run_id for row in rows)
        if not measured or everywhere >= epochs or count < everywhere:
            return []
        lines = self.runs.read_bytes().splitlines(keepends=True)
        first = [number for number, line in enumerate(lines) if line.strip()][-count]
        aside = self._aside(self.runs, "part-of-a-run", b"".join(lines[first:]))
        write_text_atomically(self.runs, b"".join(lines[:first]).decode("utf-8"))
        told = f"{count} of the {epochs} rows of {run_id} were written; they are kept in {aside.name}"
        return [f"{self.runs.name}: {told} and it is measured again"]

    def _set_aside_steps_without_a_run(self) -> list[str]:
        """Steps are written before their run's row; a campaign that ended between the two measures that run again."""
        if not self.steps.exists():
            return []
        known = {row["run_id"] for row in read_runs(self.runs)} if self.runs.exists() else set()
        header, *lines = self.steps.read_bytes().splitlines(keepends=True)
        orphans = [line for line in lines if line.strip() and line.split(b",", 1)[0].decode("utf-8") not in known]
        if not orphans:
            return []
        aside = self._aside(self.steps, "without-run", b"".join(orphans))
        lost = set(orphans)
        write_text_atomically(
            self.steps, b"".join([header, *(line for line in lines if line not in lost)]).decode("utf-8")
        )
        return [f"steps.csv: {len(orphans)} step(s) of a run that has no row; they are kept in {aside.name}"]

    def _aside(self, path: Path, what: str, data: bytes) -> Path:
        """Keep `data` in a new file beside `path`."""
        stem = f"{path.name}.{what}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        aside = next(p for n in range(1, 1000) if not (p := path.with_name(f"{stem}-{n}" if n > 1 else stem)).exists())
        aside.write_bytes(data)
        return aside

    def note_running(self, run_id: str, pids: list[int]) -> None:
        """Leave a record of the ranks for whoever resumes. Raises UserError when the disk refuses it."""
        self._running[run_id] = pids
        self._write_running()

    def note_ended(self, run_id: str) -> None:
        """This run has no ranks any more."""
        if self._running.pop(run_id, None) is not None and self._running:
            self._write_running()
        if not self._running:
            self.note_idle()

    def _write_running(self) -> None:
        path = self.folder / RUNNING
        try:
            write_text_atomically(path, json.dumps({"runs": self._running}) + "\n")
        except OSError as error:
            raise UserError(
                f"could not write {path}: {error.strerror or error}; what was measured before is kept"
            ) from None

    def note_idle(self) -> None:
        self._running.clear()
        (self.folder / RUNNING).unlink(missing_ok=True)

    def end_orphans(self) -> list[int]:
        """End workers that a killed campaign left in this folder, and what they started. Returns the pids ended."""
        ended = end_marked(self.folder) if (self.folder / RUNNING).exists() else []
        self.note_idle()
        return ended

    def close(self) -> None:
        self._lock.release()


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()


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
