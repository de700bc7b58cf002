"""The main table: which columns there are and what a value looks like, for terminal, export and report alike.

A view chooses columns by key and a notation, and no more:

    table = main_table(rows, ("strategy", "devices", VARYING, "speedup", "n", "outcome"), TERMINAL)

A row is one of summary.csv, None where it has no value. `n` is the number of paired blocks behind a speedup in every
view; the number of runs is called `runs`. A column in which no row has a value is left out, and so is a factor that
does not vary unless the view names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.factors import BY_NAME, CELL_COLUMNS, CONTROL, MACHINE, OK, is_baseline_row
from bench.results.csvfile import Row
from bench.results.recommend import interval_words, times

GIB = 2**30
VARYING = "*"
"""Among the keys of a view: every factor that tells rows apart and that the view does not name itself."""


@dataclass(frozen=True)
class Notation:
    """How a view writes figures.

    decimals: of speedups. percent: a share is 83 % and not 0.83. before_unit: what parts a heading from its unit.
    units_in_cells: units stand beside the values, for who reads one line at a time, and not in the headings.
    """

    decimals: int = 3
    percent: bool = True
    before_unit: str = " "
    units_in_cells: bool = False

    def heading(self, name: str, unit: str) -> str:
        return f"{name}{self.before_unit}{unit}"


TERMINAL = Notation(decimals=2, units_in_cells=True)
EXPORT = Notation(percent=False)
REPORT = Notation(before_unit=", ")


@dataclass(frozen=True)
class TableColumn:
    """One column. `show` gives a row's text, "" where it has no value."""

    key: str
    heading: str
    numeric: bool
    show: Callable[[Row], str]


@dataclass(frozen=True)
class MainTable:
    """Rows of summary.csv and the columns that a view shows of them."""

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]

    @property
    def keys(self) -> list[str]:
        return [column.key for column in self.columns]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def lines(self) -> list[list[str]]:
        """The text of every row, column by column."""
        return [[column.show(row) for column in self.columns] for row in self.rows]


def main_table(rows: Sequence[Row], keys: Sequence[str], notation: Notation) -> MainTable:
    """The table of these rows in the columns of these keys. Raises KeyError for a key that no column has."""
    figures = {column.key: column for column in (*_texts(), *_figures(notation))}
    columns: list[TableColumn] = []
    for key in keys:
        if key == VARYING:
            columns += [_factor_column(name) for name in _telling_apart(rows, keys)]
        else:
            columns.append(figures[key] if key in figures else _factor_column(key))
    shown = tuple(column for column in columns if any(column.show(row) for row in rows))
    return MainTable(shown, tuple(rows))


def _telling_apart(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """What varies beside that which has a column; the role stands beside the strategy.

    A number that is not there tells nothing apart: what is not supported has no batch.
    """
    known = {name: {row[name] for row in rows} - {None} for name in CELL_COLUMNS if name not in (*keys, "role")}
    return [name for name, values in known.items() if len(values) > 1]


def _factor_column(name: str) -> TableColumn:
    """The values of a factor, under the words that a name says them with; or of the machine."""
    if name == MACHINE:
        return TableColumn(name, "machine", False, partial(_text, name))
    factor = BY_NAME[name]
    heading = factor.words.format("").strip() or name.replace("_", " ")
    return TableColumn(name, heading, factor.kind == "int", partial(_text, name))


def _text(column: str, row: Row) -> str:
    return "" if row[column] is None else str(row[column])


# -- what a value looks like ------------------------------------------------------------------------------------------


def with_control_mark(name: str, row: Row) -> str:
    """The name of a row's cell, marked where it is the baseline's twin."""
    return f"{name} (A/A)" if row["role"] == CONTROL else name


def four_digits(value: float | None) -> str:
    """Four digits, and no powers of ten for a person to read: 0.08999, 501.4, 45,514."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def number_text(value: float | None, pattern: str, *, scale: float = 1.0) -> str:
    """`scale` times the value; "" for None."""
    return "" if value is None else format(value * scale, pattern)


def speedup_text(row: Row, notation: Notation) -> str:
    """The speedup with its interval, or with the word that it is the baseline."""
    if row["speedup"] is None:
        return ""
    unit = "x" if notation.units_in_cells else ""
    if is_baseline_row(row):
        return f"{row['speedup']:.{notation.decimals}f}{unit} baseline"
    return times(row, decimals=notation.decimals, unit=unit)


def _interval(notation: Notation, row: Row) -> str:
    return "baseline" if is_baseline_row(row) else interval_words(row, decimals=notation.decimals)


def _runs(row: Row) -> str:
    return f"{row['runs_ok']} (+{row['runs_failed']} failed)" if row["runs_failed"] else str(row["runs_ok"])


def outcome_text(row: Row) -> str:
    """The status, and why it is not ok, or that it was measured no further."""
    if row["status"] == OK and row["out_of_race_after"] is not None:
        return f"{OK}, out of the race after {row['out_of_race_after']} blocks"
    return f"{row['status']}: {row['reason']}" if row["status"] != OK and row["reason"] else str(row["status"])


# -- the columns ------------------------------------------------------------------------------------------------------


def _texts() -> tuple[TableColumn, ...]:
    """Names, counts and outcomes, the same in every notation. `series` needs the names that charts give to rows."""
    return (
        TableColumn("strategy", "strategy", False, lambda row: with_control_mark(row["strategy"], row)),
        TableColumn("series", "strategy", False, lambda row: with_control_mark(row["series"], row)),
        TableColumn("n", "n", True, partial(_text, "pairs")),
        TableColumn("runs", "runs", True, _runs),
        TableColumn("status", "status", False, partial(_text, "status")),
        TableColumn("reason", "reason", False, partial(_text, "reason")),
        TableColumn("outcome", "status", False, outcome_text),
    )


def _figures(notation: Notation) -> tuple[TableColumn, ...]:
    """Columns of figures. `memory` is that of the fullest GPU, or on CPU of all ranks; the other two are either."""
    both = "speedup" if notation.units_in_cells else "speedup [95 %]"
    return (
        _plain("epoch_seconds", notation.heading("epoch", "s"), four_digits),
        _plain("samples_per_second", "samples/s", four_digits),
        TableColumn("speedup_and_interval", both, True, partial(speedup_text, notation=notation)),
        _plain("speedup", "speedup", partial(number_text, pattern=f".{notation.decimals}f")),
        TableColumn("interval", "95 % interval", True, partial(_interval, notation)),
        _share(notation, "efficiency", "efficiency", decimals=0),
        _share(notation, "test_accuracy", "accuracy", decimals=1),
        _memory(notation, "memory", "memory", lambda row: row["peak_memory_bytes"] or row["host_peak_rss_bytes"]),
        _memory(notation, "peak_memory", "peak memory", lambda row: row["peak_memory_bytes"]),
        _memory(notation, "host_memory", "host memory", lambda row: row["host_peak_rss_bytes"]),
        TableColumn("cost", notation.heading("COST", "devices"), True, partial(_text, "cost_devices")),
    )


def _plain(column: str, heading: str, show: Callable[[Any], str]) -> TableColumn:
    return TableColumn(column, heading, True, lambda row: show(row[column]))


def _share(notation: Notation, column: str, name: str, *, decimals: int) -> TableColumn:
    """A share of 1, as a fraction or as percent of `decimals`."""
    if not notation.percent:
        return _plain(column, name, partial(number_text, pattern=f".{decimals + 2}f"))
    if notation.units_in_cells:
        return _plain(column, name, partial(number_text, pattern=f".{decimals}%"))
    return _plain(column, notation.heading(name, "%"), partial(number_text, pattern=f".{decimals}f", scale=100))


def _memory(notation: Notation, key: str, name: str, value: Callable[[Row], int | None]) -> TableColumn:
    heading, unit = (name, " GiB") if notation.units_in_cells else (notation.heading(name, "GiB"), "")

    def show(row: Row) -> str:
        text = number_text(value(row), ".2f", scale=1 / GIB)
        return text and text + unit

    return TableColumn(key, heading, True, show)


def markdown_lines(table: Sequence[Sequence[str]]) -> list[str]:
    """A table, its headings first, as lines of Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]
