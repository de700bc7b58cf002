"""Figures from articles, each row with its source, hardware and date, to be set beside measured ones.

Published rows are never pooled with measured rows and never enter an answer: hardware, software and batch differ.
They are drawn only where the kind of device and the kind of scaling agree with the campaign's.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.results.columns import Column
from bench.results.csvfile import read_rows
from bench.results.folder import frame

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED_COLUMNS = tuple(
    Column(*row)
    for row in (
        ("strategy", "str", "", "the registry name nearest to what the source ran"),
        ("devices", "int", "devices", "as in runs.csv"),
        ("scaling", "str", "", "strong or weak, judged from the batches that the source ran"),
        ("precision", "str", "", "as in runs.csv"),
        ("name_in_source", "str", "", "what the source calls the row"),
        ("hardware", "str", "", "as the source states it"),
        ("device_kind", "str", "", "cpu or cuda"),
        ("workload", "str", "", "as the source names it"),
        ("dataset", "str", "", "as the source names it"),
        ("batch_global", "int", "samples", "samples per optimizer step over all parts, blank where not stated"),
        ("epoch_seconds", "float", "s", "seconds for one epoch"),
        ("test_accuracy", "float", "", "share of the test set, 0 to 1, blank where not stated"),
        ("source", "str", "", "title of the source"),
        ("url", "str", "", "where it is"),
        ("author", "str", "", "who published it"),
        ("date", "str", "", "when it was published, as exactly as known"),
        ("notes", "str", "", "what to know before comparing"),
    )
)


@dataclass(frozen=True)
class Published:
    """The published figures of one folder of CSV files."""

    folder: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of file names; `speedup` and `efficiency` are worked out within each source.

        speedup = epoch seconds of the source's own `single` on one device / epoch seconds of the row.
        """
        rows: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("*.csv")):
            rows.extend(_with_speedup(read_rows(path, PUBLISHED_COLUMNS)))
        return rows

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The rows as a typed frame."""
        extra = (Column("speedup", "float", "", ""), Column("efficiency", "float", "", ""))
        return frame(self.rows, PUBLISHED_COLUMNS + extra)


def published_folder() -> Path:
    """Where the files are: inside the package in an installed wheel, under results/ in a checkout.

    Raises UserError where neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "published", package.parent / "results" / "published"):
        if folder.is_dir():
            return folder
    raise UserError("the published figures are missing from this installation; install strategybench again")


def load_published(folder: Path | None = None) -> Published:
    """The published figures that come with the suite, or those of a folder."""
    return Published(published_folder() if folder is None else folder)


def _with_speedup(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    single = {row["source"]: row["epoch_seconds"] for row in rows if (row["strategy"], row["devices"]) == ("single", 1)}
    for row in rows:
        base = single.get(row["source"])
        row["speedup"] = base / row["epoch_seconds"] if base and row["epoch_seconds"] else None
        row["efficiency"] = row["speedup"] / row["devices"] if row["speedup"] else None
    return rows
