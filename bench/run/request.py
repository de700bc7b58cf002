"""`bench run` as typed, and the options that are no keys of a matrix: places, and how a campaign is begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plan.options import MACHINE, RESULTS, WHAT, option


@dataclass(frozen=True)
class Request:
    """What a command asks for. `matrix` is a preset or a file; `overrides` are its keys, None there means not given."""

    matrix: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data_root: Path | None = option(
        help="Folder of the datasets; default the user's cache folder.", panel=WHAT, shape="path"
    )
    strategy_files: tuple[Path, ...] = option(
        (),
        help="Python file with a STRATEGIES table; repeatable.",
        panel=WHAT,
        shape="paths",
        flag="--strategy-file",
    )
    out: Path | None = option(
        help="Results folder; default results/<utc>-<host>-<preset>.", panel=RESULTS, shape="path"
    )
    resume: Path | None = option(help="Results folder to continue: only missing runs.", panel=RESULTS, shape="path")
    force: bool = option(False, help="Resume on another machine, version or matrix.", panel=RESULTS, shape="switch")
    anonymous: bool = option(False, help="Leave out host and user name.", panel=RESULTS, shape="switch")
    checkpoint: Path | None = option(
        help="Folder for the bare model's state after each run.", panel=RESULTS, shape="path"
    )
    initial_state: Path | None = option(
        help="Checkpoint to start every run from.", panel=MACHINE, shape="path", flag="--init-from"
    )
    command: str = ""
