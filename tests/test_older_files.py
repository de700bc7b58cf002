"""Campaigns kept from before a column was added or renamed: they read, compare and draw to the same figures."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.results.columns import RUN_COLUMNS, names
from bench.results.compare import compare
from bench.results.csvfile import check_header, read_rows, write_rows
from bench.results.folder import Campaign
from bench.results.summary import write_summary
from bench.view.charts import draw_all

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
KEPT = ("cpu-2-cores-blocks", "cpu-2-cores-epoch")


def header(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a kept campaign."""
    return Path(shutil.copytree(REFERENCE / request.param, tmp_path / request.param))


def test_the_kept_campaigns_are_older_files(kept: Path) -> None:
    """Or else the tests below prove nothing."""
    found = header(kept / "runs.csv")
    assert "batch_per_replica" in found
    assert {"batch_per_part", "same_work", "plain_twin"}.isdisjoint(found)


def test_a_renamed_column_is_read_and_facts_of_strategies_are_filled_in(kept: Path) -> None:
    with (kept / "runs.csv").open(encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file))
    rows = Campaign(kept).run_rows
    assert [row["batch_per_part"] for row in rows] == [int(old["batch_per_replica"] or 0) or None for old in raw]
    assert {row["same_work"] for row in rows} == {True}
    assert {row["plain_twin"] for row in rows if row["strategy"] == "ddp_amp"} == {"ddp"}
    assert {row["plain_twin"] for row in rows if row["strategy"] == "ddp"} == {""}
    assert {row["tuned_twin"] for row in rows if row["strategy"] == "single"} == {"single_tuned"}


def test_the_summary_and_the_charts_come_out_as_they_are_kept(kept: Path, tmp_path: Path) -> None:
    before = (kept / "summary.csv").read_bytes()
    write_summary(kept)
    assert (kept / "summary.csv").read_bytes() == before
    drawn = draw_all([kept], tmp_path / "charts", formats=("svg",)).drawn
    assert len(drawn) >= 5
    for chart in drawn:
        assert chart.paths[0].read_bytes() == (kept / "charts" / chart.paths[0].name).read_bytes(), chart.name


def test_an_older_campaign_compares_with_itself_and_with_one_written_now(kept: Path) -> None:
    same = compare(kept, kept)
    assert (same.exit_code, {row.verdict for row in same.rows}) == (0, {"SAME"})
    rewritten = Path(shutil.copytree(kept, kept.with_name("now")))
    write_rows(rewritten / "runs.csv", RUN_COLUMNS, Campaign(kept).run_rows)
    assert header(rewritten / "runs.csv") == names(RUN_COLUMNS)
    now = compare(kept, rewritten)
    assert (now.exit_code, {row.verdict for row in now.rows}) == (0, {"SAME"})
    assert read_rows(rewritten / "runs.csv", RUN_COLUMNS) == Campaign(kept).run_rows


def test_an_older_campaign_is_not_continued(kept: Path) -> None:
    with pytest.raises(
        UserError, match=r"of an earlier version of the suite .*it can be read and drawn, but not continued"
    ):
        check_header(kept / "runs.csv", RUN_COLUMNS)
