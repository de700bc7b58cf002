"""The user's own folders, where there are any."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from bench.errors import UserError


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
