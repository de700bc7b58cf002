"""Speedup, efficiency and throughput against devices; strong and weak scaling never share a chart.

With one device count a curve has nothing to show, so the same values are drawn as bars.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.factors import STRONG, WEAK, is_baseline_row
from bench.view.charts.curves import (
    EACH,
    EFFICIENCY,
    SPEEDUP,
    TOTAL,
    Quantity,
    draw_bars,
    draw_curves,
    has_curves,
    left_for,
)
from bench.view.charts.groups import ChartData
from bench.view.charts.style import (
    MUTED,
    Sheet,
    Skipped,
    caption,
    device_ticks,
    handle,
    looks,
    no_cells,
    no_interval,
    sheet,
    styled,
    thin,
)

MEANING = {
    STRONG: "Strong scaling: the global batch stays fixed.",
    WEAK: "Weak scaling: the batch per part stays fixed, so an epoch has fewer updates.",
}
PUBLISHED = "published (hollow: other hardware)"


def _rows(data: ChartData, scaling: str, column: str) -> pd.DataFrame:
    """The ok cells of one scaling that have the value, with the interval of the efficiency added."""
    rows = data.ok_cells
    rows = rows[(rows["scaling"] == scaling) & rows[column].notna()].copy()
    count = rows["devices"].astype("float64")
    rows["efficiency_low"] = rows["speedup_low"] / count
    rows["efficiency_high"] = rows["speedup_high"] / count
    return rows


def _baseline_name(data: ChartData) -> str:
    return data.baseline or "the baseline"


def _published(data: ChartData, scaling: str) -> pd.DataFrame:
    """Published rows that may stand in this chart: same kind of device, same kind of scaling."""
    if data.published is None:
        return pd.DataFrame()
    table = data.published.table
    return table[(table["device_kind"] == data.device_kind) & (table["scaling"] == scaling) & table["speedup"].notna()]


def _draw_published(axes: Axes, data: ChartData, scaling: str, column: str) -> list[Line2D]:
    rows = _published(data, scaling)
    if not len(rows):
        return []
    axes.plot(
        rows["devices"].astype(float), rows[column], linestyle="none", marker="*", markersize=11,
        markerfacecolor="none", markeredgecolor=MUTED, markeredgewidth=1.1, label="published",
    )  # fmt: skip
    return [
        Line2D([], [], linestyle="none", marker="*", markersize=9, markerfacecolor="none",
               markeredgecolor=MUTED, label=PUBLISHED)
    ]  # fmt: skip


def _cost(data: ChartData, rows: pd.DataFrame) -> tuple[str, float] | None:
    """Name and speedup of the tuned single device, the line that more devices have to beat."""
    tuned = rows[rows["cost_opponent"]]
    if not len(tuned):
        return None
    row = tuned.sort_values("speedup").iloc[-1]
    return f"COST: {row['series']} on 1 device", float(row["speedup"])


def _cost_line(axes: Axes, data: ChartData, rows: pd.DataFrame, *, upright: bool) -> list[Line2D]:
    cost = _cost(data, rows)
    if cost is None:
        return []
    draw = axes.axvline if upright else axes.axhline
    draw(cost[1], color="#8a4b00", linewidth=1.2, linestyle=(0, (8, 3)), label="cost")
    return [Line2D([], [], color="#8a4b00", linewidth=1.2, linestyle=(0, (8, 3)), label=cost[0])]


def _reason(data: ChartData, scaling: str) -> Skipped:
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    return Skipped(f"no cell with {scaling} scaling has a speedup: it or its baseline has no run that counts")


def _dots(data: ChartData, scaling: str) -> tuple[pd.DataFrame, str]:
    runs = data.ok_runs
    return thin(runs[(runs["scaling"] == scaling) & runs["speedup"].notna()])


def _only_baseline(rows: pd.DataFrame) -> bool:
    return all(is_baseline_row(row) for _, row in rows.iterrows())


def figure_speedup(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Speedup over the baseline against devices, with the ideal line; bars where no series has two device counts."""
    data = data.only(scaling)
    rows = _rows(data, scaling, "speedup")
    if not len(rows) or _only_baseline(rows):
        return _reason(data, scaling)
    runs, thinned = _dots(data, scaling)
    if not has_curves(rows):
        return _bars(data, rows, runs, SPEEDUP, scaling, thinned)
    with styled():
        names = [name for name in data.series_names if name in set(rows["series"])]
        labels = [*names, "ideal", *([PUBLISHED] if len(_published(data, scaling)) else [])]
        cost = _cost(data, rows)
        page = sheet(
            f"Speedup over {_baseline_name(data)} against devices, {scaling} scaling",
            caption(
                data, MEANING[scaling], "Line and marker: geometric mean; bar: 95 % interval; dot: one run.", thinned,
                no_interval(rows),
            ),
            legend=[*labels, *([cost[0]] if cost else [])],
        )  # fmt: skip
        axes = page.axes[0]
        counts = sorted({int(count) for count in rows["devices"]} | {1})
        # The ideal line may leave the picture: where nothing comes near it, it would flatten what was measured.
        axes.plot([1, counts[-1]], [1, counts[-1]], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")
        device_ticks(axes, [*counts, *_published_counts(data, scaling)])
        draw_curves(axes, data, rows, runs, SPEEDUP)
        extra = [Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")]
        extra += _draw_published(axes, data, scaling, "speedup") + _cost_line(axes, data, rows, upright=False)
        highest = max(float(rows["speedup"].max()), float(rows["speedup_high"].fillna(0).max()))
        _finish(axes, [*counts, *_published_counts(data, scaling)], "speedup (×)", max(highest * 1.12, 1.3))
        page.legend([handle(name, looks(data)[name]) for name in names] + extra)
    return page.figure


def _published_counts(data: ChartData, scaling: str) -> list[int]:
    rows = _published(data, scaling)
    return [int(count) for count in rows["devices"]] if len(rows) else []


def _finish(axes: Axes, counts: Sequence[int], label: str, top: float) -> None:
    device_ticks(axes, counts)
    axes.set_xlabel("devices")
    axes.set_ylabel(label)
    axes.set_ylim(0, top)


def figure_efficiency(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Speedup ÷ devices, axis from zero, with a line at 1."""
    data = data.only(scaling)
    rows = _rows(data, scaling, "efficiency")
    if not len(rows) or _only_baseline(rows):
        return _reason(data, scaling)
    runs, thinned = _dots(data, scaling)
    if not has_curves(rows):
        return _bars(data, rows, runs, EFFICIENCY, scaling, thinned)
    with styled():
        names = [name for name in data.series_names if name in set(rows["series"])]
        stars = len(_published(data, scaling)) > 0
        page = sheet(
            f"Efficiency against devices, {scaling} scaling: speedup over {_baseline_name(data)} ÷ devices",
            caption(data, MEANING[scaling], "Bar: 95 % interval; dot: one run.", thinned, no_interval(rows)),
            legend=[*names, *([PUBLISHED] if stars else [])],
        )  # fmt: skip
        axes = page.axes[0]
        axes.axhline(1, color=MUTED, linewidth=1, label="reference")
        counts = [1, *(int(count) for count in rows["devices"]), *_published_counts(data, scaling)]
        device_ticks(axes, counts)
        draw_curves(axes, data, rows, runs, EFFICIENCY)
        extra = _draw_published(axes, data, scaling, "efficiency")
        highest = max(float(rows["efficiency"].max()), float(rows["efficiency_high"].fillna(0).max()))
        _finish(axes, counts, EFFICIENCY.label, max(highest * 1.12, 1.12))
        page.legend([handle(name, looks(data)[name]) for name in names] + extra)
    return page.figure


def _bars(
    data: ChartData, rows: pd.DataFrame, runs: pd.DataFrame, quantity: Quantity, scaling: str, thinned: str
) -> Figure:
    """Speedup or efficiency as bars with a reference at 1."""
    with styled():
        word = "Speedup" if quantity is SPEEDUP else "Efficiency (speedup ÷ devices)"
        cost = _cost(data, rows) if quantity is SPEEDUP else None
        page = sheet(
            f"{word} over {_baseline_name(data)}, {scaling} scaling",
            caption(data, MEANING[scaling], "Bar: geometric mean; line: 95 % interval; dot: one run; reference at 1.",
                    thinned, no_interval(rows)),
            height=max(1.2, 0.3 * len(rows)), left=left_for(rows), legend=[cost[0]] if cost else [],
        )  # fmt: skip
        axes = page.axes[0]
        axes.axvline(1, color=MUTED, linewidth=1, label="reference")
        draw_bars(axes, data, rows, runs, quantity)
        if cost:
            page.legend(_cost_line(axes, data, rows, upright=True))
    return page.figure


def figure_throughput(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Samples per second, in total and per device."""
    data = data.only(scaling)
    rows = _rows(data, scaling, "samples_per_second")
    if not len(rows):
        if not len(data.measured):
            return Skipped(no_cells(scaling))
        return Skipped(f"no cell with {scaling} scaling has a run that counts")
    runs = data.ok_runs
    runs, thinned = thin(runs[runs["scaling"] == scaling])
    curves = has_curves(rows)
    names = [name for name in data.series_names if name in set(rows["series"])]
    with styled():
        page = sheet(
            f"Throughput in samples per second, {scaling} scaling: all devices together, and per device",
            caption(data, MEANING[scaling], "Median over the runs; dot: one run.", thinned),
            columns=2, legend=names if curves else [], height=3.6 if curves else max(1.2, 0.3 * len(rows)),
            left=0.85 if curves else left_for(rows), share_y=not curves, gap=0.85 if curves else 0.35,
        )  # fmt: skip
        for axes, quantity in zip(page.axes, (TOTAL, EACH), strict=True):
            if curves:
                device_ticks(axes, [int(count) for count in rows["devices"]])
                draw_curves(axes, data, rows, runs, quantity)
                _finish(axes, [int(count) for count in rows["devices"]], quantity.label,
                        float(rows[quantity.column].max()) * 1.12)  # fmt: skip
            else:
                draw_bars(axes, data, rows, runs, quantity)
        _number_axes(page, curves)
        if curves:
            page.legend([handle(name, looks(data)[name]) for name in names])
    return page.figure


def _number_axes(page: Sheet, curves: bool) -> None:
    """Few ticks with thousands separators, so that neighbours never touch."""
    for axes in page.axes:
        axis = axes.yaxis if curves else axes.xaxis
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if not curves:
            axes.locator_params(axis="x", nbins=5)
