"""A comparison of two campaigns as text, Markdown, JSON or CSV: every format says the same."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from bench.errors import UserError
from bench.factors import varying
from bench.results.compare import VERDICTS, Comparison, Verdict
from bench.results.movement import PAIRED_BY
from bench.view.maintable import markdown_lines

VERDICT_FORMATS = ("text", "markdown", "json", "csv")
NAMING = ("strategy", "devices", "scaling", "precision")
"""Factors with a column of their own; of the others those that tell cells apart stand under `what else`."""

_HEADINGS = ("verdict", *NAMING, "what else", "runs base", "runs new")
_FIGURES = ("base samples/s", "new samples/s", "ratio", "interval", "p (Holm)", "p (rank)", "note")


def verdicts_text(comparison: Comparison, format: str) -> str:
    """The comparison in one of VERDICT_FORMATS. Raises UserError for another format."""
    if format not in VERDICT_FORMATS:
        raise UserError(f"unknown format {format!r}; known are {', '.join(VERDICT_FORMATS)}")
    if format == "json":
        return json.dumps(_document(comparison), indent=2, allow_nan=False) + "\n"
    if format == "csv":
        return _csv(comparison)
    others = _others(comparison.rows)
    table = [list(_HEADINGS + _FIGURES), *(_line(row, others) for row in comparison.rows)]
    counts = {name: sum(row.verdict == name for row in comparison.rows) for name in VERDICTS}
    tally = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no cells"
    body = markdown_lines(table) if format == "markdown" else _aligned(table)
    bullet = "- " if format == "markdown" else ""
    return "\n".join([*(bullet + line for line in comparison.header), "", *body, "", tally]) + "\n"


def _flat(row: Verdict) -> dict[str, Any]:
    values = asdict(row)
    return {**values.pop("factors"), **values}


def _document(comparison: Comparison) -> dict[str, Any]:
    return {
        "header": list(comparison.header),
        "margin": comparison.margin,
        "confidence": comparison.confidence,
        "exit_code": comparison.exit_code,
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

    interval = "" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
    factors = [str(row.factors[name]) for name in NAMING]
    other = ", ".join(f"{name}={row.factors[name]}" for name in others if row.factors[name] not in (None, ""))
    rates = [number(value, ",.1f") for value in (row.base_samples_per_second, row.new_samples_per_second)]
    tests = [number(value, ".3g") for value in (row.p_holm, row.p_mann_whitney)]
    runs = [str(row.base_runs), str(row.new_runs)]
    return [row.verdict, *factors, other, *runs, *rates, number(row.ratio, ".3f"), interval, *tests, row.note]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest value, empty ones left out."""
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
