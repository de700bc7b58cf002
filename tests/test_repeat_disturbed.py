"""The rule for disturbed runs: measured again as often as the matrix says, whatever came out; every row stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_runs
from test_rows import CELL, epoch, facts, measurement

from bench.factors import Baseline
from bench.plan.matrix import Group, Matrix
from bench.results.cells import judged_runs, make_run
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import read_rows, write_rows
from bench.results.flags import disturbances
from bench.results.folder import Campaign, read_runs
from bench.results.summary import campaign_summary
from bench.run.campaign import Runner
from bench.run.job import Job
from bench.run.launch import Outcome
from bench.run.repeats import LASTING
from bench.run.resume import Done
from bench.run.store import Store
from bench.view.progress import Quiet
from bench.wire import RunSpec

CALM: dict[str, Any] = {"foreign_cpu_fraction": 0.01}
BUSY: dict[str, Any] = {"foreign_cpu_fraction": 0.4}


def disturbed_campaign(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *readings: dict[str, Any],
    repeat: int,
    blocks: int = 1,
    outcome: Outcome | None = None,
) -> list[dict[str, Any]]:
    """The rows of one cell whose runs meet these readings; every prepared reading is used."""
    seconds = iter(range(1, 20))

    def life(_: RunSpec) -> list[Outcome]:
        # Each attempt is slower than the one before: the rule does not look at speed.
        shape = {"timed_seconds": [float(next(seconds))] * 2}
        return [outcome or Outcome("ok", measurement=measurement(epoch(**shape)))]

    _, left = fake_runs(monkeypatch, life, readings)
    matrix = Matrix("m", (Group(strategies=("ddp",), devices=(2,)),), repeat_disturbed=repeat, blocks=blocks)
    store = Store(folder)
    try:
        Runner(Job(matrix, [CELL], facts(), {}, "bench run"), store, Quiet()).run()
    finally:
        store.close()
    assert list(left) == []
    return read_rows(folder / "runs.csv", RUN_COLUMNS)


def test_a_disturbed_run_is_measured_again_and_its_row_stays_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = disturbed_campaign(tmp_path / "out", monkeypatch, BUSY, CALM, repeat=1)
    assert [(row["attempt"], row["status"], row["timed_seconds"]) for row in rows] == [(1, "ok", 1.0), (2, "ok", 2.0)]
    cause = "load from other processes: up to 40 % of all cores in 1 run of 1"
    assert [row["repeated_for"] for row in rows] == [cause, ""]
    (summary,) = campaign_summary(tmp_path / "out").to_dict("records")
    # The last attempt counts: 1050 samples at 200 / 2 s.
    assert summary["epoch_seconds"] == pytest.approx(10.5)
    assert summary["flags"] == "measured again: 1 run repeated, the last attempt that was measured counts"


def test_it_is_repeated_no_more_than_the_matrix_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = disturbed_campaign(tmp_path / "out", monkeypatch, BUSY, BUSY, BUSY, repeat=2)
    assert [row["attempt"] for row in rows] == [1, 2, 3]
    assert [bool(row["repeated_for"]) for row in rows] == [True, True, False]
    (summary,) = campaign_summary(tmp_path / "out").to_dict("records")
    assert "load from other processes: up to 40 % of all cores in 1 run of 1" in summary["flags"]


@pytest.mark.parametrize(("reading", "repeat"), [(CALM, 3), (BUSY, 0)], ids=["undisturbed", "no-repeats"])
def test_other_runs_are_measured_once(
    reading: dict[str, Any], repeat: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(disturbed_campaign(tmp_path / "out", monkeypatch, reading, repeat=repeat)) == 1


def test_a_cause_that_repeats_do_not_help_against_is_a_fact_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three repeats that met the same cause again no run is repeated for it; for another one still."""
    capped: dict[str, Any] = {"gpu_throttle_reasons": "sw_power_cap"}
    rows = disturbed_campaign(
        tmp_path / "out", monkeypatch, *[capped] * 2 * LASTING, capped, BUSY, CALM, repeat=1, blocks=5
    )
    assert [(row["block"], row["attempt"]) for row in rows] == [
        *((block, attempt) for block in range(LASTING) for attempt in (1, 2)),
        (3, 1),
        (4, 1),
        (4, 2),
    ]


def test_a_run_that_was_to_be_repeated_is_missing_until_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill during the repeat leaves behind."""
    rows = disturbed_campaign(tmp_path / "out", monkeypatch, BUSY, CALM, repeat=1)
    write_rows(tmp_path / "cut.csv", RUN_COLUMNS, rows[:1])
    assert not Done(read_runs(tmp_path / "cut.csv")).finished(CELL, 0)
    assert Done(read_runs(tmp_path / "out" / "runs.csv")).finished(CELL, 0)


@pytest.mark.parametrize("status", ["crashed", "interrupted"])
def test_a_repeat_without_a_measurement_takes_nothing_away(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = disturbed_campaign(tmp_path / "out", monkeypatch, BUSY, CALM, repeat=1)
    blank = dict.fromkeys(("timed_seconds", "timed_samples", "samples_per_second", "epoch_seconds"))
    write_rows(tmp_path / "out" / "runs.csv", RUN_COLUMNS, [rows[0], rows[1] | blank | {"status": status}])
    (summary,) = campaign_summary(tmp_path / "out").to_dict("records")
    assert (summary["status"], summary["epoch_seconds"]) == ("ok", pytest.approx(5.25))
    assert list(judged_runs(Campaign(tmp_path / "out").runs, Baseline.parse(None))["attempt"]) == [1]


def test_what_reads_rows_sees_the_attempt_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed_campaign(tmp_path / "out", monkeypatch, BUSY, CALM, CALM, BUSY, BUSY, repeat=1, blocks=3)
    counting = judged_runs(Campaign(tmp_path / "out").runs, Baseline.parse(None))
    assert list(zip(counting["block"], counting["attempt"], strict=True)) == [(0, 2), (1, 1), (2, 2)]


def test_a_failed_run_is_not_repeated_for_being_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = disturbed_campaign(
        tmp_path / "out", monkeypatch, BUSY, repeat=3, outcome=Outcome("crashed", "its own words")
    )
    assert (row["status"], row["warnings"]) == ("crashed", "")


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (CALM, ""),
        ({}, ""),
        ({"gpu_throttle_reasons": "gpu_idle"}, ""),
        ({"gpu_clock_fraction": 0.8}, ""),
        (BUSY, "load from other processes"),
        ({"gpu_throttle_reasons": "sw_power_cap"}, "GPU throttled"),
        ({"gpu_clock_fraction": 0.5}, "low GPU clock"),
        ({"gpu_foreign_processes": 1}, "foreign process on the GPU"),
    ],
    ids=str,
)
def test_what_counts_as_disturbed(reading: dict[str, Any], words: str) -> None:
    row = {"status": "ok", "reason": "", "epoch": 1, "timed_samples": 10, "timed_seconds": 1.0, **reading}
    found = [cause.text for cause in disturbances(make_run([row]))]
    assert len(found) == bool(words)
    assert all(text.startswith(words) for text in found)
