"""What must hold for any campaign: order does not matter, failures change no other figure, files are exact."""

import math
import tempfile
from pathlib import Path

import pandas as pd
from generated import failed, row, table
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.columns import RUN_COLUMNS, SUMMARY_COLUMNS
from bench.results.csvfile import read_rows, write_rows
from bench.results.folder import Campaign
from bench.results.summary import summarise, write_summary

CELLS = [
    ("single", 1, {}),
    ("single", 1, {"role": "control"}),
    ("single", 1, {"precision": "amp-bf16"}),
    ("single_tuned", 1, {"precision": "amp-bf16"}),
    ("ddp", 1, {}),
    ("ddp", 2, {}),
    ("ddp", 2, {"scaling": "weak", "batch_global": 200}),
    ("ddp_amp", 2, {"precision": "amp-bf16"}),
]
FIGURES = [column.name for column in SUMMARY_COLUMNS if column.kind in ("int", "float")]

seconds = st.floats(1e-3, 1e6)
optional = st.none() | st.floats(0, 2)
statuses = st.sampled_from(["ok"] * 6 + ["crashed", "oom", "timeout", "interrupted", "invalid", "unsupported"])


@st.composite
def campaigns(draw):
    """Some cells over some blocks; some runs failed, measured again, or of several epochs."""
    rows = []
    for block in range(draw(st.integers(1, 4))):
        for strategy, devices, values in draw(st.lists(st.sampled_from(CELLS), unique_by=str, min_size=1)):
            for attempt in range(1, draw(st.sampled_from([1, 1, 1, 2])) + 1):
                status, common = draw(statuses), {**values, "attempt": attempt}
                if status != "ok":
                    rows.append(failed(strategy, devices, block, status=status, **common))
                    continue
                for epoch in range(1, draw(st.sampled_from([1, 1, 2])) + 1):
                    measured = {
                        "loss_first": draw(st.none() | st.sampled_from([2.3, 2.31, 9.0])),
                        "loss_last": draw(st.none() | st.sampled_from([2.0, 2.1])),
                        "test_accuracy": draw(optional),
                        "foreign_cpu_fraction": draw(optional),
                        "step_seconds_cov": draw(optional),
                        "flops_per_sample": draw(st.none() | st.just(1e9)),
                        "epoch": epoch,
                    }
                    rows.append(row(strategy, devices, block, seconds=draw(seconds), **common, **measured))
    return rows


@settings(max_examples=40, deadline=None)
@given(campaigns(), st.randoms(use_true_random=False))
def test_the_summary_does_not_depend_on_the_order_of_the_rows(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    pd.testing.assert_frame_equal(summarise(table(rows)), summarise(table(shuffled)), check_exact=True)


@settings(max_examples=40, deadline=None)
@given(campaigns(), st.sampled_from(CELLS), st.sampled_from(["crashed", "oom", "timeout", "interrupted"]))
def test_a_failed_run_changes_no_figure_of_others(rows, cell, status):
    """A further run of any cell fails in a block of its own: only that cell's count of failures moves."""
    strategy, devices, values = cell
    before = _figures(rows)
    after = _figures([*rows, failed(strategy, devices, 99, status=status, **values)])
    changed = {key for key in before if before[key] != after[key]}
    assert len(after.keys() - before.keys()) + len(changed) == 1
    for key in changed:
        assert before[key] | {"runs_failed": None} == after[key] | {"runs_failed": None}


def _figures(rows):
    frame = summarise(table(rows))
    identity = ["strategy", "devices", "precision", "scaling", "role"]
    return {
        tuple(record[name] for name in identity): {n: None if pd.isna(record[n]) else record[n] for n in FIGURES}
        for record in frame.to_dict("records")
    }


@settings(max_examples=40, deadline=None)
@given(campaigns())
def test_no_nan_or_infinity_is_ever_written_and_files_are_exact(rows):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "runs.csv", RUN_COLUMNS, rows)
        assert Campaign(folder).run_rows == rows
        frame = write_summary(folder)
        text = (folder / "summary.csv").read_text(encoding="utf-8")
        cells = {cell.lower() for line in text.splitlines()[1:] for cell in line.split(",")}
        assert not cells & {"nan", "inf", "-inf", "<na>", "none"}
        for column in FIGURES:
            values = [value for value in frame[column] if not pd.isna(value)]
            assert all(math.isfinite(value) for value in values)
        again = read_rows(folder / "summary.csv", SUMMARY_COLUMNS)
        for column in FIGURES:
            assert [one[column] for one in again] == [None if pd.isna(v) else v for v in frame[column]]


@settings(max_examples=40, deadline=None)
@given(campaigns())
def test_what_holds_between_the_figures(rows):
    for record in summarise(table(rows)).to_dict("records"):
        if not pd.isna(record["speedup"]):
            assert record["status"] == "ok"
            assert record["baseline"]
            assert math.isclose(record["efficiency"] * record["devices"], record["speedup"])
        if not pd.isna(record["speedup_low"]):
            assert record["pairs"] >= 2
            assert record["speedup_low"] <= record["speedup"] * (1 + 1e-9)
            assert record["speedup"] <= record["speedup_high"] * (1 + 1e-9)
        if not pd.isna(record["p_value_holm"]):
            assert record["p_value"] <= record["p_value_holm"] <= 1
