"""Files that are whole or not there, and paths that the system may refuse to look at."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from bench.errors import UserError


def write_text_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def cache_folder() -> Path:
    """Where the user's programs keep what they can make again. Raises UserError where there is no home to hold it."""
    try:
        found = platformdirs.user_cache_dir("strategybench")
    except RuntimeError:
        found = "~"
    if found.startswith("~"):
        raise UserError("this user has no home folder; set HOME or XDG_CACHE_HOME, or give --data-root")
    return Path(found)


def expanded(path: Path) -> Path:
    """The path with a leading ~ as the user's folder. Raises UserError where there is none."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no home folder for ~; give the whole path") from None


def is_file(path: Path) -> bool:
    """False too where the system will not say, for a name too long or a closed folder."""
    try:
        return path.is_file()
    except OSError:
        return False
