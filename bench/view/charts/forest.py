"""All cells in one picture: speedup with its interval, and the noise floor that a difference has to leave behind."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.factors import CONTROL, STRONG
from bench.view.charts.curves import first_rows, left_for
from bench.view.charts.groups import ChartData
from bench.view.charts.style import (
    INK,
    MUTED,
    NOISE,
    Skipped,
    caption,
    looks,
    no_cells,
    no_interval,
    sheet,
    shorten,
    styled,
)


def noise_floor(data: ChartData) -> tuple[float, float] | None:
    """The widest A/A interval: what the same cell under two names was seen to differ by; None without one."""
    rows = data.controls[data.controls["speedup_low"].notna()]
    if not len(rows):
        return None
    return float(rows["speedup_low"].min()), float(rows["speedup_high"].max())


def figure_forest(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Speedup with interval of every cell, reference at 1, the A/A rows below as noise floor."""
    data = data.only(scaling)
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    rows = data.measured[data.measured["speedup"].notna()]
    if not len(rows):
        return Skipped("no cell has a speedup: it or its baseline has no run that counts")
    rows, cut = first_rows(data, rows)
    rows = pd.concat([rows, data.controls])
    floor = noise_floor(data)
    with styled():
        band = "noise floor (A/A interval)"
        page = sheet(
            f"Speedup of every cell over {data.baseline or 'the baseline'}, with 95 % intervals, {scaling} scaling",
            caption(
                data,
                "An interval that crosses 1 does not tell faster from slower.",
                "A/A: the baseline measured again under a second name." if len(data.controls) else "No A/A control.",
                cut,
                no_interval(rows),
            ),
            height=max(1.4, 0.2 * len(rows)), left=left_for(rows), legend=[band],
        )  # fmt: skip
        axes = page.axes[0]
        if floor:
            axes.axvspan(*floor, color=NOISE, alpha=0.6, linewidth=0, label="noise floor")
        axes.axvline(1, color=MUTED, linewidth=1, label="reference")
        _draw(axes, data, rows)
        page.legend(
            [
                Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5, label="geometric mean"),
                Line2D([], [], color=INK, linewidth=1.8, label="95 % interval"),
                Line2D([], [], color=MUTED, linewidth=1, label="reference: 1"),
                *([Patch(color=NOISE, alpha=0.6, label=band)] if floor else []),
            ]
        )
    return page.figure


def _draw(axes: Axes, data: ChartData, rows: pd.DataFrame) -> None:
    how = looks(data)
    places = np.arange(len(rows), dtype=float)
    for place, (_, row) in zip(places, rows.iterrows(), strict=True):
        control = row["role"] == CONTROL
        color, marker = (MUTED, "|") if control else (how[row["series"]].color, how[row["series"]].marker)
        if pd.notna(row["speedup_low"]) and pd.notna(row["speedup_high"]):
            axes.hlines(place, row["speedup_low"], row["speedup_high"], color=color, linewidth=1.8)
        axes.plot([row["speedup"]], [place], marker=marker, color=color, markersize=5.5, linestyle="none",
                  label=row["cell"])  # fmt: skip
    axes.set_yticks(places, [shorten(str(name)) for name in rows["cell"]])
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.grid(False, axis="y")
    axes.set_xlabel("speedup (×); right of 1 is faster")
    low = min(float(rows["speedup"].min()), float(rows["speedup_low"].min(skipna=True)), 1.0)
    high = max(float(rows["speedup"].max()), float(rows["speedup_high"].max(skipna=True)), 1.0)
    low, high = (0.9 if math.isnan(low) else low), (1.1 if math.isnan(high) else high)
    margin = 0.05 * (high - low) or 0.05
    axes.set_xlim(max(low - margin, 0), high + margin)
