"""A run that says ok and whose loss is not the baseline's counts nowhere: every view asks the same judge."""

import json
import re
from pathlib import Path

import pytest
from generated import row, write_campaign
from matplotlib.figure import Figure

from bench.results.folder import Campaign
from bench.results.recommend import answer
from bench.results.summary import write_summary
from bench.view.charts import (
    CHARTS,
    ChartData,
    figure_accuracy,
    figure_breakdown,
    figure_throughput,
    figure_time_to_accuracy,
    load_groups,
)
from bench.view.charts.parts import epoch_table
from bench.view.charts.trace import trace_table
from bench.view.export import export
from bench.view.finish import write_report
from bench.view.maintable import four_digits
from bench.view.table import document
from bench.view.trackers import _cells

WRONG = "ddp-2-fp32-strong-b1-a1"
WRONG_BREAKDOWN = "dp-2-fp32-strong-breakdown-b0-a1"
SPLIT = {"forward_backward_seconds": 3.0, "optimizer_seconds": 1.0, "launch_seconds": 2.0}


def rows() -> list[dict]:
    """Three blocks of two epochs; one run of ddp, and the breakdown run of dp, begin with another loss."""
    made = []
    for name, devices in (("single", 1), ("ddp", 2), ("dp", 2), ("fsdp", 2)):
        for epoch in (1, 2):
            facts = {"epoch": epoch, "test_accuracy": 0.3 * epoch, "launch_seconds": 2.0}
            made += [row(name, devices, block, seconds=10.0 / devices, **facts) for block in range(3)]
            made.append(row(name, devices, 0, seconds=10.0, role="breakdown", epoch=epoch, **SPLIT))
    for one in made:
        one["samples_per_second"] = 1000 / one["timed_seconds"]
        if one["run_id"] in (WRONG, WRONG_BREAKDOWN):
            one["loss_first"] = 9.0
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_campaign(tmp_path_factory.mktemp("judge") / "campaign", rows())
    write_report([made], made)
    return made


@pytest.fixture(scope="module")
def data(folder: Path) -> ChartData:
    [group] = load_groups([folder])
    return group


def test_the_rows_say_ok(folder: Path) -> None:
    assert {one["status"] for one in Campaign(folder).run_rows} == {"ok"}


def test_the_summary_and_the_table(folder: Path) -> None:
    statuses = {one["strategy"]: one["status"] for _, one in write_summary(folder).iterrows()}
    assert statuses == {"single": "ok", "ddp": "invalid", "dp": "ok", "fsdp": "ok"}
    cells = {cell["strategy"]: cell for cell in json.loads(document(folder, exit_code=1))["cells"]}
    assert (cells["ddp"]["status"], cells["ddp"]["speedup"]) == ("invalid", None)
    assert cells["ddp"]["reason"].startswith("loss of the first timed step is 9, the baseline's 2.3")


def test_exports(folder: Path) -> None:
    line = next(line for line in export(folder, "markdown").splitlines() if line.startswith("| ddp "))
    assert line.endswith("| invalid |")
    benchmarks = [one["name"] for one in json.loads(export(folder, "pytest-benchmark"))["benchmarks"]]
    assert benchmarks == ["dp[2]", "fsdp[2]", "single[1]"]


def test_the_report(folder: Path, data: ChartData) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.search(r'class="name">ddp</td><td class="n">2</td><td><span class="tag failed">invalid<', page)
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    line = next(line for line in markdown.splitlines() if line.startswith("| ddp "))
    assert "| invalid | loss of the first timed step is 9" in line
    assert "ddp " not in answer(data.summary).headline


def test_trackers(folder: Path) -> None:
    ids = {one["run_id"] for group in _cells(Campaign(folder)).values() for one in group}
    assert not {WRONG, WRONG_BREAKDOWN} & ids
    assert len(ids) == 4 * 4 - 2


@pytest.mark.parametrize("part", ["whole", "strong"])
def test_the_runs_of_charts(data: ChartData, part: str) -> None:
    group = data if part == "whole" else data.only(part)
    standing = group.standing_runs
    assert set(standing[standing["status"] == "invalid"]["run_id"]) == {WRONG, WRONG_BREAKDOWN}
    assert set(group.ok_runs["series"]) == {"single", "dp", "fsdp"}


def labels(figure: object) -> set[str]:
    assert isinstance(figure, Figure), figure
    texts = {text.get_text() for axes in figure.axes for text in axes.get_yticklabels()}
    return texts | {str(line.get_label()) for axes in figure.axes for line in axes.lines}


@pytest.mark.parametrize("draw", [figure_accuracy, figure_time_to_accuracy, figure_breakdown, figure_throughput])
def test_charts_draw_nothing_of_an_invalid_cell(data: ChartData, draw: object) -> None:
    shown = {label.split("@")[0] for label in labels(draw(data))}  # type: ignore[operator]
    assert {"single", "dp", "fsdp"} <= shown
    assert "ddp" not in shown


def test_an_invalid_breakdown_run_is_no_part_of_an_epoch(data: ChartData) -> None:
    assert set(epoch_table(data)["series"]) == {"single", "ddp", "fsdp"}


def test_the_trace_marks_the_run_as_failed(data: ChartData) -> None:
    table = trace_table(data).set_index("run_id")
    assert table["relative"].isna()[WRONG]
    assert table["relative"].notna().sum() == 4 * 3 - 1


def test_every_caption_names_the_cell(data: ChartData) -> None:
    for chart in CHARTS:
        figure = chart.draw(data)
        if isinstance(figure, Figure):
            text = " ".join(" ".join(one.get_text() for one in figure.texts).split())
            assert "Failed: ddp@2 (invalid)." in text, chart.name


def test_runs_of_pooled_campaigns_stay_apart_though_their_ids_are_equal(tmp_path: Path) -> None:
    """The second campaign takes twice as long: an epoch of 10 s and one of 20 s, medians 15 s and 30 s after two."""
    first = [one for one in rows() if one["strategy"] == "single"]
    second = [one | {"campaign_id": "c1", "timed_seconds": 2 * one["timed_seconds"]} for one in first]
    [data] = load_groups([write_campaign(tmp_path / str(n), made) for n, made in enumerate((first, second))])
    [line] = [one for one in figure_time_to_accuracy(data).axes[0].lines if one.get_label() == "single@1"]
    assert [four_digits(float(x)) for x in line.get_xdata()] == ["15", "30"]
    assert len(trace_table(data)) == 6
