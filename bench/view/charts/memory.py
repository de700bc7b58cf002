"""Peak memory per device: the fullest and the emptiest device of each cell."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.factors import STRONG
from bench.view.charts.curves import first_rows, left_for
from bench.view.charts.groups import ChartData
from bench.view.charts.style import INK, MUTED, Skipped, caption, looks, no_cells, sheet, shorten, styled
from bench.view.maintable import GIB


def figure_memory(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """One row a cell: peak allocated of the fullest device, joined to that of the emptiest; GiB, axis from zero."""
    data = data.only(scaling)
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    rows = data.ok_cells[data.ok_cells["peak_memory_bytes"].notna()]
    if not len(rows):
        if data.device_kind == "cpu":
            return Skipped("device memory is not measured on CPU; the main table has the host's peak memory")
        return Skipped("no run that counts has a peak memory")
    rows, cut = first_rows(data, rows)
    places = np.arange(len(rows), dtype=float)
    full = rows["peak_memory_bytes"].astype("float64") / GIB
    empty = rows["peak_memory_bytes_min"].astype("float64") / GIB
    empty = empty.where(empty.notna(), full)
    how = looks(data)
    labels = ["fullest device", "emptiest device"]
    with styled():
        page = sheet(
            f"Peak memory per device, {scaling} scaling: the fullest and the emptiest device of each cell",
            caption(data, "A long line is an uneven load: the fullest device decides which batch fits.", cut),
            height=max(1.4, 0.22 * len(rows)), left=left_for(rows), legend=labels,
        )  # fmt: skip
        axes = page.axes[0]
        axes.hlines(places, empty, full, color=[how[name].color for name in rows["series"]], linewidth=2)
        axes.plot(empty, places, linestyle="none", marker="|", markersize=9, color=MUTED, markeredgewidth=1.6,
                  label=labels[1])  # fmt: skip
        axes.plot(full, places, linestyle="none", marker="o", markersize=5, color=INK, label=labels[0])
        axes.set_yticks(places, [shorten(str(name)) for name in rows["cell"]])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, float(full.max()) * 1.06)
        axes.set_xlabel("GiB allocated at the peak")
        axes.grid(False, axis="y")
        page.legend(
            [
                Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5, label=labels[0]),
                Line2D([], [], color=MUTED, marker="|", linestyle="none", markersize=9, label=labels[1]),
            ]
        )
    return page.figure
