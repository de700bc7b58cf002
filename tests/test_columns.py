"""The table of columns and the files made from it: exact in both directions, never nan, whole lines or nothing."""

import csv
import errno
import io
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UserError
from bench.factors import FACTOR_NAMES, FAILED_STATUSES, ROLES, STATUSES
from bench.results.columns import (
    RUN_COLUMNS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    names,
)
from bench.results.csvfile import (
    append_rows,
    check_header,
    encode_header,
    encode_rows,
    format_value,
    parse_value,
    read_rows,
    write_rows,
)

TABLES = {"runs": RUN_COLUMNS, "steps": STEP_COLUMNS, "summary": SUMMARY_COLUMNS}
KINDS = ("str", "int", "float", "bool")
BY_KIND = {kind: next(c for c in RUN_COLUMNS if c.kind == kind) for kind in KINDS}


# -- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_explained_on_one_line(table):
    for column in TABLES[table]:
        assert column.meaning.strip()
        assert len(column.meaning.splitlines()) == 1
        assert column.kind in KINDS
        assert column.name.isidentifier()
        assert column.name == column.name.lower()


@pytest.mark.parametrize("table", TABLES)
def test_names_are_unique(table):
    assert len(set(names(TABLES[table]))) == len(TABLES[table])


@pytest.mark.parametrize("table", TABLES)
def test_units_stand_in_the_names(table):
    for column in TABLES[table]:
        if column.name.endswith("seconds"):
            assert column.unit == "s"
        if "bytes" in column.name:
            assert column.unit == ("B/s" if column.name.endswith("bytes_per_second") else "B")


def test_the_columns_fixed_by_design_are_there():
    wanted = """schema_version campaign_id run_id block order_in_block attempt utc_start environment_id git_commit
    git_dirty strategy devices processes replicas device_kind device_name backend threads_per_device workload dataset
    dataset_fingerprint data_pipeline precision memory_format compile scaling batch_global batch_per_part accumulate
    seed status reason exit_code warnings warmup_steps timed_steps timed_samples epoch_samples epoch_measured
    timed_seconds timed_seconds_min_rank epoch_seconds samples_per_second step_seconds_median step_seconds_p95
    data_wait_seconds forward_backward_seconds optimizer_seconds exposed_comm_seconds launch_seconds init_seconds
    build_seconds warmup_seconds eval_seconds flops_per_sample achieved_flops_per_second peak_memory_bytes_max
    peak_memory_bytes_min host_peak_rss_bytes loss_first loss_last test_accuracy gate"""
    assert set(wanted.split()) <= set(names(RUN_COLUMNS))
    summary = """strategy devices scaling precision runs_ok runs_failed epoch_seconds samples_per_second speedup
    speedup_low speedup_high efficiency peak_memory_bytes test_accuracy status flags stop_reason"""
    assert set(summary.split()) <= set(names(SUMMARY_COLUMNS))
    assert {"run_id", "rank", "step", "seconds", "data_wait_seconds"} <= set(names(STEP_COLUMNS))


def test_factors_are_columns_of_both_tables():
    assert set(FACTOR_NAMES) <= set(names(RUN_COLUMNS)) & set(names(SUMMARY_COLUMNS))
    assert set(FAILED_STATUSES) == set(STATUSES) - {"ok", "unsupported"}
    assert ROLES == ("measure", "control", "breakdown")


# -- values -----------------------------------------------------------------------------------------------------------

no_lone_halves = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = {
    "str": no_lone_halves,
    "int": st.integers(-(2**70), 2**70),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
}


def collapsed(text):
    """What a text becomes: one line, single blanks, no NUL."""
    return " ".join(text.replace("\0", "").split())


@settings(max_examples=40, deadline=None)
@given(st.data())
@pytest.mark.parametrize("table", TABLES)
def test_rows_read_back_exactly(table, data):
    columns = TABLES[table]
    row = {c.name: st.none() | VALUES[c.kind] for c in columns}
    rows = data.draw(st.lists(st.fixed_dictionaries(row), max_size=2))
    # No row is all blank: one that is holds nothing but commas, which spreadsheets leave.
    rows = [one for one in rows if any(value is not None and collapsed(str(value)) for value in one.values())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        write_rows(path, columns, rows)
        read = read_rows(path, columns)
        assert len(path.read_text(encoding="utf-8").split("\n")) == len(rows) + 2
    expected = [
        {c.name: collapsed(row[c.name] or "") if c.kind == "str" else row[c.name] for c in columns} for row in rows
    ]
    assert read == expected


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-320, 1.7976931348623157e308, -0.0, 2**53 + 1.0])
def test_floats_are_exact(value):
    column = BY_KIND["float"]
    read = parse_value(column, format_value(column, value))
    assert math.copysign(1, read) == math.copysign(1, value)
    assert read == value


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_exist_is_blank(kind, value):
    assert format_value(BY_KIND[kind], value) == ""
    assert parse_value(BY_KIND[kind], "") == ("" if kind == "str" else None)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("float", "nan"),
        ("float", "inf"),
        ("float", "-Infinity"),
        ("float", "fast"),
        ("int", "1.5"),
        ("int", "x"),
        ("bool", "yes"),
        ("bool", "1"),
    ],
)
def test_text_of_another_type_is_refused_with_file_line_and_column(kind, text, tmp_path):
    column = BY_KIND[kind]
    with pytest.raises(ValueError, match=r"."):
        parse_value(column, text)
    path = tmp_path / "runs.csv"
    write_rows(path, RUN_COLUMNS, [{}])
    header, line = (next(csv.reader([text])) for text in path.read_text(encoding="utf-8").splitlines())
    line[header.index(column.name)] = text
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, line])
    path.write_text(buffer.getvalue(), encoding="utf-8")
    with pytest.raises(UserError, match=rf"runs\.csv, line 2, column {column.name}: "):
        read_rows(path, RUN_COLUMNS)


def test_a_message_with_commas_quotes_and_newlines_is_one_cell_on_one_line():
    row = {"reason": 'a, "b"\r\n\tc\x0bd\x85e\u2028f\0g'}
    text = encode_rows(RUN_COLUMNS, [row])
    assert text.count("\n") == 1
    (cells,) = csv.reader([text])
    assert cells[names(RUN_COLUMNS).index("reason")] == 'a, "b" c d e fg'


def test_a_key_that_is_no_column_does_not_shift_the_others():
    assert encode_rows(STEP_COLUMNS, [{"rank": 1, "unknown": 9}]) == ",1,,,,,\n"


# -- files ------------------------------------------------------------------------------------------------------------


def steps(*numbers):
    return [{"run_id": "r", "rank": 0, "epoch": 1, "step": number, "seconds": 0.5} for number in numbers]


def numbers_in(path):
    return [row["step"] for row in read_rows(path, STEP_COLUMNS)]


def test_appending_makes_the_file_with_its_header_and_then_adds(tmp_path):
    path = tmp_path / "steps.csv"
    append_rows(path, STEP_COLUMNS, steps(0))
    append_rows(path, STEP_COLUMNS, steps(1, 2))
    assert path.read_text(encoding="utf-8").startswith(encode_header(STEP_COLUMNS))
    assert numbers_in(path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (names(STEP_COLUMNS)[1:], "missing run_id"),
        ([*names(STEP_COLUMNS), "mood"], "unknown mood"),
        (names(STEP_COLUMNS)[::-1], "other order"),
        ([], "empty file"),
    ],
)
def test_another_header_is_refused_before_anything_is_appended(header, words, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(",".join(header), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(UserError, match=words):
        append_rows(path, STEP_COLUMNS, steps(0))
    with pytest.raises(UserError, match="use a new folder with --out"):
        check_header(path, STEP_COLUMNS)
    assert path.read_bytes() == before


class FullDisk:
    """A file of which only the first bytes of a write reach the disk."""

    def __init__(self, file, fits):
        self.file = file
        self.fits = fits

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        written = self.file.write(data[: self.fits])
        if self.fits == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written


@pytest.mark.parametrize("fits", [0, 1, 7])
def test_a_row_that_does_not_fit_is_cut_back_to_the_last_whole_line(fits, tmp_path, monkeypatch):
    path = tmp_path / "steps.csv"
    append_rows(path, STEP_COLUMNS, steps(0, 1))
    before = path.read_bytes()
    real = Path.open

    def full(self, mode="r", *arguments, **keywords):
        file = real(self, mode, *arguments, **keywords)
        return FullDisk(file, fits) if "a" in mode else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(UserError, match="what was measured before is kept"):
            append_rows(path, STEP_COLUMNS, steps(2))
    assert path.read_bytes() == before
    append_rows(path, STEP_COLUMNS, steps(2))
    assert numbers_in(path) == [0, 1, 2]


def test_a_failed_rewrite_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "summary.csv"
    write_rows(path, STEP_COLUMNS, steps(0))

    def refuse(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_rows(path, STEP_COLUMNS, steps(1))
    assert [found.name for found in tmp_path.iterdir()] == ["summary.csv"]
    assert numbers_in(path) == [0]


def test_columns_added_by_hand_and_other_line_ends_are_accepted(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(
        "note," + ",".join(names(STEP_COLUMNS)) + "\r\nmine,r,0,1,4,0.5,,\r\n", encoding="utf-8", newline=""
    )
    assert numbers_in(path) == [4]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("\ufeff" + ",".join(names(STEP_COLUMNS)) + "\nr,0,1,4,0.5,,\n", encoding="utf-8")
    assert numbers_in(path) == [4]


def test_a_file_without_them_cannot_be_continued(tmp_path):
    older = tuple(column for column in RUN_COLUMNS if not column.added)
    path = tmp_path / "runs.csv"
    write_rows(path, older, [])
    before = path.read_bytes()
    with pytest.raises(
        UserError, match=r"is of an earlier version of the suite \(it lacks cohort, .*comm_trace_seconds, .*not cont"
    ):
        append_rows(path, RUN_COLUMNS, [{"run_id": "r"}])
    assert path.read_bytes() == before


def test_columns_that_came_later_read_as_blank_in_older_files(tmp_path):
    """A file written before they were there: they are None or "", and the values beside them are where they belong."""
    added = {column.name for column in RUN_COLUMNS if column.added}
    assert {"host_memory_bytes", "gradient_bytes", "comm_trace_seconds"} <= added
    older = [column for column in RUN_COLUMNS if not column.added]
    values = {column.name: {"str": "x", "int": 3, "float": 0.5, "bool": True}[column.kind] for column in older}
    path = tmp_path / "runs.csv"
    write_rows(path, tuple(older), [values])
    (found,) = read_rows(path, RUN_COLUMNS)
    blank = {column.name: "" if column.kind == "str" else None for column in RUN_COLUMNS if column.added}
    assert found == values | blank


def test_a_column_that_was_renamed_is_read_by_its_former_name(tmp_path):
    header = [column.formerly or column.name for column in RUN_COLUMNS]
    assert "batch_per_replica" in header
    path = tmp_path / "runs.csv"
    path.write_text(",".join(header) + "\n" + ",".join("64" if name == "batch_per_replica" else "" for name in header))
    (found,) = read_rows(path, RUN_COLUMNS)
    assert found["batch_per_part"] == 64
    assert "batch_per_replica" not in found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"run_id,rank\nr,0\n", "lacks the columns epoch, step"),
        (",".join(names(STEP_COLUMNS)).encode() + b"\nr,0\n", "line 2: 2 values for 7 columns"),
        (b"\xff\xfe\n", "is not UTF-8 text"),
    ],
)
def test_a_damaged_file_is_a_clear_message(content, words, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_rows(path, STEP_COLUMNS)


def test_a_missing_file_is_a_clear_message(tmp_path):
    with pytest.raises(UserError, match="could not read"):
        read_rows(tmp_path / "none.csv", STEP_COLUMNS)


def test_numpy_s_nan_and_half_a_surrogate_pair_are_written_as_valid_text() -> None:
    import numpy as np

    loss = next(column for column in RUN_COLUMNS if column.name == "loss_last")
    reason = next(column for column in RUN_COLUMNS if column.name == "reason")
    assert [format_value(loss, value) for value in (np.float32("nan"), np.float64("-inf"), np.float64(0.1))] == [
        "",
        "",
        "0.1",
    ]
    assert format_value(reason, "a\ud800b") == "a?b"
