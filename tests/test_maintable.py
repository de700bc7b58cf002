"""The main table says the same in terminal, export and report: what a value looks like is settled in one place."""

import io
import re
from pathlib import Path

import pytest
from generated import failed, row, table, write_campaign
from rich.console import Console

from bench.factors import BY_NAME, CONTROL, FACTOR_NAMES
from bench.results.summary import summarise, summary_rows, write_summary
from bench.view.export import export
from bench.view.maintable import EXPORT, REPORT, TERMINAL, VARYING, main_table, markdown_lines
from bench.view.report import build_report
from bench.view.table import print_table

ROWS = [
    *(row("single", 1, block) for block in (0, 1)),
    *(row("ddp", 2, block, seconds=6.25, test_accuracy=0.5, peak_memory_bytes_max=3 << 29) for block in (0, 1, 2)),
]
"""Two blocks of the baseline and three of ddp: two pairs, three runs; 100 and 160 samples/s."""

KEYS = ("speedup_and_interval", "speedup", "interval", "n", "runs", "efficiency", "test_accuracy", "memory")


def rows_of(rows: list[dict]) -> list[dict]:
    return summary_rows(summarise(table(rows)))


@pytest.mark.parametrize(
    ("notation", "headings", "line"),
    [
        (
            TERMINAL,
            ["speedup", "speedup", "95 % interval", "n", "runs", "efficiency", "accuracy", "memory"],
            ["1.60x [1.60, 1.60]", "1.60", "[1.60, 1.60]", "2", "3", "80%", "50.0%", "1.50 GiB"],
        ),
        (
            EXPORT,
            ["speedup [95 %]", "speedup", "95 % interval", "n", "runs", "efficiency", "accuracy", "memory GiB"],
            ["1.600 [1.600, 1.600]", "1.600", "[1.600, 1.600]", "2", "3", "0.80", "0.500", "1.50"],
        ),
        (
            REPORT,
            ["speedup [95 %]", "speedup", "95 % interval", "n", "runs", "efficiency, %", "accuracy, %", "memory, GiB"],
            ["1.600 [1.600, 1.600]", "1.600", "[1.600, 1.600]", "2", "3", "80", "50.0", "1.50"],
        ),
    ],
)
def test_figures_by_hand_in_each_notation(notation, headings, line) -> None:
    table = main_table(rows_of(ROWS), KEYS, notation)
    assert table.headings == headings
    assert table.lines[1] == line
    assert table.lines[0][0].endswith("baseline")


def test_n_is_the_number_of_paired_blocks_in_every_view(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", ROWS)
    write_summary(folder)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_table(folder, console=console)
    lines = console.file.getvalue().splitlines()
    header = next(re.split("[┃]", line) for line in lines if line.startswith("┃"))
    shown = next(line.split("│") for line in lines if line.startswith("│ ddp"))
    assert dict(zip(map(str.strip, header), map(str.strip, shown), strict=True))["n"] == "2"
    pages = [export(folder, "markdown"), build_report([folder], folder)[1].read_text(encoding="utf-8")]
    for page in pages:
        header = next(line.split("|") for line in page.splitlines() if line.startswith("| strategy"))
        shown = next(re.split(r"(?<!\\)\|", line) for line in page.splitlines() if line.startswith("| ddp"))
        found = dict(zip(map(str.strip, header), map(str.strip, shown), strict=True))
        assert found["n"] == "2"
        assert found.get("runs", "3") == "3"
    assert "runs" in found


def test_failed_runs_are_counted_beside_those_that_count() -> None:
    rows = rows_of([*ROWS, failed("ddp", 2, 3)])
    assert main_table(rows, ("runs",), REPORT).lines == [["2"], ["3 (+1 failed)"]]


def test_a_factor_has_a_column_where_it_tells_rows_apart() -> None:
    rows = rows_of([row("ddp", 2, 0), row("ddp", 2, 0, variant="bucket_mb=1", run_id="other")])
    table = main_table(rows, ("strategy", VARYING), TERMINAL)
    assert table.headings == ["strategy", "variant"]
    assert sorted(table.lines) == [["ddp", ""], ["ddp", "bucket_mb=1"]]


@pytest.mark.parametrize("name", [name for name in FACTOR_NAMES if name not in ("strategy", "devices", "role")])
def test_every_factor_has_its_column_once(name: str) -> None:
    one, other = (1, 2) if BY_NAME[name].kind == "int" else ("one", "two")
    first, second = (dict(rows_of(ROWS)[0]) | {name: value} for value in (one, other))
    for keys in (("strategy", VARYING), ("strategy", name, VARYING)):
        table = main_table([first, second], keys, EXPORT)
        assert [column.key for column in table.columns] == ["strategy", name]


def test_a_number_that_is_not_there_tells_nothing_apart() -> None:
    """What is not supported has no batch."""
    rows = rows_of([row("single", 1, 0), failed("dp", 2, 0, status="unsupported", batch_global=None)])
    assert main_table(rows, ("strategy", "devices", VARYING), TERMINAL).headings == ["strategy", "devices"]


def test_the_twin_of_the_baseline_is_marked_and_not_a_factor() -> None:
    rows = rows_of([row("single", 1, 0), row("single", 1, 0, role=CONTROL)])
    assert main_table(rows, ("strategy", VARYING), EXPORT).lines == [["single"], ["single (A/A)"]]


def test_a_key_without_a_column_is_an_error() -> None:
    with pytest.raises(KeyError):
        main_table(rows_of(ROWS), ("speed",), EXPORT)


def test_no_rows_give_no_columns() -> None:
    table = main_table([], KEYS, EXPORT)
    assert (table.headings, table.lines) == ([], [])


def test_a_bar_in_a_cell_of_markdown_does_not_end_it() -> None:
    assert markdown_lines([["a", "b"], ["x|y", ""]]) == ["| a | b |", "|---|---|", "| x\\|y |  |"]
