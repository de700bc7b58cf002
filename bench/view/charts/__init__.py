"""The charts of a campaign, drawn from its CSV files alone.

`draw_all` writes every chart that the data allow; each is also a function of its own that gives a matplotlib Figure,
or `Skipped` with the reason why it cannot be drawn:

    from bench.view.charts import figure_speedup, load_groups
    [data] = load_groups([Path("results/my-campaign")])
    figure_speedup(data, scaling="strong")
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Nothing is drawn on a screen: a backend that the environment names for other programs, known here or not, is none of
# this one's, and matplotlib refuses to be imported with one that it does not know.
os.environ.pop("MPLBACKEND", None)

from matplotlib.figure import Figure

from bench.factors import STRONG, WEAK
from bench.view.charts.accuracy import figure_accuracy, figure_time_to_accuracy
from bench.view.charts.forest import figure_forest
from bench.view.charts.groups import ChartData, load_groups
from bench.view.charts.memory import figure_memory
from bench.view.charts.parts import figure_breakdown
from bench.view.charts.scaling import figure_efficiency, figure_speedup, figure_throughput
from bench.view.charts.style import Skipped, save_figure, svg_bytes
from bench.view.charts.trace import figure_trace

__all__ = [
    "CHARTS",
    "Chart",
    "ChartData",
    "DrawResult",
    "DrawnChart",
    "Skipped",
    "SkippedChart",
    "draw_all",
    "draw_groups",
    "figure_accuracy",
    "figure_breakdown",
    "figure_efficiency",
    "figure_forest",
    "figure_memory",
    "figure_speedup",
    "figure_throughput",
    "figure_time_to_accuracy",
    "figure_trace",
    "load_groups",
    "svg_bytes",
]


@dataclass(frozen=True)
class Chart:
    """One kind of chart: its file name, what draws it, and two sentences on how to read it."""

    name: str
    draw: Callable[[ChartData], Figure | Skipped]
    description: str
    scaling: str = ""


class DrawnChart(NamedTuple):
    """A chart that was written. `group` names machine and workload where there are several, else ''."""

    name: str
    title: str
    description: str
    paths: tuple[Path, ...]
    group: str = ""


class SkippedChart(NamedTuple):
    """A chart that was left out."""

    name: str
    reason: str
    group: str = ""


@dataclass(frozen=True)
class DrawResult:
    drawn: tuple[DrawnChart, ...]
    skipped: tuple[SkippedChart, ...]


_SPEEDUP = (
    "How many times the baseline's throughput each strategy reaches. "
    "A curve near the ideal line turns added devices into speed; one that flattens pays for more than it gets."
)
_EFFICIENCY = (
    "The share of each device that is turned into speed: 1 means that no device is wasted. "
    "It falls as communication and waiting grow."
)
_THROUGHPUT = (
    "Samples trained each second, for all devices together and for each one. "
    "The left side says how long training takes, the right side what an added device is worth."
)


_FOREST = (
    "Every cell's speedup with its 95 % interval; left of 1 is slower than the baseline, right of it faster. "
    "The grey band is what the baseline differs from itself by: differences inside it are noise."
)
_BREAKDOWN = (
    "Where the seconds of an epoch go, and what a run costs before its first step. "
    "Long communication or data wait says what to mend first; start-up matters only for short jobs."
)
_MEMORY = (
    "Peak memory of the fullest and of the emptiest device. "
    "The fullest one limits the batch; a long line means that one device carries more than the others."
)
_ACCURACY = (
    "What speed costs in accuracy, by the clock and by device-seconds, which is what is paid for. "
    "Points further left are faster or cheaper, points further up are better."
)
_TIME = (
    "How accuracy grows with training time. "
    "Of two strategies the better one is higher at the same time, whatever its speed."
)
_TRACE = (
    "Each run's throughput over its cell's median, in the order of the runs. "
    "A slope or step common to all cells is the machine changing, and makes late cells look unlike early ones."
)


def _both(name: str, draw: Callable[..., Figure | Skipped], description: str) -> tuple[Chart, Chart]:
    """Strong and weak scaling do different work, so each kind of chart exists once for either."""
    return (
        Chart(f"{name}_{STRONG}", partial(draw, scaling=STRONG), description, STRONG),
        Chart(f"{name}_{WEAK}", partial(draw, scaling=WEAK), description, WEAK),
    )


CHARTS: tuple[Chart, ...] = (
    *_both("speedup", figure_speedup, _SPEEDUP),
    *_both("efficiency", figure_efficiency, _EFFICIENCY),
    *_both("forest", figure_forest, _FOREST),
    *_both("throughput", figure_throughput, _THROUGHPUT),
    *_both("breakdown", figure_breakdown, _BREAKDOWN),
    *_both("memory", figure_memory, _MEMORY),
    *_both("accuracy", figure_accuracy, _ACCURACY),
    *_both("time_to_accuracy", figure_time_to_accuracy, _TIME),
    Chart("trace", figure_trace, _TRACE),
)


def draw_groups(
    groups: Sequence[ChartData], out: Path, *, formats: Sequence[str] = ("svg", "png")
) -> list[tuple[ChartData, DrawResult]]:
    """Draw every chart of every group into `out`; files of several groups begin with the group's slug."""
    out.mkdir(parents=True, exist_ok=True)
    results = []
    slugs = [data.slug for data in groups]
    for place, data in enumerate(groups):
        prefix = "" if len(groups) == 1 else f"{data.slug}-"
        if slugs.count(data.slug) > 1:
            prefix = f"{data.slug}-{place + 1}-"
        results.append((data, _draw_group(data, out, prefix, "" if len(groups) == 1 else data.title, formats)))
    return results


def _draw_group(data: ChartData, out: Path, prefix: str, group: str, formats: Sequence[str]) -> DrawResult:
    drawn: list[DrawnChart] = []
    skipped: list[SkippedChart] = []
    for chart in CHARTS:
        name = prefix + chart.name
        figure = chart.draw(data)
        if isinstance(figure, Skipped):
            skipped.append(SkippedChart(name, figure.reason, group))
            continue
        title = " ".join(figure.get_suptitle().split())
        paths = tuple(save_figure(figure, out / name, formats=formats))
        drawn.append(DrawnChart(name, title, chart.description, paths, group))
    return DrawResult(tuple(drawn), tuple(skipped))


def draw_all(campaign_folders: Iterable[Path], out: Path, *, formats: Sequence[str] = ("svg", "png")) -> DrawResult:
    """Draw every chart that these campaigns' data allow into `out`.

    Campaigns of equal environment_id are pooled; others, and CPU and GPU rows, get charts of their own. Raises
    UserError when a folder holds no campaign.
    """
    results = [result for _, result in draw_groups(load_groups(campaign_folders), out, formats=formats)]
    return DrawResult(
        tuple(drawn for result in results for drawn in result.drawn),
        tuple(skipped for result in results for skipped in result.skipped),
    )
