"""Charts: what is drawn equals the summary, equal files give equal bytes, and what is left out says why."""

import itertools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic_campaign import Options, write_campaign

from bench.errors import UserError
from bench.view.charts import (
    CHARTS,
    ChartData,
    Skipped,
    draw_all,
    figure_accuracy,
    figure_breakdown,
    figure_efficiency,
    figure_forest,
    figure_memory,
    figure_speedup,
    figure_throughput,
    figure_time_to_accuracy,
    figure_trace,
    load_groups,
)
from bench.view.charts.style import MAX_DOTS, look

GPU = Options(
    strategies=12,
    devices=(1, 2, 4, 8, 16, 32, 64),
    blocks=2,
    scalings=("strong", "weak"),
    device_kind="cuda",
    tuned=True,
    failures=(("dp", 64, "oom", "CUDA out of memory"), ("ddp_mp", 1, "unsupported", "needs two devices")),
)


def one(folder: Path, options: Options | None = None) -> ChartData:
    [data] = load_groups([write_campaign(folder, options or Options())])
    return data


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ChartData:
    return one(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ChartData:
    return one(tmp_path_factory.mktemp("large"), GPU)


def drawn(figure: Figure | Skipped) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))  # type: ignore[arg-type]
        for line in axes.lines
    }


def caption_of(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts if text.get_gid() == "caption").split())


def cells(data: ChartData, scaling: str, series: str) -> pd.DataFrame:
    rows = data.measured[(data.measured["scaling"] == scaling) & (data.measured["series"] == series)]
    return rows[rows["speedup"].notna()].sort_values("devices")


@pytest.mark.parametrize("scaling", ["strong", "weak"])
@pytest.mark.parametrize(
    ("draw", "column", "place"),
    [
        (figure_speedup, "speedup", 0),
        (figure_efficiency, "efficiency", 0),
        (figure_throughput, "samples_per_second", 0),
        (figure_throughput, "samples_per_second_per_device", 1),
    ],
)
def test_curves_equal_the_summary(large: ChartData, scaling: str, draw: object, column: str, place: int) -> None:
    figure = drawn(draw(large, scaling=scaling))  # type: ignore[operator]
    found = lines(figure.axes[place])
    assert len(large.series_names) == 13
    for name in large.series_names:
        rows = cells(large, scaling, name)
        assert found[name] == ([float(x) for x in rows["devices"]], [float(y) for y in rows[column]])


def test_interval_bars_equal_the_summary(small: ChartData) -> None:
    axes = drawn(figure_speedup(small)).axes[0]
    bars = {
        (round(float(s[0][0])), round(float(s[0][1]), 9), round(float(s[1][1]), 9))
        for collection in axes.collections
        for s in collection.get_segments()  # type: ignore[attr-defined]
    }
    rows = small.measured[small.measured["speedup_low"].notna()]
    assert len(rows) >= 5
    for _, row in rows.iterrows():
        assert (row["devices"], round(row["speedup_low"], 9), round(row["speedup_high"], 9)) in bars


def test_a_dot_for_each_run_at_its_paired_ratio(small: ChartData) -> None:
    axes = drawn(figure_speedup(small)).axes[0]
    dots = {line.get_gid(): line for line in axes.lines if str(line.get_gid()).startswith("runs:")}
    runs = small.runs[(small.runs["role"] == "measure") & (small.runs["status"] == "ok")]
    base = runs[runs["strategy"] == "single"].set_index("block")["samples_per_second"]
    ddp = runs[runs["strategy"] == "ddp"]
    by_hand = sorted(float(row["samples_per_second"] / base[row["block"]]) for _, row in ddp.iterrows())
    assert sorted(map(float, dots["runs:ddp"].get_ydata())) == pytest.approx(by_hand)  # type: ignore[arg-type]


def test_geometric_mean_of_the_dots_is_the_line(small: ChartData) -> None:
    for _, row in small.measured[small.measured["speedup"].notna()].iterrows():
        runs = small.ok_runs
        mine = runs[(runs["series"] == row["series"]) & (runs["devices"] == row["devices"])]["speedup"]
        assert float(np.exp(np.log(mine).mean())) == pytest.approx(row["speedup"])


def test_forest_shows_every_cell_and_the_noise_floor(small: ChartData) -> None:
    axes = drawn(figure_forest(small)).axes[0]
    found = lines(axes)
    for _, row in small.summary[small.summary["speedup"].notna()].iterrows():
        assert found[row["cell"]][0] == [row["speedup"]]
    band = next(patch for patch in axes.patches if patch.get_label() == "noise floor")
    control = small.controls.iloc[0]
    low, high = band.get_x(), band.get_x() + band.get_width()  # type: ignore[attr-defined]
    assert (low, high) == pytest.approx((control["speedup_low"], control["speedup_high"]))


def test_breakdown_parts_add_up(small: ChartData) -> None:
    figure = drawn(figure_breakdown(small))
    epoch, start = figure.axes
    totals: dict[float, float] = {}
    for patch in epoch.patches:
        middle = round(patch.get_y() + patch.get_height() / 2, 3)  # type: ignore[attr-defined]
        totals[middle] = totals.get(middle, 0.0) + patch.get_width()  # type: ignore[attr-defined]
    # 0.03 data wait + 0.85 forward and backward (exposed communication is a part of it) + 0.05 optimizer.
    runs = small.runs[(small.runs["role"] == "breakdown") & (small.runs["strategy"] == "ddp_amp")]
    expected = sorted(0.93 * float(seconds) for seconds in runs["epoch_seconds"])
    labels = [text.get_text() for text in epoch.get_yticklabels()]
    mine = sorted(totals[float(i)] for i, label in enumerate(labels) if label.startswith("ddp_amp"))
    assert mine == pytest.approx(expected)
    assert {str(container.get_label()) for container in start.containers} >= {"launch + imports", "warm-up"}


def test_memory_is_in_gib(large: ChartData) -> None:
    axes = drawn(figure_memory(large)).axes[0]
    rows = large.measured[(large.measured["scaling"] == "strong") & large.measured["peak_memory_bytes"].notna()]
    assert sorted(lines(axes)["fullest device"][0]) == pytest.approx(sorted(rows["peak_memory_bytes"] / 2**30))
    assert sorted(lines(axes)["emptiest device"][0]) == pytest.approx(sorted(rows["peak_memory_bytes_min"] / 2**30))


def test_accuracy_against_seconds_and_device_seconds(small: ChartData) -> None:
    figure = drawn(figure_accuracy(small))
    for _, row in small.measured[small.measured["test_accuracy"].notna()].iterrows():
        assert lines(figure.axes[0])[row["cell"]] == ([row["epoch_seconds"]], [row["test_accuracy"]])
        assert lines(figure.axes[1])[row["cell"]][0] == [row["epoch_seconds"] * row["devices"]]


def test_time_to_accuracy_adds_up_the_epochs(tmp_path: Path) -> None:
    data = one(tmp_path, Options(epochs=3, blocks=1))
    runs = data.runs[(data.runs["strategy"] == "single") & (data.runs["role"] == "measure")].sort_values("epoch")
    seconds, accuracy = lines(drawn(figure_time_to_accuracy(data)).axes[0])["single@1"]
    assert seconds == pytest.approx(list(runs["timed_seconds"].cumsum()))
    assert accuracy == pytest.approx(list(runs["test_accuracy"]))


def test_trace_follows_the_order_of_runs(small: ChartData) -> None:
    found = lines(drawn(figure_trace(small)).axes[0])
    runs = small.runs[small.runs["role"].isin(["measure", "control"]) & (small.runs["status"] == "ok")]
    assert sorted(x for name in small.series_names for x in found[name][0]) == list(range(1, len(runs) + 1))


def test_one_device_count_gives_bars(tmp_path: Path) -> None:
    data = one(tmp_path, Options(devices=(2,), failures=()))
    axes = drawn(figure_speedup(data)).axes[0]
    rows = data.measured[data.measured["speedup"].notna()]
    widths = sorted(patch.get_width() for patch in axes.patches)  # type: ignore[attr-defined]
    assert widths == pytest.approx(sorted(rows["speedup"]))
    assert lines(axes)["reference"][0] == [1.0, 1.0]
    assert {text.get_text() for text in axes.get_yticklabels()} == set(rows["cell"])


def test_published_rows_stand_only_beside_their_own_kind(large: ChartData, small: ChartData) -> None:
    weak = drawn(figure_speedup(large, scaling="weak")).axes[0]
    stars = next(line for line in weak.lines if line.get_label() == "published")
    assert pytest.approx(max(stars.get_ydata())) == 13.2 / 6.1  # type: ignore[arg-type, type-var]
    assert stars.get_markerfacecolor() == "none"
    assert stars.get_marker() not in {look(place).marker for place in range(52)}
    strong = drawn(figure_speedup(large, scaling="strong")).axes[0]
    assert "published" not in lines(strong)
    assert "published" not in lines(drawn(figure_speedup(small)).axes[0])


def test_cost_line_is_the_tuned_single_device(large: ChartData) -> None:
    row = cells(large, "strong", "single_tuned amp-bf16").iloc[0]
    assert lines(drawn(figure_speedup(large)).axes[0])["cost"][1] == [row["speedup"]] * 2


def test_failed_cells_are_named_in_every_caption(large: ChartData) -> None:
    for chart in CHARTS:
        figure = chart.draw(large)
        if isinstance(figure, Figure):
            text = caption_of(figure)
            assert "dp@64" in text, chart.name
            assert "(oom)" in text
            assert "ddp_mp@1" in text


def test_captions_hold_the_witnesses(small: ChartData) -> None:
    text = caption_of(drawn(figure_speedup(small)))
    for word in ("Generated 2-core CPU", "torch 2.99.0", "n = 5", "2026-03-01", "resnet18 on cifar10"):
        assert word in text


def test_one_run_a_cell_has_no_interval_and_says_so(tmp_path: Path) -> None:
    data = one(tmp_path, Options(blocks=1))
    text = caption_of(drawn(figure_speedup(data)))
    assert "no interval" in text
    assert isinstance(figure_trace(data), Skipped)


def test_reasons_of_charts_left_out(small: ChartData, tmp_path: Path) -> None:
    assert figure_speedup(small, scaling="weak") == Skipped("the campaign has no cells with weak scaling")
    memory = figure_memory(small)
    assert isinstance(memory, Skipped)
    assert "CPU" in memory.reason
    over_time = figure_time_to_accuracy(small)
    assert isinstance(over_time, Skipped)
    assert "one epoch" in over_time.reason
    failing = tuple((name, count, "crashed", "boom") for name in ("single", "ddp", "ddp_amp", "dp") for count in (1, 2))
    nothing = one(tmp_path, Options(failures=failing, control=False, breakdown=False))
    for chart in CHARTS:
        result = chart.draw(nothing)
        assert isinstance(result, Skipped), chart.name
        assert result.reason


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign")
    first = draw_all([folder], tmp_path / "a", formats=("svg",))
    draw_all([folder], tmp_path / "b", formats=("svg",))
    assert len(first.drawn) == 7
    for chart in first.drawn:
        data = chart.paths[0].read_bytes()
        assert data == (tmp_path / "b" / chart.paths[0].name).read_bytes()
        assert b"<dc:date>" not in data


def test_svg_and_png_are_written_and_named(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=2))
    result = draw_all([folder], tmp_path / "charts")
    for name, title, description, paths, group in result.drawn:
        assert [path.name for path in paths] == [f"{name}.svg", f"{name}.png"]
        assert all(path.stat().st_size > 1000 for path in paths)
        assert title
        assert description.count(". ") >= 1
        assert group == ""
    assert {chart.name for chart in (*result.drawn, *result.skipped)} == {chart.name for chart in CHARTS}


def test_cpu_and_gpu_never_mix(tmp_path: Path) -> None:
    cpu = write_campaign(tmp_path / "cpu", Options(blocks=2))
    gpu = write_campaign(
        tmp_path / "gpu", Options(blocks=2, device_kind="cuda", environment_id="env-2", campaign_id="campaign-2")
    )
    groups = load_groups([cpu, gpu])
    assert [data.device_kind for data in groups] == ["cpu", "cuda"]
    assert all(data.summary["device_kind"].nunique() == 1 for data in groups)
    result = draw_all([cpu, gpu], tmp_path / "charts", formats=("svg",))
    assert len({chart.name for chart in result.drawn}) == len(result.drawn)
    assert {chart.group for chart in result.drawn} == {data.title for data in groups}


def test_campaigns_of_one_machine_are_pooled(tmp_path: Path) -> None:
    options = Options(blocks=3)
    first = write_campaign(tmp_path / "a", options)
    second = write_campaign(tmp_path / "b", replace(options, seed=8, campaign_id="campaign-2"))
    [data] = load_groups([first, second])
    pairs = data.measured[data.measured["strategy"] == "ddp"]["pairs"]
    assert list(pairs) == [6, 6]


def test_no_folder_and_a_wrong_folder_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results folder"):
        load_groups([])
    with pytest.raises(UserError, match=r"holds no runs\.csv"):
        draw_all([tmp_path], tmp_path / "charts")


def _shown_ticks(axes: Axes, axis: str) -> list[Text]:
    """Tick labels inside the view: matplotlib keeps others, which it never paints."""
    low, high = sorted(axes.get_xlim() if axis == "x" else axes.get_ylim())
    labels = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
    place = 0 if axis == "x" else 1
    return [t for t in labels if t.get_visible() and t.get_text() and low <= t.get_position()[place] <= high]


def test_labels_do_not_overlap_and_nothing_is_clipped(large: ChartData) -> None:
    for chart in CHARTS:
        figure = chart.draw(large)
        if isinstance(figure, Skipped):
            continue
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        ticks = {id(t) for axes in figure.axes for t in (*axes.get_xticklabels(), *axes.get_yticklabels())}
        shown = [t for axes in figure.axes for axis in "xy" for t in _shown_ticks(axes, axis)]
        others = [t for t in figure.findobj(Text) if id(t) not in ticks and t.get_visible() and t.get_text().strip()]
        for text in (*shown, *others):
            box = text.get_window_extent(renderer)
            assert box.x0 >= figure.bbox.x0 - 1, (chart.name, text)
            assert box.x1 <= figure.bbox.x1 + 1, (chart.name, text)
            assert box.y0 >= figure.bbox.y0 - 1, (chart.name, text)
            assert box.y1 <= figure.bbox.y1 + 1, (chart.name, text)
        for axes in figure.axes:
            for axis in "xy":
                boxes = [t.get_window_extent(renderer) for t in _shown_ticks(axes, axis)]
                spans = sorted((getattr(box, f"{axis}0"), getattr(box, f"{axis}1")) for box in boxes)
                for (_, end), (begin, _) in itertools.pairwise(spans):
                    assert end <= begin + 0.5, chart.name


def test_looks_are_all_different() -> None:
    assert len({(how.color, how.marker, str(how.dashes)) for how in map(look, range(52))}) == 52


def test_ten_thousand_runs(tmp_path: Path) -> None:
    # 13 series, 6 device counts and the control: about 70 cells a block.
    options = replace(GPU, blocks=145, devices=(1, 2, 4, 8, 16, 32), scalings=("strong",), breakdown=False)
    folder = write_campaign(tmp_path / "campaign", options)
    begin = time.perf_counter()
    result = draw_all([folder], tmp_path / "charts", formats=("svg",))
    seconds = time.perf_counter() - begin
    [data] = load_groups([folder])
    assert len(data.runs) >= 9_500
    trace = drawn(figure_trace(data))
    dots = sum(len(line.get_xdata()) for line in trace.axes[0].lines if line.get_label() in data.series_names)  # type: ignore[arg-type]
    assert dots <= MAX_DOTS
    assert "is drawn as a dot" in caption_of(trace)
    assert max(chart.paths[0].stat().st_size for chart in result.drawn) < 2_000_000
    # A bound against quadratic growth, not a benchmark: the machine may be busy.
    assert seconds < 60


def test_no_torch_and_no_pyplot() -> None:
    code = "import sys, bench.view.charts, bench.view.report\n"
    code += "print([m for m in ('torch', 'matplotlib.pyplot') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
