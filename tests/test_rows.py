"""Rows of runs.csv and steps.csv against hand-worked measurements."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planned import planned

from bench.data import PreparedData
from bench.factors import STATUSES
from bench.machine.detect import Machine
from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS, names
from bench.results.csvfile import encode_rows, read_rows, write_rows
from bench.run.launch import Outcome
from bench.run.rows import CampaignFacts, RunFacts, percentile, run_rows, step_maxima, step_rows
from bench.wire import EpochMeasurement, Measurement

CELL = planned("ddp", 2, batch_global=100, uses_process_group=True)
RUN = RunFacts("b00-ddp", 0, 3, 1, "2026-01-01T00:00:00Z")
NEVER = Path("never-opened.npy")


def facts(*, steps=2, train_count=1050, device="A Processor", **changes):
    data = PreparedData("synthetic", NEVER, NEVER, NEVER, NEVER, train_count, 50, "0123456789abcdef", True)
    return replace(
        CampaignFacts(
            campaign_id="c0",
            environment_id="e0",
            git_commit="f" * 40,
            git_dirty=False,
            machine=Machine("cpu", device, 2, 2),
            backend="gloo",
            threads_per_device=1,
            workload="toy",
            data=data,
            seed=0,
            warmup_steps=1,
            steps=steps,
        ),
        **changes,
    )


def epoch(**changes):
    """Two ranks, 100 samples each in two steps; the ranks take 1 s and 2 s."""
    values = {
        "epoch": 1,
        "timed_seconds": [1.0, 2.0],
        "step_seconds": [[0.6, 0.4], [0.5, 1.5]],
        "data_wait": [[0.01, 0.02], [0.1, 0.3]],
        "samples": [[50, 50], [50, 50]],
        "loss_first": 2.3,
        "loss_last": 2.0,
        "finite": True,
        "skipped_steps": 0,
        "parameter_hashes": ["a", "a"],
    }
    return EpochMeasurement(**(values | changes))


def measurement(*epochs, **changes):
    values = {
        "epochs": list(epochs or [epoch()]),
        "launch_seconds": 3.0,
        "init_seconds": 0.1,
        "build_seconds": 0.2,
        "warmup_seconds": 0.3,
        "compile_seconds": None,
        "flops_per_sample": 700.0,
        "peak_memory_bytes": [],
        "host_peak_rss_bytes": 1000,
        "host_memory_bytes": 900,
        "gradient_bytes": 400,
        "details": {"split": "1/2 layers"},
        "warnings": [],
    }
    return Measurement(**(values | changes))


def rows_of(*epochs, cell=CELL, run=RUN, of=None, status="ok", **changes):
    return run_rows(of or facts(), cell, run, Outcome(status, measurement=measurement(*epochs, **changes)))


def test_a_run_s_time_is_the_sum_over_its_turns_of_the_slowest_rank_in_each():
    """Turns of 0.4 and 0.6 s on rank 0, 0.3 and 0.8 s on rank 1: 0.4 + 0.8 s for 200 samples."""
    turns = {"turn_seconds": [[0.4, 0.6], [0.3, 0.8]], "turn_steps": [1, 1], "timed_seconds": [1.0, 1.1]}
    (row,) = rows_of(epoch(**turns))
    assert (row["timed_seconds"], row["turns"]) == (pytest.approx(1.2), 2)
    assert row["samples_per_second"] == pytest.approx(200 / 1.2)
    steps = step_rows("r", measurement(epoch(**turns)))
    assert [(step["rank"], step["step"], step["turn"]) for step in steps] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0),
        (1, 1, 1),
    ]


def test_the_row_of_two_ranks_of_one_and_two_seconds():
    (row,) = rows_of()
    assert row["samples_per_second"] == 100.0
    assert (row["timed_seconds"], row["timed_seconds_min_rank"]) == (2.0, 1.0)
    assert row["epoch_seconds"] == pytest.approx(10.5)
    assert (row["timed_steps"], row["timed_samples"], row["epoch_samples"]) == (2, 200, 1050)
    assert row["data_wait_seconds"] == pytest.approx(0.4)
    assert (row["status"], row["reason"], row["gate"]) == ("ok", "", "passed")
    assert row["backend"] == "gloo"
    assert row["details"] == "split=1/2 layers"
    assert row["parameter_hash"] == "a"


def test_step_statistics_are_of_the_slowest_rank_in_each_step():
    """Maxima 0.6 and 1.5: median 1.05, standard deviation 0.9 / sqrt(2)."""
    assert step_maxima([[0.6, 0.4], [0.5, 1.5]]) == [0.6, 1.5]
    (row,) = rows_of()
    assert row["step_seconds_median"] == pytest.approx(1.05)
    assert row["step_seconds_p95"] == pytest.approx(0.6 + 0.95 * 0.9)
    assert row["step_seconds_cov"] == pytest.approx(0.9 / math.sqrt(2) / 1.05)


@pytest.mark.parametrize("count", [1, 2, 3, 20, 101])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 1.0])
def test_percentile_is_numpys(count, share):
    values = np.random.default_rng(count).exponential(size=count).tolist()
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


def test_one_step_has_no_spread():
    (row,) = rows_of(
        epoch(step_seconds=[[1.0], [2.0]], data_wait=[[0.0], [0.0]], samples=[[50], [50]]), of=facts(steps=1)
    )
    assert row["step_seconds_cov"] is None
    assert row["step_seconds_median"] == row["step_seconds_p95"] == 2.0


def test_a_part_of_an_epoch_is_marked_and_drops_nothing():
    (row,) = rows_of()
    assert row["epoch_measured"] is False
    assert row["dropped_samples"] is None


@pytest.mark.parametrize("steps", [None, 10])
def test_a_whole_epoch_counts_what_fills_no_batch(steps):
    """1,050 samples in batches of 100: ten steps, 50 samples dropped; the epoch's seconds are for all 1,050."""
    whole = epoch(step_seconds=[[0.1] * 10] * 2, data_wait=[[0.0] * 10] * 2, samples=[[50] * 10] * 2)
    (row,) = rows_of(whole, of=facts(steps=steps))
    assert row["epoch_measured"] is True
    assert row["dropped_samples"] == 50
    assert row["samples_per_second"] == 500.0
    assert row["epoch_seconds"] == pytest.approx(2.1)


def test_accuracy_is_the_exact_share_and_blank_without_an_evaluation():
    assert rows_of(epoch(correct=12, evaluated=50))[0]["test_accuracy"] == pytest.approx(0.24)
    assert rows_of(epoch(correct=0, evaluated=50))[0]["test_accuracy"] == 0.0
    assert rows_of()[0]["test_accuracy"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finite": False, "loss_first": None, "loss_last": None}, "not finite"),
        ({"parameter_hashes": ["a", "b"]}, "parameters differ"),
        ({"samples": [[50, 0], [50, 0]]}, "100 samples were trained on, 200 should have been"),
        ({"evaluated": 49, "correct": 1}, "49 test samples"),
    ],
)
def test_a_failed_gate_makes_the_run_invalid_and_keeps_its_figures(changes, words):
    (row,) = rows_of(epoch(**changes))
    assert row["status"] == "invalid"
    assert words in row["reason"]
    assert row["gate"] == row["reason"]
    assert row["samples_per_second"] > 0


def test_each_epoch_has_its_row_and_shares_the_run():
    first, second = rows_of(epoch(), epoch(epoch=2, timed_seconds=[4.0, 4.0]))
    assert [first["epoch"], second["epoch"]] == [1, 2]
    assert first["run_id"] == second["run_id"]
    assert second["samples_per_second"] == 50.0


def test_arithmetic_rates_and_the_known_peak():
    run = replace(RUN, flops_per_sample=1.56e12)
    (row,) = rows_of(run=run, cell=CELL.changed(precision="tf32"), of=facts(device="NVIDIA A100-SXM4-40GB"))
    assert row["achieved_flops_per_second"] == pytest.approx(1.56e14)
    assert row["peak_flops_fraction"] == pytest.approx(0.5)
    (unknown,) = rows_of(run=run)
    assert unknown["achieved_flops_per_second"] == pytest.approx(1.56e14)
    assert unknown["peak_flops_fraction"] is None


def test_memory_is_of_the_fullest_and_the_emptiest_device_and_blank_without_any():
    (row,) = rows_of(peak_memory_bytes=[7, 3, 5])
    assert (row["peak_memory_bytes_max"], row["peak_memory_bytes_min"]) == (7, 3)
    (cpu,) = rows_of()
    assert (cpu["peak_memory_bytes_max"], cpu["peak_memory_bytes_min"]) == (None, None)
    assert (cpu["host_peak_rss_bytes"], cpu["host_memory_bytes"], cpu["gradient_bytes"]) == (1000, 900, 400)


def test_the_probe_s_rates_are_the_run_s_and_blank_where_it_had_none():
    (row,) = rows_of(probe_flops_per_second=8e10, probe_bytes_per_second=1.5e10)
    assert (row["probe_flops_per_second"], row["probe_bytes_per_second"]) == (8e10, 1.5e10)
    (without,) = rows_of()
    assert (without["probe_flops_per_second"], without["probe_bytes_per_second"]) == (None, None)


def test_breakdown_times_are_maxima_over_ranks():
    (row,) = rows_of(epoch(forward_backward=[1.0, 1.5], optimizer=[0.2, 0.1], exposed_comm=0.3))
    assert (row["forward_backward_seconds"], row["optimizer_seconds"], row["exposed_comm_seconds"]) == (1.5, 0.2, 0.3)


def test_an_unsupported_cell_has_a_row_with_its_reason_and_blanks():
    cell = planned("dp", 2, places=(), batch_global=None, status="unsupported", reason="why")
    (row,) = run_rows(facts(), cell, RUN, Outcome("unsupported", "why"))
    assert (row["strategy"], row["devices"], row["status"], row["reason"]) == ("dp", 2, "unsupported", "why")
    figures = ("samples_per_second", "epoch_seconds", "timed_seconds", "loss_first", "test_accuracy", "processes")
    assert all(row.get(name) in (None, "") for name in figures)


def test_a_failed_run_has_a_row_with_exit_code_and_no_figure():
    (row,) = run_rows(facts(), CELL, RUN, Outcome("crashed", "rank 1: boom", exit_code=-9))
    assert (row["status"], row["exit_code"]) == ("crashed", -9)
    assert row.get("samples_per_second") is None


def test_warnings_of_cell_data_run_and_strategy_stand_together():
    data = replace(facts().data, warnings=("odd file",))
    outcome = Outcome("ok", warnings=("slow exit",), measurement=measurement(warnings=["plain ddp"]))
    (row,) = run_rows(facts(data=data), replace(CELL, warnings=("emulated",)), RUN, outcome)
    assert row["warnings"] == "emulated | odd file | slow exit | plain ddp"


def test_facts_of_the_strategy_are_columns():
    (row,) = rows_of(cell=replace(CELL, same_work=False, plain_twin="plain", tuned_twin="tuned"))
    assert (row["same_work"], row["plain_twin"], row["tuned_twin"]) == (False, "plain", "tuned")
    assert row["details"] == "split=1/2 layers"


def test_one_process_without_a_group_has_no_backend():
    assert rows_of(cell=replace(CELL, uses_process_group=False))[0]["backend"] == ""


@pytest.mark.parametrize("outcome", [Outcome("crashed", "x"), Outcome("ok", measurement=measurement())])
def test_every_key_of_a_row_is_a_column(outcome):
    for row in run_rows(facts(), CELL, RUN, outcome):
        assert set(row) <= set(names(RUN_COLUMNS))
        assert row["status"] in STATUSES
    for row in step_rows("r", outcome.measurement):
        assert set(row) == set(names(STEP_COLUMNS))


def test_every_timed_step_of_every_rank_has_a_row():
    rows = step_rows("r", measurement())
    assert [(row["rank"], row["step"], row["seconds"], row["data_wait_seconds"]) for row in rows] == [
        (0, 0, 0.6, 0.01),
        (0, 1, 0.4, 0.02),
        (1, 0, 0.5, 0.1),
        (1, 1, 1.5, 0.3),
    ]
    assert step_rows("r", None) == []


def test_rows_survive_the_file(tmp_path):
    rows = rows_of()
    write_rows(tmp_path / "runs.csv", RUN_COLUMNS, rows)
    (read,) = read_rows(tmp_path / "runs.csv", RUN_COLUMNS)
    assert {name: read[name] for name in rows[0]} == rows[0]
    assert "nan" not in encode_rows(RUN_COLUMNS, rows).lower()
