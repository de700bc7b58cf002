"""Files that are whole or not there, and paths that the system may refuse to look at."""

from __future__ import annotations

import os
from pathlib import Path


def write_text_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def is_file(path: Path) -> bool:
    """False too where the system will not say, for a name too long or a closed folder."""
    try:
        return path.is_file()
    except OSError:
        return False
