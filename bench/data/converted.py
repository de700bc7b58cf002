"""Folders of converted data: written once, complete or not at all, and found again by the recipe they were made from.

    <root>/strategybench-<label>-<fingerprint>/train_inputs.npy ... dataset.json

A folder is named after its content, so data that changed get a new folder and a campaign that is still running keeps
the one it began with. Reading needs no lock; writing happens under the root's lock. These folders can be removed
whenever no campaign is running.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from bench.data.specs import Arrays, Report
from bench.errors import UserError
from bench.files import write_text_atomically

Recipe = dict[str, Any]
"""What a folder was made from, in JSON's own types: equal recipes give equal data."""

_DESCRIPTION = "dataset.json"
_ARRAY_NAMES = tuple(field.name for field in fields(Arrays))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """One folder of converted data. `counts` are the rows of each array, by the names of `Arrays`."""

    folder: Path
    fingerprint: str
    counts: dict[str, int]
    warnings: tuple[str, ...]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def find_converted(roots: Sequence[Path], label: str, recipe: Recipe, *, report: Report | None = None) -> Stored | None:
    """The first intact folder of this recipe, or None.

    File sizes are always compared; the whole content where the time of the last change is not the one recorded.
    """
    for root in roots:
        for folder in sorted(root.glob(f"strategybench-{label}-*")):
            description = _describe(folder)
            if description is None or description["recipe"] != recipe:
                continue
            if _intact(folder, description):
                return _stored(folder, description)
            (report or logger.warning)(f"{folder} is damaged; converting again")
    return None


def save_converted(root: Path, label: str, recipe: Recipe, arrays: Arrays, *, warnings: tuple[str, ...] = ()) -> Stored:
    """Write the arrays below `root`, whose lock the caller holds. Raises UserError when the disk refuses them."""
    fingerprint = _fingerprint(arrays)
    target = root / f"strategybench-{label}-{fingerprint}"
    temporary = root / f".strategybench-{label}.{os.getpid()}.tmp"
    try:
        _remove_leftovers(root)
        description = _describe(target)
        if description is not None and _intact(target, description, thorough=True):
            # The same samples from files of another time or place: only the recipe is new.
            description |= {"recipe": recipe, "warnings": list(warnings)}
            for name, recorded in description["files"].items():
                recorded["mtime_ns"] = (target / name).stat().st_mtime_ns
            write_text_atomically(target / _DESCRIPTION, json.dumps(description, indent=1))
            return _stored(target, description)
        try:
            temporary.mkdir()
            description = _write(temporary, arrays) | {"recipe": recipe, "warnings": list(warnings)}
            description["fingerprint"] = fingerprint
            (temporary / _DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
            if target.exists():
                target.rename(root / f".strategybench-{label}.{os.getpid()}.old.tmp")
            temporary.rename(target)
        finally:
            _remove_leftovers(root)
    except OSError as error:
        raise UserError(
            f"could not write the converted data to {root}: {error.strerror or error};\n"
            "make room there or give another folder with --data-root"
        ) from None
    return _stored(target, description)


@contextmanager
def locked(roots: Sequence[Path], *, report: Report | None = None) -> Iterator[Path]:
    """Hold the lock of the first root that can be written to, and give that root.

    Where another process holds it, say so once and wait. Raises UserError when no root can be written to.
    """
    refusals = []
    for root in roots:
        try:
            lock = _acquire(root, report)
        except (OSError, NotImplementedError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            refusals.append(f"{root} ({reason or error})")
            continue
        try:
            yield root
        finally:
            lock.release()
        return
    raise UserError(
        f"no folder for the data can be written to: {', '.join(refusals)};\ngive one that can be with --data-root"
    )


def _acquire(root: Path, report: Report | None) -> FileLock:
    root.mkdir(parents=True, exist_ok=True)
    if not os.access(root, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied")
    lock = FileLock(root / ".strategybench.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        (report or logger.warning)(f"waiting for another process that prepares data in {root}")
        lock.acquire()
    return lock


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed process left. The caller holds the lock, so nobody is writing there."""
    for leftover in root.glob(".strategybench-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write(folder: Path, arrays: Arrays) -> dict[str, Any]:
    """Write each array as .npy and return the description of the files as they are on the disk."""
    files = {}
    counts = {}
    for name in _ARRAY_NAMES:
        array = getattr(arrays, name)
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
            # Without this, a machine that loses power may keep the name and the size but not the content.
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
        files[path.name] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _sha256(path)}
        counts[name] = len(array)
    return {"files": files, "counts": counts}


def _describe(folder: Path) -> dict[str, Any] | None:
    """The description of a folder, None where there is none or it is not one of ours."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    expected = {"recipe", "fingerprint", "counts", "warnings", "files"}
    if not isinstance(description, dict) or not expected <= description.keys():
        return None
    return description


def _intact(folder: Path, description: dict[str, Any], *, thorough: bool = False) -> bool:
    try:
        for name in _ARRAY_NAMES:
            path = folder / f"{name}.npy"
            recorded = description["files"][path.name]
            status = path.stat()
            if status.st_size != recorded["bytes"]:
                return False
            if (thorough or status.st_mtime_ns != recorded["mtime_ns"]) and _sha256(path) != recorded["sha256"]:
                return False
    except (OSError, KeyError, TypeError):
        return False
    return True


def _stored(folder: Path, description: dict[str, Any]) -> Stored:
    return Stored(
        folder=folder,
        fingerprint=description["fingerprint"],
        counts=description["counts"],
        warnings=tuple(description["warnings"]),
    )


def _fingerprint(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in _ARRAY_NAMES:
        digest.update(np.ascontiguousarray(getattr(arrays, name)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
