"""The look of all charts: a light card with a title, axes, a legend that never covers data, and a caption.

Drawn through matplotlib's Figure objects, without pyplot and its global state. Text is stored as outlines in the font
that matplotlib brings, so the same data give the same bytes of SVG on every machine.
"""

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from bench.view.charts.groups import ChartData, failures_text

CARD = "#ffffff"
INK = "#1f2328"
MUTED = "#59636e"
GRID = "#e3e7eb"
NOISE = "#c9d1d9"
WIDTH_INCHES = 9.6
TEXT_POINTS = 9.0
MAX_DOTS = 2000
"""More dots than this are thinned evenly: they would only merge into a blot and make the file large."""

# Black and the Okabe-Ito colours first (told apart under all common kinds of colour blindness), then darker ones of
# Paul Tol's; the marker's shape and the line's dashes carry the same information for greyscale.
COLORS = (
    "#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b",
    "#332288", "#882255", "#117733", "#7a7a00", "#aa4499", "#8c510a",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "8")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "strategybench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": TEXT_POINTS,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.parse_math": False,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Skipped:
    """Why a chart was left out."""

    reason: str


def no_cells(scaling: str) -> str:
    """The reason for a chart of a scaling that was not run."""
    return f"the campaign has no cells with {scaling} scaling"


@dataclass(frozen=True)
class Look:
    """How one series is drawn, in every chart."""

    color: str
    marker: str
    dashes: Any


def look(place: int) -> Look:
    """The look of the series at a place; no two of the first 52 are equal."""
    return Look(
        COLORS[place % len(COLORS)],
        MARKERS[(place + place // len(COLORS)) % len(MARKERS)],
        DASHES[place % len(DASHES)],
    )


def looks(data: ChartData) -> dict[str, Look]:
    return {name: look(place) for place, name in enumerate(data.series_names)}


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's own defaults with this module's settings, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(_SETTINGS)
        yield


@lru_cache(maxsize=4096)
def text_inches(text: str, points: float = TEXT_POINTS) -> float:
    """Width of one line of text in inches."""
    font = get_font(findfont("DejaVu Sans"))
    font.set_size(points, 72)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def _wrap(text: str, inches: float, points: float) -> list[str]:
    """Lines no wider than `inches`, judged by the average width of this text's letters."""
    if not text:
        return []
    letter = max(text_inches(text[:400], points) / min(len(text), 400), 0.01)
    return textwrap.wrap(text, max(int(inches / letter * 0.97), 20))


def shorten(text: str, most: int = 34) -> str:
    """A name cut to fit beside an axis; the tables hold the whole one."""
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Sheet:
    """A figure with its axes, to be filled by a chart and then given its legend."""

    figure: Figure
    axes: list[Axes]
    legend_place: tuple[float, float]

    def legend(self, handles: Sequence[Any]) -> None:
        """The legend in the column that was kept free for it."""
        self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=self.legend_place,
            frameon=False,
            fontsize=TEXT_POINTS - 1,
            handlelength=2.6,
            borderaxespad=0,
            labelspacing=0.55,
        )


def sheet(
    title: str,
    caption: str,
    *,
    columns: int = 1,
    height: float = 3.9,
    left: float = 0.75,
    legend: Sequence[str] = (),
    share_y: bool = False,
    gap: float = 0.75,
) -> Sheet:
    """An empty card. `height` is that of the axes and `left` the room for their labels, both in inches;
    `legend` holds the labels of the legend, for which a column as wide as the longest is kept free."""
    legend_width = max((text_inches(label, TEXT_POINTS - 1) for label in legend), default=0.0)
    right = legend_width + 0.75 if legend else 0.25
    titles = _wrap(title, WIDTH_INCHES - 0.4, 12)
    captions = _wrap(caption, WIDTH_INCHES - 0.4, TEXT_POINTS - 1.5)
    above = 0.26 + 0.21 * len(titles)
    below = 0.62 + 0.145 * len(captions)
    height = max(height, 0.185 * len(legend))
    total = above + height + below
    figure = Figure(figsize=(WIDTH_INCHES, total), facecolor=CARD)
    FigureCanvasAgg(figure)
    figure.suptitle(
        "\n".join(titles), x=0.2 / WIDTH_INCHES, y=1 - 0.1 / total, ha="left", va="top", fontsize=12, fontweight="bold"
    )
    figure.text(
        0.2 / WIDTH_INCHES, 0.1 / total, "\n".join(captions),
        ha="left", va="bottom", fontsize=TEXT_POINTS - 1.5, color=MUTED, linespacing=1.25, gid="caption",
    )  # fmt: skip
    inner = WIDTH_INCHES - left - right
    grid = figure.add_gridspec(
        1, columns, left=left / WIDTH_INCHES, right=1 - right / WIDTH_INCHES, top=1 - above / total,
        bottom=below / total, wspace=gap / max((inner - gap * (columns - 1)) / columns, 1.0),
    )  # fmt: skip
    axes: list[Axes] = []
    for place in range(columns):
        one = figure.add_subplot(grid[0, place], sharey=axes[0] if share_y and axes else None, facecolor=CARD)
        one.grid(True, color=GRID, linewidth=0.7)
        one.set_axisbelow(True)
        if share_y and place:
            one.tick_params(labelleft=False)
        axes.append(one)
    return Sheet(figure, axes, (1 - (right - 0.2) / WIDTH_INCHES, 1 - above / total))


def caption(data: ChartData, *sentences: str) -> str:
    """The witnesses of a chart: what is drawn, cells that have no figure, n, device, versions, data and date."""
    counts = sorted({int(n) for n in data.measured["runs_ok"].dropna() if n})
    n = "" if not counts else f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    first = data.runs.iloc[0] if len(data.runs) else {"workload": "", "dataset": "", "data_pipeline": ""}
    facts = [
        data.device_name,
        data.versions,
        f"{first['workload']} on {first['dataset']} ({first['data_pipeline']})",
        f"{n} runs a cell" if n else "",
        data.dates,
    ]
    parts = [*sentences, failures_text(data), "; ".join(fact for fact in facts if fact) + "."]
    return " ".join(part for part in parts if part)


def no_interval(rows: Any) -> str:
    """A sentence for captions where cells have too few runs for an interval."""
    short = rows[rows["speedup_low"].isna() & rows["speedup"].notna()]
    short = short[short["pairs"].fillna(0) < 2]
    return "Cells with fewer than 2 paired blocks have no interval." if len(short) else ""


def thin(rows: Any, most: int = MAX_DOTS) -> tuple[Any, str]:
    """At most `most` of the rows, evenly spaced, and a sentence for the caption that says so."""
    if len(rows) <= most:
        return rows, ""
    step = -(-len(rows) // most)
    return rows.iloc[::step], f"Every {step}th of {len(rows):,} runs is drawn as a dot."


def smallest_gap(axes: Axes, devices: Sequence[int]) -> float:
    """Points between the two nearest device counts, once `device_ticks` has set the limits."""
    counts = sorted(set(devices))
    if len(counts) < 2:
        return 200.0
    figure = axes.get_figure(root=True)
    assert figure is not None
    points = axes.get_position().width * figure.get_figwidth() * 72
    low, high = axes.get_xlim()
    return min(b - a for a, b in itertools.pairwise(counts)) / (high - low) * points


def dodge(axes: Axes, place: int, count: int, *, gap: float, extra: float = 0) -> Transform:
    """Data coordinates moved sideways by points, so that series at the same device count stand beside one another.

    The drawn data stay exact: only the picture is moved, and never by more than a fifth of the smallest gap.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    step = min(7.0, 0.4 * gap / max(count, 1))
    shift = (place - (count - 1) / 2) * step + extra
    return axes.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)


def device_ticks(axes: Axes, devices: Sequence[int]) -> None:
    """Label the device counts that were run, leaving out those whose labels would touch on a linear axis."""
    counts = sorted(set(devices))
    room = 0.032 * (counts[-1] - counts[0]) if len(counts) > 1 else 0
    kept: list[int] = []
    for count in reversed(counts):
        if not kept or kept[-1] - count >= room:
            kept.append(count)
    axes.set_xticks(sorted(kept))
    axes.set_xticks(counts, minor=True)
    margin = 0.05 * (counts[-1] - counts[0]) if len(counts) > 1 else 0.5
    axes.set_xlim(counts[0] - margin, counts[-1] + margin)


def handle(label: str, how: Look, *, line: bool = True) -> Line2D:
    """The legend's sample of a series."""
    return Line2D(
        [], [], color=how.color, marker=how.marker, markersize=5.5, label=label, linewidth=1.4,
        linestyle=how.dashes if line else "none",
    )  # fmt: skip


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same data."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor=CARD)
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path, *, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write `path` with each suffix; PNG at 150 dots an inch."""
    paths = []
    for suffix in formats:
        target = path.with_suffix(f".{suffix}")
        if suffix == "svg":
            target.write_bytes(svg_bytes(figure))
        else:
            with styled():
                figure.savefig(target, format="png", dpi=150, metadata={"Software": None}, facecolor=CARD)
        paths.append(target)
    return paths
