"""Reading a results folder: everything that summarises, compares or draws starts here, without torch."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.factors import ROLES, STATUSES
from bench.results.columns import RUN_COLUMNS, SCHEMA_VERSION, STEP_COLUMNS, Column
from bench.results.csvfile import numbered_rows, read_rows
from strategies import BUILT_IN

if TYPE_CHECKING:
    import pandas as pd

_BUILT_IN = {entry.name: entry for entry in BUILT_IN}
_PANDAS_TYPES = {"str": "str", "int": "Int64", "float": "float64", "bool": "boolean"}


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The rows of a runs.csv.

    Raises UserError as `read_rows` does, and for a row of another schema version or with a status or role that the
    suite does not write.
    """
    rows = numbered_rows(path, RUN_COLUMNS)
    for number, row in rows:
        if row["schema_version"] != SCHEMA_VERSION:
            raise UserError(
                f"{path}, line {number}: schema version {row['schema_version']!r}, "
                f"this version of the suite reads {SCHEMA_VERSION!r}"
            )
        for name, known in (("status", STATUSES), ("role", ROLES)):
            if row[name] not in known:
                raise UserError(f"{path}, line {number}: {name} {row[name]!r} is none of {', '.join(known)}")
        if row["same_work"] is None:
            row.update(_facts_of_before(row))
    return [row for _, row in rows]


def _facts_of_before(row: dict[str, Any]) -> dict[str, Any]:
    """What rows now state of their strategy, for an older row: from its own details, and the table of built-ins."""
    entry = _BUILT_IN.get(row["strategy"])
    twins = {"plain_twin": entry.plain, "tuned_twin": entry.tuned} if entry else {}
    return {"same_work": "gradients=lossy" not in row["details"], **twins}


@dataclass(frozen=True)
class Campaign:
    """One results folder.

    Raises UserError on construction when the folder or its runs.csv does not exist.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is not a folder; give the results folder of a campaign")
        if not (self.folder / "runs.csv").is_file():
            raise UserError(f"{self.folder} holds no runs.csv; give the results folder of a campaign")

    @cached_property
    def run_rows(self) -> list[dict[str, Any]]:
        """The rows of runs.csv, in the order they were written."""
        return read_runs(self.folder / "runs.csv")

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """The rows of runs.csv as a frame; missing numbers are NA, missing text is ''."""
        return frame(self.run_rows, RUN_COLUMNS)

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """The rows of steps.csv as a frame, empty where the file does not exist."""
        path = self.folder / "steps.csv"
        return frame(read_rows(path, STEP_COLUMNS) if path.is_file() else [], STEP_COLUMNS)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """environment.json, or {} where it does not exist: keys `environment_id`, `identity`, `volatile`."""
        path = self.folder / "environment.json"
        if not path.is_file():
            return {}
        try:
            return _table(json.loads(path.read_text(encoding="utf-8")), path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not readable as JSON: {error}") from None

    @cached_property
    def matrix(self) -> dict[str, Any]:
        """matrix.toml, or {} where it does not exist."""
        path = self.folder / "matrix.toml"
        if not path.is_file():
            return {}
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not readable as TOML: {error}") from None

    @property
    def facts(self) -> dict[str, Any]:
        """What the runner recorded under [campaign] in matrix.toml: command, notice, threads_per_device and more."""
        return _table(self.matrix.get("campaign", {}), self.folder / "matrix.toml")

    @property
    def baseline_option(self) -> str:
        """The baseline that the campaign was measured with, as NAME[@DEVICES]; "" for the usual one."""
        return str(self.matrix.get("baseline") or "")

    @property
    def raced_over(self) -> str | None:
        """The baseline, as NAME[@DEVICES] or "", of a campaign measured with --race; None for others."""
        return self.baseline_option if self.matrix.get("race") is True else None


def days(starts: Iterable[Any]) -> str:
    """The days of ISO 8601 times, as `2026-11-29` or `2026-11-29 to 2026-11-30`; "" for none."""
    found = sorted({str(start)[:10] for start in starts if start})
    return "" if not found else found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _table(value: Any, path: Path) -> dict[str, Any]:
    """The value, where it is one of names and values. Raises UserError."""
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold what the suite wrote: {str(value)[:80]!r} stands in place of a table")
    return value


def frame(rows: Sequence[Mapping[str, Any]], columns: tuple[Column, ...]) -> "pd.DataFrame":
    """Typed frame of dictionaries: Int64, float64, boolean and str columns in the table's order.

    Raises UserError for a whole number that does not fit into 64 bits.
    """
    import pandas as pd

    series = {}
    for column in columns:
        try:
            series[column.name] = pd.Series([row[column.name] for row in rows], dtype=_PANDAS_TYPES[column.kind])
        except OverflowError:
            raise UserError(f"column {column.name} holds a number of more than 64 bits; no run wrote that") from None
    return pd.DataFrame(series)
