"""What speed costs in accuracy: after one run, and over time where runs have several epochs."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.factors import MEASURE, OK, STRONG, WEAK
from bench.results.limits import CELL_KEYS
from bench.view.charts.groups import RUN_KEYS, ChartData
from bench.view.charts.style import Skipped, caption, handle, looks, no_cells, sheet, styled

MOST_CURVES = 16
ABSENT = "no run that counts has a test accuracy: it needs a whole epoch on data with a test set"


def figure_accuracy(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Test accuracy of each cell against seconds for an epoch, and against device-seconds."""
    data = data.only(scaling)
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    rows = data.ok_cells
    rows = rows[rows["test_accuracy"].notna() & rows["epoch_seconds"].notna()]
    if not len(rows):
        return Skipped(ABSENT)
    how = looks(data)
    names = [name for name in data.series_names if name in set(rows["series"])]
    note = "Weak scaling makes fewer updates in an epoch." if scaling == WEAK else ""
    with styled():
        page = sheet(
            f"Test accuracy against seconds for an epoch, and against device-seconds, {scaling} scaling",
            caption(data, "Left and up is better. Larger markers: more devices.", note),
            columns=2, legend=names, share_y=True, gap=0.35,
        )  # fmt: skip
        for name in names:
            for _, row in rows[rows["series"] == name].sort_values("devices").iterrows():
                for axes, factor in zip(page.axes, (1, int(row["devices"])), strict=True):
                    axes.plot([row["epoch_seconds"] * factor], [row["test_accuracy"]], label=row["cell"],
                              linestyle="none", **_marker(row, how[name]))  # fmt: skip
        for axes, label in zip(page.axes, ("seconds for an epoch", "device-seconds for an epoch"), strict=True):
            axes.set_xlabel(label)
            axes.set_xlim(left=0)
            axes.margins(x=0.06, y=0.1)
            axes.locator_params(axis="x", nbins=6)
        _at_least(page.axes[0], rows["test_accuracy"])
        page.axes[0].set_ylabel("test accuracy")
        page.legend([handle(name, how[name], line=False) for name in names])
    return page.figure


def _at_least(axes: Axes, values: pd.Series, span: float = 0.06) -> None:
    """An axis of accuracy of some width: three runs apart by a thousandth are equal, and should look so."""
    low, high = float(values.min()), float(values.max())
    half = max(span, (high - low) * 1.2) / 2
    axes.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)


def _marker(row: Any, look: Any) -> dict[str, Any]:
    return {
        "marker": look.marker,
        "markersize": 5 + 1.2 * math.log2(max(int(row["devices"]), 1)),
        "color": look.color,
        "alpha": 0.85,
    }


def accuracy_over_time(data: ChartData) -> pd.DataFrame:
    """Median accuracy and median training seconds after each epoch, a row an ok cell and epoch."""
    runs = data.standing_runs
    runs = runs[(runs["role"] == MEASURE) & (runs["status"] == OK) & runs["test_accuracy"].notna()]
    runs = runs.merge(data.ok_cells[CELL_KEYS].drop_duplicates(), on=CELL_KEYS).sort_values([*RUN_KEYS, "epoch"])
    runs = runs.assign(seconds=runs.groupby(RUN_KEYS)["timed_seconds"].cumsum())
    return runs.groupby([*CELL_KEYS, "epoch"])[["seconds", "test_accuracy"]].median().reset_index()


def figure_time_to_accuracy(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Test accuracy against training seconds, one line a cell through its epochs."""
    data = data.only(scaling)
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    table = accuracy_over_time(data)
    if not len(table):
        return Skipped(ABSENT)
    if table["epoch"].max() < 2:
        return Skipped("the runs have one epoch; curves need more (bench run --epochs N)")
    table, cut = _legible(data, table)
    how = looks(data)
    names = [name for name in data.series_names if name in set(table["series"])]
    with styled():
        page = sheet(
            f"Test accuracy against training seconds, epoch by epoch, {scaling} scaling",
            caption(
                data, "Medians over the runs; evaluation is not counted.",
                "Wider lines: more devices." if table["devices"].nunique() > 1 else "", cut,
            ),
            legend=names,
        )  # fmt: skip
        axes = page.axes[0]
        for key, part in table.groupby(["series", "devices"], sort=True):
            name, devices = str(key[0]), int(str(key[1]))
            axes.plot(
                part["seconds"], part["test_accuracy"], color=how[name].color, marker=how[name].marker,
                linestyle=how[name].dashes, markersize=4, linewidth=0.9 + 0.4 * math.log2(max(devices, 1)),
                label=f"{name}@{devices}",
            )  # fmt: skip
        axes.set_xlabel("training seconds")
        axes.set_ylabel("test accuracy")
        axes.set_xlim(left=0)
        page.legend([handle(name, how[name]) for name in names])
    return page.figure


def _legible(data: ChartData, table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """All curves, or where they are too many those of the most devices of each series, and a sentence that says so."""
    if table.groupby(["series", "devices"]).ngroups <= MOST_CURVES:
        return table, ""
    most = table.groupby("series")["devices"].transform("max")
    return table[table["devices"] == most], "Of each strategy only the largest number of devices is drawn."
