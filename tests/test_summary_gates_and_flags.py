"""What makes a run invalid, and what a careful reader is told of a cell: each at its bound and beyond."""

import math

import pytest
from generated import row, table, write_campaign
from summaries import key, summary_of

from bench.factors import Baseline
from bench.results.cells import judged_cells
from bench.results.flags import _WORDS, ADVICE, cell_flags, what_to_do
from bench.results.lossgate import loss_gate
from bench.results.summary import write_summary

# -- gates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        ((2.3, 2.0, 2.3, 2.0), True),
        ((2.52, 2.0, 2.3, 2.0), True),
        ((2.54, 2.0, 2.3, 2.0), False),
        ((2.3, 2.49, 2.3, 2.0), True),
        ((2.3, 1.49, 2.3, 2.0), False),
        ((0.04, 0.01, 0.001, 0.001), True),
        ((0.06, 0.01, 0.001, 0.001), False),
        ((None, None, 2.3, 2.0), True),
        ((9.0, 9.0, None, None), True),
        ((math.nan, 2.0, 2.3, 2.0), False),
    ],
)
def test_the_loss_band(losses, passes):
    reason = loss_gate(*losses)
    assert (reason is None) == passes


def test_a_fast_wrong_cell_is_invalid_shown_and_never_ranked():
    rows = [row("single", 1, b) for b in (0, 1)] + [row("ddp", 2, b, seconds=1.0, loss_first=9.0) for b in (0, 1)]
    found = summary_of(rows)
    ddp = found[key("ddp", 2)]
    assert (ddp["status"], ddp["runs_ok"], ddp["runs_failed"], ddp["speedup"]) == ("invalid", 0, 2, None)
    assert ddp["reason"].startswith("loss of the first timed step is 9, the baseline's 2.3")
    assert ddp["p_value_holm"] is None


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 1},
        {"timed_steps": 11},
        {"scaling": "weak", "batch_global": 200},
        {"same_work": False},
    ],
)
def test_other_work_is_not_judged_by_its_loss(values):
    rows = [row("single", 1, 0), row("ddp", 2, 0, seconds=1.0, loss_first=9.0, **values)]
    statuses = {record["strategy"]: record["status"] for record in summary_of(rows).values()}
    assert statuses["ddp"] == "ok"


def test_an_older_row_says_in_its_details_that_its_gradients_are_lossy(tmp_path):
    """Before there was a column for it: read from the file, the row is judged as one of other work."""
    rows = [row("single", 1, 0), row("ddp", 2, 0, seconds=1.0, loss_first=9.0, details="hook=powersgd;gradients=lossy")]
    older = [one | {"same_work": None, "tuned_twin": ""} for one in rows]
    frame = write_summary(write_campaign(tmp_path / "c", older))
    assert dict(zip(frame["strategy"], frame["status"], strict=True)) == {"single": "ok", "ddp": "ok"}
    older[1]["details"] = "hook=none"
    frame = write_summary(write_campaign(tmp_path / "d", older))
    assert dict(zip(frame["strategy"], frame["status"], strict=True)) == {"single": "ok", "ddp": "invalid"}


# -- flags ----------------------------------------------------------------------------------------------------------


def flags_of(rows):
    (cell,) = [cell for cell in judged_cells(table(rows), Baseline.parse(None)) if cell["strategy"] == "ddp"]
    return {flag.key: flag.text for flag in cell_flags(cell)}


@pytest.mark.parametrize(
    ("flag", "quiet", "loud", "words"),
    [
        ("unsteady_steps", {"step_seconds_cov": 0.10}, {"step_seconds_cov": 0.14}, "14 %"),
        ("unsteady_steps", {"step_seconds_cov": 0.9, "timed_steps": 3}, {"step_seconds_cov": 0.9}, "90 %"),
        ("foreign_cpu", {"foreign_cpu_fraction": 0.10}, {"foreign_cpu_fraction": 0.31}, "up to 31 % of all cores"),
        (
            "gpu_throttle",
            {"gpu_throttle_reasons": "gpu_idle"},
            {"gpu_throttle_reasons": "hw_slowdown;gpu_idle"},
            "hw_slowdown in",
        ),
        ("low_clock", {"gpu_clock_fraction": 0.75}, {"gpu_clock_fraction": 0.5}, "down to 50 %"),
        ("foreign_gpu_process", {"gpu_foreign_processes": 0}, {"gpu_foreign_processes": 2}, "up to 2"),
        ("dropped_samples", {"dropped_samples": 10}, {"dropped_samples": 11}, "11 of 1000 (1.1 %)"),
        ("skipped_steps", {"skipped_steps": 0}, {"skipped_steps": 1}, "up to 1 of 10"),
    ],
)
def test_a_flag_is_quiet_at_its_floor_and_names_its_cause_above(flag, quiet, loud, words):
    assert flag not in flags_of([row("ddp", 2, b, **quiet) for b in range(5)])
    rows = [row("ddp", 2, b, **loud) for b in range(5)]
    text = flags_of(rows)[flag]
    assert words in text
    (record,) = summary_of(rows).values()
    told = dict(zip(record["flag_keys"].split(" | "), record["flags"].split(" | "), strict=True))
    assert told[flag] == text


def test_an_outlying_run_is_named_and_stays():
    seconds = [10.0, 10.05, 9.95, 10.02, 13.0]
    rows = [row("ddp", 2, b, seconds=s) for b, s in enumerate(seconds)]
    assert "ddp-2-fp32-strong-b4-a1, -22.9 %" in flags_of(rows)["outlying_run"]
    assert "outlying_run" not in flags_of(rows[1:])
    # Far outside by the modified z, but by less than 2 %.
    assert "outlying_run" not in flags_of([row("ddp", 2, b, seconds=s) for b, s in enumerate([10, 10, 10, 10, 10.1])])


def test_drift_stands_on_the_baseline():
    rows = [
        row(name, devices, b, seconds=10 / devices * (1 + 0.02 * b), order_in_block=order)
        for b in range(6)
        for order, (name, devices) in enumerate([("single", 1), ("ddp", 2)])
    ]
    found = summary_of(rows)
    assert found[key("single", 1)]["flags"].startswith("drift over the campaign: samples/s changed by -")
    assert found[key("ddp", 2)]["flags"] == ""


def test_a_control_that_differs_is_flagged():
    rows = []
    for block, noise in enumerate([0.999, 1.0, 1.001]):
        rows += [row("single", 1, block), row("single", 1, block, seconds=9.0 * noise, role="control")]
    control = summary_of(rows)[key("single", 1, role="control")]
    assert control["flags"].startswith("A/A interval excludes 1: the baseline measured twice gives 1.111 [1.10")


def test_every_flag_has_advice_and_its_own_first_words():
    assert all(what_to_do(flag).endswith(".") for flag in ADVICE)
    with pytest.raises(KeyError):
        what_to_do("unknown")
    assert _WORDS.keys() == ADVICE.keys()
    assert len(set(_WORDS.values())) == len(ADVICE)
