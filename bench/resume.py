"""Continuing a campaign: what is missing, and whether this is still the same machine and the same matrix."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.campaign import read_runs
from bench.errors import UserError
from bench.planning import Cell

RowKey = tuple[Any, ...]


def row_key(row: Mapping[str, Any]) -> RowKey:
    """The cell of a row of runs.csv, as `Cell.key` names it."""
    return (
        row["strategy"],
        row["devices"],
        row["scaling"],
        row["precision"],
        row["memory_format"],
        row["compile"],
        row["variant"],
        row["role"],
        row["batch_global"],
        row["accumulate"],
        row["data_pipeline"],
    )


class Done:
    """What a folder's runs.csv already holds."""

    def __init__(self, path: Path) -> None:
        self.rows = read_runs(path) if path.exists() else []
        self._last: dict[tuple[RowKey, int], tuple[int, str]] = {}
        for row in self.rows:
            place, attempt = (row_key(row), row["block"] or 0), row["attempt"] or 1
            if attempt >= self._last.get(place, (0, ""))[0]:
                self._last[place] = (attempt, row["status"])

    def finished(self, cell: Cell, block: int) -> bool:
        """Whether this cell has a row in this block, its last attempt other than interrupted."""
        return self._last.get((cell.key, block), (0, "interrupted"))[1] != "interrupted"

    def next_attempt(self, cell: Cell, block: int) -> int:
        return self._last.get((cell.key, block), (0, ""))[0] + 1


def check_same_environment(folder: Path, environment: Mapping[str, Any], *, force: bool) -> list[str]:
    """Refuse to mix machines or versions in one folder, unless forced. Returns what differs, as 'fact: old -> new'."""
    path = folder / "environment.json"
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"could not read {path}, so whether this is the same machine is unknown: {error}") from None
    differences = _differences(old.get("identity", {}), environment["identity"])
    old_commit = old.get("volatile", {}).get("git_commit", "")
    new_commit = environment["volatile"].get("git_commit", "")
    if old_commit != new_commit:
        differences.append(f"commit of the suite: {old_commit or 'none'} -> {new_commit or 'none'}")
    if differences and not force:
        raise UserError(
            f"{folder} was measured under other conditions ({'; '.join(differences)}); "
            "begin a new campaign, or add --force to mix them"
        )
    return differences


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    keys: Iterable[str] = sorted({*old, *new})
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]
