"""The strategies of one command, with the files that the user names for it."""

from __future__ import annotations

from pathlib import Path

from bench.errors import UserError
from bench.files import is_file
from strategies import Registry


def known_strategies(strategy_files: tuple[Path, ...]) -> Registry:
    """Raises UserError for a strategy file that is not there; one that cannot be used becomes a broken entry."""
    for path in strategy_files:
        if not is_file(path):
            raise UserError(f"--strategy-file {path} does not exist or is no file; give a Python file")
    return Registry.collect(strategy_files)
