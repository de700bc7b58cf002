"""Continuing a campaign: what is missing, and whether this is still the same machine and the same matrix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.factors import INTERRUPTED, cell_key
from bench.plan.matrix import Matrix, in_words
from bench.plan.planned import PlannedCell

SAME_IN_ALL_RUNS = (
    "device",
    "workload",
    "dataset",
    "steps",
    "warmup_steps",
    "epochs",
    "seed",
    "threads_per_device",
    "loader_workers",
)
"""Keys of a matrix that change what a run does and that no cell names: a finished run would pass for the new one."""

MAY_BE_RAISED = ("blocks", "max_blocks", "timeout", "time_limit", "time_target", "repeat_disturbed")
"""Keys that only say how much is measured at most: with more of it a campaign goes on as it would have."""

_RESOLVED = {"device": "device_kind", "threads_per_device": "threads_per_device", "dataset": "dataset_used"}
_TREE: dict[Any, str] = {True: "changed since that commit", False: "as committed"}


class Done:
    """What a folder's runs.csv holds: read once when a campaign begins, and kept up with what is added."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows: list[Mapping[str, Any]] = []
        # By cell and block, and then by cohort: the last attempt, and whether it stands.
        self._last: dict[tuple[tuple[Any, ...], int], dict[int, tuple[int, bool]]] = {}
        self._cohorts: dict[int, int] = {}
        self.add(rows)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows as `read_runs` gives them."""
        for row in rows:
            self.rows.append(row)
            block, cohort, attempt = row["block"] or 0, row["cohort"] or 0, row["attempt"] or 1
            known = self._last.setdefault((cell_key(row), block), {})
            if attempt >= known.get(cohort, (0, False))[0]:
                known[cohort] = (attempt, row["status"] != INTERRUPTED and not row["repeated_for"])
            if row["cohort"] is not None:
                self._cohorts[block] = max(cohort + 1, self._cohorts.get(block, 0))

    def finished(self, cell: PlannedCell, block: int) -> bool:
        """Whether this cell was measured in this block: an attempt at it neither interrupted nor to be repeated."""
        return bool(self.cohorts(cell, block))

    def cohorts(self, cell: PlannedCell, block: int) -> set[int]:
        """The cohorts of this block in which this cell was measured."""
        known = self._last.get((cell.key, block), {})
        return {cohort for cohort, (_, stands) in known.items() if stands}

    def next_attempt(self, cell: PlannedCell, block: int) -> int:
        known = self._last.get((cell.key, block), {})
        return max((attempt for attempt, _ in known.values()), default=0) + 1

    def next_cohort(self, block: int) -> int:
        return self._cohorts.get(block, 0)


def check_same_environment(folder: Path, environment: Mapping[str, Any], *, force: bool) -> list[str]:
    """Refuse to mix machines or versions in one folder, unless forced. Returns what differs, as 'fact: old -> new'."""
    path = folder / "environment.json"
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"could not read {path}, so whether this is the same machine is unknown: {error}") from None
    identity, volatile = (old.get(name, {}) if isinstance(old, dict) else None for name in ("identity", "volatile"))
    if not isinstance(identity, dict) or not isinstance(volatile, dict):
        raise UserError(f"{path} holds no facts of a machine, so whether this is the same one is unknown")
    differences = _differences(identity, environment["identity"])
    old_commit = volatile.get("git_commit", "")
    new_commit = environment["volatile"].get("git_commit", "")
    if old_commit != new_commit:
        differences.append(f"commit of the suite: {old_commit or 'none'} -> {new_commit or 'none'}")
    both: tuple[Mapping[str, Any], ...] = (volatile, environment["volatile"])
    states = [_TREE.get(facts.get("git_dirty"), "unknown") for facts in both]
    if states[0] != states[1]:
        differences.append(f"files of the suite: {states[0]} -> {states[1]}")
    if differences and not force:
        raise UserError(
            f"{folder} was measured under other conditions ({'; '.join(differences)}); "
            "begin a new campaign, or add --force to mix them"
        )
    return differences


def check_same_matrix(folder: Path, begun: Matrix, asked: Matrix, *, recorded: Mapping[str, Any], force: bool) -> None:
    """Refuse another matrix, unless forced; and even then where runs of both could not be told apart.

    `recorded` is what the campaign noted of itself: naming what `auto` came to is no difference.
    """
    different = [
        item.name
        for item in fields(Matrix)
        if (new := getattr(asked, item.name)) != getattr(begun, item.name)
        and not (getattr(begun, item.name) in ("auto", None) and new == recorded.get(_RESOLVED.get(item.name, "")))
        and not _raised(item.name, getattr(begun, item.name), new)
    ]
    mixing = [name for name in different if name in SAME_IN_ALL_RUNS]
    if not different or (force and not mixing):
        return
    told = "; ".join(_difference(name, begun, asked) for name in mixing or different)
    remedy = "leave them out to continue it, or " + (
        "begin a new campaign: its runs and the new ones could not be told apart" if mixing else "add --force"
    )
    raise UserError(f"{folder} was begun with another matrix than these options give ({told}); {remedy}")


def _raised(name: str, old: Any, new: Any) -> bool:
    """Whether a campaign only gets more of the same: more blocks or time, or a narrower interval as its target."""
    if not isinstance(old, (int, float)) or not isinstance(new, (int, float)):
        # No limit any more is more, too.
        return name == "time_limit" and new is None
    if name == "precision_target":
        return new < old
    # Blocks are counted where both numbers are: 0 leaves them to a rule.
    return name in MAY_BE_RAISED and new > old > 0


def _difference(name: str, begun: Matrix, asked: Matrix) -> str:
    if name in ("groups", "options"):
        return {"groups": "other cells", "options": "other options of a strategy"}[name]
    old, new = (in_words(name, getattr(matrix, name)) for matrix in (begun, asked))
    return f"{name}: {old} -> {new}"


def hashes(paths: Iterable[Path]) -> list[str]:
    """The SHA-256 of each file, blank where it cannot be read."""
    found = []
    for path in paths:
        try:
            found.append(hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            found.append("")
    return found


def check_same_strategy_files(
    folder: Path, files: Sequence[Path], begun: Mapping[str, Any], *, force: bool
) -> list[str]:
    """Refuse strategy files of other contents than the campaign was begun with, unless forced. Returns which differ.

    Campaigns that recorded no hashes are taken at their word.
    """
    recorded = begun.get("strategy_files_sha256")
    if recorded is None:
        return []
    if not isinstance(recorded, list):
        raise UserError(f"{folder / 'matrix.toml'}, [campaign]: strategy_files_sha256 must be a list")
    changed = [str(path) for path, found in zip(files, hashes(files), strict=True) if found not in recorded]
    if changed and not force:
        raise UserError(
            f"{folder} was begun with other contents of the strategy file {', '.join(changed)}; put them back, or add "
            "--force to keep the runs of the old contents and measure what is missing with the new"
        )
    return [f"contents of the strategy file {path}" for path in changed]


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    keys: Iterable[str] = sorted({*old, *new})
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]
