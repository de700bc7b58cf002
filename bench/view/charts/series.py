"""Names of series and cells, as they stand in legends and beside bars: from the factors, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.factors import BY_NAME, CONTROL, FACTORS, MACHINE, WEAK, Factor

PLACES = ("scaling", "batch_global", "devices")
"""Where in the charts a cell of a series stands: on an axis, or in a chart of its own."""


def _parts_groups(factor: Factor) -> bool:
    """Whether cells that differ in this factor never share a chart.

    That is what a campaign has one value of, and where its batches come from. Shares of the cores of one machine may
    be looked at side by side.
    """
    return factor.name == "data_pipeline" or (factor.scope == "campaign" and factor.name != "threads_per_device")


GROUP = (MACHINE, *(factor.name for factor in FACTORS if _parts_groups(factor)))
"""What all rows of a chart share."""

SERIES = tuple(factor.name for factor in FACTORS if factor.name not in (*GROUP, *PLACES, "role"))
"""What tells series apart: every other factor."""

PLACE = (*SERIES, *PLACES)
"""What tells the cells of a chart apart."""


def with_names(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary of one group with `series` and `cell` added, the names of its rows."""
    summary = summary.reset_index(drop=True)
    summary["series"] = _series_names(summary)
    several = summary["scaling"].nunique() > 1
    tail = summary["scaling"].map({WEAK: f" {WEAK}"}).fillna("") if several else ""
    control = summary["role"].map({CONTROL: " A/A"}).fillna("")
    summary["cell"] = summary["series"] + "@" + summary["devices"].astype("str") + tail + control
    return summary


def with_series(runs: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """The runs of a group with the `series` that their rows of the named summary have."""
    names = summary.drop_duplicates(list(PLACE))[[*PLACE, "series"]]
    runs = runs.merge(names, on=list(PLACE), how="left")
    runs["series"] = runs["series"].where(runs["series"].notna(), runs["strategy"]).astype("str")
    return runs


def place_key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """What tells the series and the place of a row, with missing values made equal."""
    values = (row[name] for name in PLACE)
    return tuple(None if value is None or pd.isna(value) else value for value in values)


def _series_names(table: pd.DataFrame) -> pd.Series:
    """A name for the series of each row: the strategy, and whatever else tells it from others."""
    batch = table["batch_global"].where(table["scaling"] != WEAK, table["batch_global"] // table["devices"])
    shown = [name for name in SERIES if name != "strategy" and table[name].nunique(dropna=False) > 1]
    by_batch = table.assign(_batch=batch).groupby("scaling")["_batch"].nunique().max() if len(table) else 0
    names = []
    for place, (_, row) in enumerate(table.iterrows()):
        extra = [_word(BY_NAME[name], row[name]) for name in shown]
        if by_batch > 1:
            extra.append(BY_NAME["batch_global"].words.format(batch.iloc[place]))
        names.append(" ".join([str(row["strategy"]), *[word for word in extra if word]]))
    return pd.Series(names, index=table.index, dtype="str")


def _word(factor: Factor, value: Any) -> str:
    """The value as a word of a name; "" for what goes without saying, which is the first of a vocabulary."""
    usual = factor.values[0] if factor.values else factor.default
    return "" if pd.isna(value) or value in ("", usual) else factor.words.format(value)
