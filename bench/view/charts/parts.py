"""Where an epoch's time goes, and what a run costs before its first step."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.factors import BREAKDOWN, MEASURE, OK, STRONG
from bench.results.limits import CELL_KEYS
from bench.view.charts.curves import first_rows, left_for
from bench.view.charts.groups import RUN_KEYS, ChartData
from bench.view.charts.style import CARD, Skipped, caption, no_cells, sheet, shorten, styled

EPOCH_PARTS = (
    ("data_wait_seconds", "data wait", "#e69f00", ""),
    ("forward_backward_seconds", "forward + backward", "#0072b2", ""),
    ("optimizer_seconds", "optimizer", "#56b4e9", "//"),
    ("exposed_comm_seconds", "exposed communication", "#d55e00", "xx"),
)
START_PARTS = (
    ("launch_seconds", "launch + imports", "#332288", ""),
    ("init_seconds", "process group", "#cc79a7", "//"),
    ("build_seconds", "build", "#009e73", ""),
    ("compile_seconds", "compile", "#882255", "xx"),
    ("warmup_seconds", "warm-up", "#b5b5b5", ".."),
)


def epoch_table(data: ChartData) -> pd.DataFrame:
    """Median seconds of each part for one epoch, a row a cell that has breakdown runs.

    The parts were timed over `timed_samples` and are scaled to `epoch_samples`. Exposed communication was timed as
    a share of forward and backward, so it is taken out of them here: the parts add up.
    """
    rows = data.standing_runs
    runs = rows[(rows["role"] == BREAKDOWN) & (rows["status"] == OK)].copy()
    names = [name for name, *_ in EPOCH_PARTS]
    scale = runs["epoch_samples"].astype("float64") / runs["timed_samples"].astype("float64")
    runs[names] = runs[names].mul(scale, axis=0)
    runs = runs[runs["forward_backward_seconds"].notna()]
    rest = runs["forward_backward_seconds"] - runs["exposed_comm_seconds"].fillna(0)
    runs["forward_backward_seconds"] = rest.clip(lower=0)
    return runs.groupby(CELL_KEYS)[names].median().reset_index()


def start_table(data: ChartData) -> pd.DataFrame:
    """Median seconds of each part of the start-up, a row a cell, from headline runs."""
    names = [name for name, *_ in START_PARTS]
    rows = data.standing_runs
    runs = rows[(rows["role"] == MEASURE) & (rows["status"] == OK)]
    runs = runs[runs[names].notna().any(axis=1)].drop_duplicates(RUN_KEYS)
    return runs.groupby(CELL_KEYS)[names].median().reset_index()


def figure_breakdown(data: ChartData, *, scaling: str = STRONG) -> Figure | Skipped:
    """Stacked bars: the parts of an epoch, and beside them the parts of the start-up."""
    data = data.only(scaling)
    if not len(data.measured):
        return Skipped(no_cells(scaling))
    epoch, start = epoch_table(data), start_table(data)
    if not len(epoch) and not len(start):
        return Skipped("no run has start-up times, and there are no breakdown runs (bench run --breakdown makes them)")
    cells = data.ok_cells[[*CELL_KEYS, "cell"]].drop_duplicates(CELL_KEYS)
    wanted = pd.concat([epoch[CELL_KEYS], start[CELL_KEYS]]).drop_duplicates()
    rows, cut = first_rows(data, cells.merge(wanted, on=CELL_KEYS))
    panels: list[tuple[pd.DataFrame, tuple[tuple[str, str, str, str], ...], str]]
    panels = [(epoch, EPOCH_PARTS, "s for one epoch")] if len(epoch) else []
    panels += [(start, START_PARTS, "s before the first timed step")] if len(start) else []
    parts = [part for table, group, _ in panels for part in group if table[part[0]].fillna(0).gt(0).any()]
    with styled():
        page = sheet(
            f"Where the time of an epoch goes, and what starting a run costs, {scaling} scaling"
            if len(epoch)
            else f"What starting a run costs, {scaling} scaling",
            caption(
                data,
                "Parts of an epoch: medians of breakdown runs, which are never headline runs. "
                "Forward + backward is drawn without the exposed communication."
                if len(epoch)
                else "There are no breakdown runs, so the epoch is not split (bench run --breakdown makes them).",
                cut,
            ),
            columns=len(panels), height=max(1.5, 0.24 * len(rows)), left=left_for(rows), share_y=True, gap=0.3,
            legend=[part[1] for part in parts],
        )  # fmt: skip
        for axes, (table, group, label) in zip(page.axes, panels, strict=True):
            _stack(axes, rows.merge(table, on=CELL_KEYS, how="left"), group, label)
        page.axes[0].set_yticks(np.arange(len(rows)), [shorten(str(name)) for name in rows["cell"]])
        page.axes[0].set_ylim(len(rows) - 0.4, -0.6)
        page.legend([Patch(facecolor=c, hatch=h, edgecolor=CARD, label=label) for _, label, c, h in parts])
    return page.figure


def _stack(axes: Axes, table: pd.DataFrame, group: tuple[tuple[str, str, str, str], ...], label: str) -> None:
    places = np.arange(len(table), dtype=float)
    left = np.zeros(len(table))
    for name, word, color, hatch in group:
        values = table[name].fillna(0).to_numpy(dtype=float)
        axes.barh(places, values, left=left, height=0.66, color=color, hatch=hatch, edgecolor=CARD, linewidth=0.4,
                  label=word)  # fmt: skip
        left = left + values
    axes.set_xlabel(label)
    axes.set_xlim(0, max(float(left.max()) * 1.06, 1e-9))
    axes.grid(False, axis="y")
    axes.locator_params(axis="x", nbins=5)
