"""Runs in the order they were made: a slope here is drift, not a property of a strategy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.factors import CONTROL, MEASURE, OK, UNSUPPORTED
from bench.view.charts.groups import RUN_KEYS, ChartData
from bench.view.charts.style import GRID, INK, MUTED, Skipped, caption, handle, looks, sheet, styled, thin

MOST_BLOCK_LINES = 60


def trace_table(data: ChartData) -> pd.DataFrame:
    """Headline and control runs whose attempt counts, in order: `place` from 1, and `relative` to the cell's median.

    `relative` is samples/s / the median samples/s of the cell's ok runs, NaN for a run that is not ok.
    """
    runs = data.standing_runs
    runs = runs[runs["role"].isin([MEASURE, CONTROL]) & (runs["status"] != UNSUPPORTED)]
    runs = runs.sort_values("epoch").drop_duplicates(RUN_KEYS).sort_values(["utc_start", "block", "order_in_block"])
    runs = runs.assign(place=range(1, len(runs) + 1))
    rate = runs["samples_per_second"].where(runs["status"] == OK)
    medians = rate.groupby([runs["series"], runs["devices"], runs["scaling"], runs["role"]]).transform("median")
    return runs.assign(relative=rate / medians)


def figure_trace(data: ChartData) -> Figure | Skipped:
    """Throughput of each run over its cell's median, in the order of the runs; failed runs as crosses below."""
    table = trace_table(data)
    good = table[table["relative"].notna()]
    if len(good) < 2:
        return Skipped("fewer than two runs count, so there is no order to show")
    if good["block"].nunique() < 2:
        return Skipped("one block was measured; drift shows only over repeats")
    dots, thinned = thin(good)
    names = [name for name in data.series_names if name in set(dots["series"])]
    failed = table[table["status"] != OK]
    crosses, _ = thin(failed)
    how = looks(data)
    labels = [*names, *(["failed run"] if len(failed) else [])]
    with styled():
        page = sheet(
            "Throughput of each run over the median of its cell, in the order of the runs",
            caption(data, "A slope or a step shared by all is drift of the machine. Grey lines: a new block begins.",
                    thinned),
            legend=labels, height=3.3,
        )  # fmt: skip
        axes = page.axes[0]
        _block_lines(axes, table)
        axes.axhline(1, color=MUTED, linewidth=1, label="reference")
        for name in names:
            mine = dots[dots["series"] == name]
            axes.plot(mine["place"], mine["relative"], linestyle="none", marker=how[name].marker, markersize=4,
                      color=how[name].color, alpha=0.8, markeredgewidth=0.5, label=name)  # fmt: skip
        if len(crosses):
            axes.plot(crosses["place"], [0.03] * len(crosses), linestyle="none", marker="x", color=INK, markersize=5,
                      transform=axes.get_xaxis_transform(), label="failed run")  # fmt: skip
        axes.set_xlabel("run, in order")
        axes.set_ylabel("samples/s ÷ median of the cell")
        spread = max(float((good["relative"] - 1).abs().max()) * 1.25, 0.02)
        axes.set_ylim(1 - spread, 1 + spread)
        extra = [Line2D([], [], linestyle="none", marker="x", color=INK, label="failed run")] if len(failed) else []
        page.legend([handle(name, how[name], line=False) for name in names] + extra)
    return page.figure


def _block_lines(axes: Axes, table: pd.DataFrame) -> None:
    starts = table.drop_duplicates("block")["place"].iloc[1:]
    if len(starts) > MOST_BLOCK_LINES:
        return
    for place in starts:
        axes.axvline(place - 0.5, color=GRID, linewidth=1.4)
    axes.grid(False, axis="x")
