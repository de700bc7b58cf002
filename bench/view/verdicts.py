"""A comparison of two campaigns as text, Markdown, JSON or CSV: every format says the same.

The text is for a terminal of 100 columns, one line a cell; Markdown and CSV have every figure.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from bench.errors import UserError
from bench.factors import BY_NAME, varying
from bench.results.compare import VERDICTS, Comparison, Verdict
from bench.results.movement import ABSOLUTE, CORRECTED, PAIRED_BY, RELATIVE, Contrast
from bench.view.maintable import markdown_lines

VERDICT_FORMATS = ("text", "markdown", "json", "csv")
NAMING = ("strategy", "devices", "scaling", "precision")
"""Factors with a column of their own; of the others those that tell cells apart stand under `what else`."""

_HEADINGS = ("verdict", *NAMING, "what else", "runs base", "runs new")
_FIGURES = (
    "base samples/s",
    "new samples/s",
    "absolute",
    "corrected",
    "relative",
    "by",
    "p (Holm)",
    "p (rank)",
    "note",
)
_RATIOS = {ABSOLUTE: "absolute", CORRECTED: "corrected by probe", RELATIVE: "relative to baseline"}
"""The ratios of a cell, and how a terminal heads them."""

_PREFIXES = {ABSOLUTE: "", CORRECTED: "corrected_", RELATIVE: "relative_"}
_WIDTH = 100


def verdicts_text(comparison: Comparison, format: str) -> str:
    """The comparison in one of VERDICT_FORMATS. Raises UserError for another format."""
    if format not in VERDICT_FORMATS:
        raise UserError(f"unknown format {format!r}; known are {', '.join(VERDICT_FORMATS)}")
    if format == "json":
        return json.dumps(_document(comparison), indent=2, allow_nan=False) + "\n"
    if format == "csv":
        return _csv(comparison)
    counts = {name: sum(row.verdict == name for row in comparison.rows) for name in VERDICTS}
    tally = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no cells"
    header = [*comparison.header, *_machine(comparison), *_baselines(comparison.rows)]
    ending = [*_what_moved(comparison), tally]
    if format == "markdown":
        return "\n".join([*(f"- {line}" for line in header), "", *_markdown(comparison.rows), "", *ending]) + "\n"
    below = [
        line for text in (*_notes(comparison.rows), *ending) for line in wrap(text, _WIDTH, subsequent_indent="  ")
    ]
    return "\n".join([*header, "", *_table(comparison.rows), "", *below]) + "\n"


def _machine(comparison: Comparison) -> list[str]:
    """What the probe says of the machine, in a line."""
    machine = comparison.machine
    if machine.state == "unknown":
        where = f" in {' and '.join(machine.without)}" if machine.without else ""
        return [f"machine: no probe{where}, so nothing says whether it was as fast both times"]
    said = [f"{name} {_words(found)}" for name, found in machine.probes.items() if found is not None]
    lines = [f"machine by its probe: {', '.join(said)}: {machine.state}"]
    if machine.uneven and machine.balance is not None:
        lines.append(
            f"uneven: arithmetic moved by {machine.balance.interval.ratio:.2f} against memory; "
            "relative ratios may hold some of it"
        )
    return lines


def _words(found: Contrast) -> str:
    return _ratio(found.interval.ratio, found.interval.low, found.interval.high)


def _baselines(rows: Sequence[Verdict]) -> list[str]:
    """The absolute figures that ratios are read against."""
    return [
        f"baseline {_cell(row, rows)}: {row.base_samples_per_second:,.1f} samples/s in base, "
        f"{row.new_samples_per_second:,.1f} in new"
        for row in rows
        if row.is_baseline and row.base_samples_per_second and row.new_samples_per_second
    ]


def _what_moved(comparison: Comparison) -> list[str]:
    """One line: the machine, the baselines and the cells that became faster or slower, each by how much."""
    moved = []
    if comparison.machine.state == "moved":
        ratios = [found.interval.ratio for found in comparison.machine.probes.values() if found is not None]
        ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
        moved.append(f"the machine {' to '.join(ends)}")
    for row in comparison.rows:
        if row.verdict in ("FASTER", "SLOWER"):
            what = "the baseline " if row.is_baseline else ""
            moved.append(f"{what}{_cell(row, comparison.rows)} {row.judged[0]:.2f} {_RATIOS[row.by]}")
    return [f"moved, new / base: {', '.join(moved)}"] if moved else []


def _notes(rows: Sequence[Verdict]) -> list[str]:
    """A line for each note, with the cells that have it."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            found.setdefault(row.note, []).append(_cell(row, rows))
    return [f"{', '.join(cells)}: {note}" for note, cells in found.items()]


def _table(rows: Sequence[Verdict]) -> list[str]:
    """One line a cell, with its three ratios; the one that the verdict is about has a star."""
    table = [["verdict", "cell", "runs", *_RATIOS.values()]]
    for row in rows:
        ratios = [f"{'*' if row.by == name else ' '}{_ratio_of(row, name)}".rstrip() for name in _RATIOS]
        table.append([row.verdict, _cell(row, rows), f"{row.base_runs}+{row.new_runs}", *ratios])
    legend = ["", "* what the verdict is about; runs: base + new"] if any(row.by for row in rows) else []
    return [*_aligned(table), *legend]


def _markdown(rows: Sequence[Verdict]) -> list[str]:
    others = _others(rows)
    return list(markdown_lines([list(_HEADINGS + _FIGURES), *(_line(row, others) for row in rows)]))


def _cell(row: Verdict, rows: Sequence[Verdict]) -> str:
    """`ddp@2`, with what else tells it from the other cells of this comparison."""
    rest = [name for name in PAIRED_BY if name not in ("strategy", "devices")]
    told = [BY_NAME[name].words.format(row.factors[name]) for name in varying([one.factors for one in rows], rest)]
    return " ".join([row.name, *(word for word in told if word not in ("", "None"))])


def _ratio_of(row: Verdict, name: str) -> str:
    """One of a cell's ratios with its interval, `0.900 [0.896, 0.904]`; "" where there is none."""
    ratio, low, high = (getattr(row, f"{_PREFIXES[name]}{part}") for part in ("ratio", "low", "high"))
    return "" if ratio is None else _ratio(ratio, low, high)


def _ratio(ratio: float, low: float | None, high: float | None) -> str:
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def _flat(row: Verdict) -> dict[str, Any]:
    values = asdict(row)
    return {**values.pop("factors"), **values}


def _document(comparison: Comparison) -> dict[str, Any]:
    return {
        "header": list(comparison.header),
        "margin": comparison.margin,
        "confidence": comparison.confidence,
        "exit_code": comparison.exit_code,
        "by": comparison.by,
        "machine": {
            "state": comparison.machine.state,
            "uneven": comparison.machine.uneven,
            **{name: asdict(found.interval) if found else None for name, found in comparison.machine.probes.items()},
        },
        "cells": [_flat(row) for row in comparison.rows],
    }


def _csv(comparison: Comparison) -> str:
    names = [*PAIRED_BY, *(name for name in Verdict.__dataclass_fields__ if name != "factors")]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in comparison.rows:
        flat = _flat(row)
        writer.writerow([_csv_value(flat[name]) for name in names])
    return buffer.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def _others(rows: Iterable[Verdict]) -> list[str]:
    """Factors beyond those with a column of their own that tell the cells of this comparison apart."""
    return varying([row.factors for row in rows], [name for name in PAIRED_BY if name not in NAMING])


def _line(row: Verdict, others: Sequence[str]) -> list[str]:
    def number(value: float | None, pattern: str) -> str:
        return "" if value is None else format(value, pattern)

    factors = [str(row.factors[name]) for name in NAMING]
    other = ", ".join(f"{name}={row.factors[name]}" for name in others if row.factors[name] not in (None, ""))
    rates = [number(value, ",.1f") for value in (row.base_samples_per_second, row.new_samples_per_second)]
    tests = [number(value, ".3g") for value in (row.p_holm, row.p_mann_whitney)]
    runs = [str(row.base_runs), str(row.new_runs)]
    ratios = [_ratio_of(row, name) for name in _RATIOS]
    return [row.verdict, *factors, other, *runs, *rates, *ratios, row.by, *tests, row.note]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest value, empty ones left out."""
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
