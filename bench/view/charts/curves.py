"""How one quantity of many cells is drawn against devices: as curves, or as bars where there is one device count."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bench.view.charts.groups import ChartData
from bench.view.charts.style import INK, dodge, looks, shorten, smallest_gap, text_inches

MOST_ROWS = 150
"""More cells than this do not stand below one another in a picture that one can read."""


@dataclass(frozen=True)
class Quantity:
    """One thing that is drawn against devices. `low`, `high` and `dots` name columns, '' where there are none."""

    column: str
    label: str
    low: str = ""
    high: str = ""
    dots: Callable[[pd.DataFrame], pd.Series] | None = None


SPEEDUP = Quantity("speedup", "speedup (×)", "speedup_low", "speedup_high", lambda runs: runs["speedup"])
EFFICIENCY = Quantity(
    "efficiency", "efficiency (speedup ÷ devices)", "efficiency_low", "efficiency_high",
    lambda runs: runs["speedup"] / runs["devices"].astype("float64"),
)  # fmt: skip
TOTAL = Quantity("samples_per_second", "samples/s, all devices", dots=lambda runs: runs["samples_per_second"])
EACH = Quantity(
    "samples_per_second_per_device", "samples/s per device",
    dots=lambda runs: runs["samples_per_second"] / runs["devices"].astype("float64"),
)  # fmt: skip


def has_curves(rows: pd.DataFrame) -> bool:
    """Whether any series was run at more than one device count."""
    return bool(len(rows)) and bool(rows.groupby("series")["devices"].nunique().max() > 1)


def draw_intervals(axes: Axes, rows: pd.DataFrame, quantity: Quantity, how: Any, transform: Any) -> None:
    """Vertical bars from the lower to the upper end of the interval, where there is one."""
    if not quantity.low:
        return
    rows = rows[rows[quantity.low].notna() & rows[quantity.high].notna()]
    axes.vlines(
        rows["devices"].astype(float), rows[quantity.low], rows[quantity.high],
        color=how.color, linewidth=1.6, transform=transform,
    )  # fmt: skip


def draw_curves(axes: Axes, data: ChartData, rows: pd.DataFrame, runs: pd.DataFrame, quantity: Quantity) -> list[str]:
    """One line a series through its cells, one faint dot a run; returns the series that were drawn."""
    how = looks(data)
    names = [name for name in data.series_names if name in set(rows["series"])]
    gap = smallest_gap(axes, [int(count) for count in rows["devices"]])
    beside = 6.0 if gap > 30 * len(names) else 0.0
    for place, name in enumerate(names):
        cells = rows[rows["series"] == name].sort_values("devices")
        transform = dodge(axes, place, len(names), gap=gap)
        mine = runs[runs["series"] == name]
        if quantity.dots is not None and len(mine):
            axes.plot(
                mine["devices"].astype(float), quantity.dots(mine), linestyle="none", marker="o", markersize=2.2,
                color=how[name].color, alpha=0.5, markeredgewidth=0, gid=f"runs:{name}",
                transform=dodge(axes, place, len(names), gap=gap, extra=beside),
            )  # fmt: skip
        draw_intervals(axes, cells, quantity, how[name], transform)
        axes.plot(
            cells["devices"].astype(float), cells[quantity.column], color=how[name].color, marker=how[name].marker,
            linestyle=how[name].dashes, linewidth=1.3, markersize=5.5, transform=transform, label=name,
        )  # fmt: skip
    return names


def draw_bars(axes: Axes, data: ChartData, rows: pd.DataFrame, runs: pd.DataFrame, quantity: Quantity) -> None:
    """One horizontal bar a cell, the first on top, with its interval and its runs as dots."""
    how = looks(data)
    rows = ordered(data, rows)
    places = np.arange(len(rows), dtype=float)
    axes.barh(
        places, rows[quantity.column].astype(float), height=0.62, alpha=0.55, label=quantity.column,
        color=[how[name].color for name in rows["series"]],
    )  # fmt: skip
    for place, (_, row) in zip(places, rows.iterrows(), strict=True):
        mine = runs[(runs["series"] == row["series"]) & (runs["devices"] == row["devices"])]
        if quantity.dots is not None and len(mine):
            spread = np.linspace(-0.2, 0.2, len(mine)) if len(mine) > 1 else np.zeros(1)
            axes.plot(
                quantity.dots(mine), place + spread, linestyle="none", marker="o", markersize=2.6, color=INK,
                alpha=0.6, markeredgewidth=0, gid=f"runs:{row['cell']}",
            )  # fmt: skip
        if quantity.low and pd.notna(row[quantity.low]) and pd.notna(row[quantity.high]):
            axes.hlines(place, row[quantity.low], row[quantity.high], color=INK, linewidth=1.8)
    axes.set_yticks(places, [shorten(str(name)) for name in rows["cell"]])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel(quantity.label)


def ordered(data: ChartData, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by series in the common order, then by devices."""
    rank = {name: place for place, name in enumerate(data.series_names)}
    return rows.assign(_rank=rows["series"].map(rank)).sort_values(["_rank", "devices"], kind="stable")


def first_rows(data: ChartData, rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The first MOST_ROWS rows in the common order, and a sentence for the caption that says so."""
    cut = f"The first {MOST_ROWS} of {len(rows)} cells are drawn." if len(rows) > MOST_ROWS else ""
    return ordered(data, rows).head(MOST_ROWS), cut


def left_for(rows: pd.DataFrame) -> float:
    """Inches that the labels of horizontal bars need."""
    return max((text_inches(shorten(str(name))) for name in rows["cell"]), default=0.5) + 0.4
