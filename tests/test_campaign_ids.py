"""Campaigns are told apart whatever their folders are called, and a copy counts once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from campaigns import TOY, command, here, rows
from generated import noisy_campaign, write_campaign

from bench.errors import UserError
from bench.results.compare import compare
from bench.run.node import LocalNode
from bench.run.prepare import new_campaign_id
from bench.view.charts.groups import load_groups


def test_folders_of_one_name_have_two_ids() -> None:
    first, second = (new_campaign_id(Path(folder) / "run") for folder in ("/a", "/b"))
    assert first != second
    assert first.startswith("run-")


def test_a_campaign_keeps_its_id_when_it_is_resumed(tmp_path: Path, node: LocalNode) -> None:
    out = tmp_path / "run"
    made = command("smoke", "--strategies", "single", "--devices", "1", *TOY, "--quiet", "--out", str(out))
    assert here(made, node).returncode == 0
    again = here(command("--resume", str(out), "--blocks", "2", "--force", "--quiet"), node)
    assert again.returncode == 0, again.stderr
    found = rows(out)
    assert [row["block"] for row in found] == ["0", "1"]
    assert len({row["campaign_id"] for row in found}) == 1


def test_a_copy_counts_once(tmp_path: Path) -> None:
    first = write_campaign(tmp_path / "a" / "run", noisy_campaign(seed=0, blocks=3))
    shutil.copytree(first, tmp_path / "b" / "run")
    (alone,) = load_groups([first])
    (both,) = load_groups([first, tmp_path / "b" / "run"])
    assert len(both.runs) == len(alone.runs)
    assert both.summary.equals(alone.summary)


def test_a_changed_copy_is_refused(tmp_path: Path) -> None:
    made = noisy_campaign(seed=0, blocks=3)
    first = write_campaign(tmp_path / "a" / "run", made)
    second = write_campaign(tmp_path / "b" / "run", [made[0] | {"timed_seconds": 9.0}, *made[1:]])
    with pytest.raises(
        UserError, match=r"a/run and .*b/run both hold run .*, with other values: one is a changed copy"
    ):
        load_groups([first, second])


def test_campaigns_of_one_id_that_were_not_begun_together_are_other_runs(tmp_path: Path) -> None:
    """An earlier version called both after their folders."""
    first = write_campaign(tmp_path / "a" / "run", noisy_campaign(seed=1, blocks=4))
    later = [row | {"utc_start": "2027-01-01T00:00:00Z"} for row in noisy_campaign(seed=2, blocks=4)]
    second = write_campaign(tmp_path / "b" / "run", later)
    assert {"the same runs", "the same runs with other values, paired"}.isdisjoint(
        {one.note for one in compare(first, second).rows}
    )
    assert {one.note for one in compare(first, first).rows} == {"the same runs"}
