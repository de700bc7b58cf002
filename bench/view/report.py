"""One page that a colleague understands without the tool: report.html, self-contained, and report.md.

Both are made from the campaign's files alone and are the same bytes for the same files. Everything that comes from a
file is escaped: strategy names, reasons and flags may hold whatever an exception or a plug-in put there.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from bench.factors import FAILED_STATUSES, OK
from bench.files import write_text_atomically
from bench.results import limits
from bench.results.flags import what_to_do
from bench.results.recommend import Answer, answer
from bench.results.summary import summary_rows
from bench.view.charts import DrawResult, draw_groups
from bench.view.charts.forest import noise_floor
from bench.view.charts.groups import ChartData, load_groups
from bench.view.maintable import REPORT, MainTable, main_table, number_text

# The page is meant to be handed on; who measured and on which host is nobody's business but the campaign's.
PRIVATE_FACTS = frozenset({"host", "hostname", "user"})

PAGE_COLUMNS = (
    "series",
    "devices",
    "status",
    "speedup",
    "interval",
    "efficiency",
    "epoch_seconds",
    "samples_per_second",
    "test_accuracy",
    "peak_memory",
    "n",
    "runs",
    "precision",
    "scaling",
    "cost",
    "host_memory",
)
MARKDOWN_COLUMNS = (
    "series",
    "devices",
    "scaling",
    "precision",
    "speedup",
    "interval",
    "efficiency",
    "epoch_seconds",
    "samples_per_second",
    "peak_memory",
    "test_accuracy",
    "n",
    "runs",
    "status",
    "reason",
)


@dataclass(frozen=True)
class Section:
    """One machine and workload as the templates see it."""

    data: ChartData
    result: DrawResult

    @cached_property
    def answer(self) -> Answer:
        return answer(self.data.summary)

    @cached_property
    def page_table(self) -> MainTable:
        """The main table of the page, every cell; a reason has a line of its own there."""
        return main_table(summary_rows(self.data.summary), PAGE_COLUMNS, REPORT)

    @cached_property
    def markdown_table(self) -> MainTable:
        return main_table(summary_rows(self.data.summary), MARKDOWN_COLUMNS, REPORT)

    @cached_property
    def charts(self) -> list[dict[str, str]]:
        """Charts with their picture as a data URI, and as a path beside the report."""
        return [
            {
                "name": chart.name,
                "title": chart.title,
                "description": chart.description,
                "file": f"charts/{chart.paths[0].name}",
                "uri": "data:image/svg+xml;base64," + base64.b64encode(chart.paths[0].read_bytes()).decode("ascii"),
            }
            for chart in self.result.drawn
        ]

    @cached_property
    def skipped(self) -> list[tuple[str, str]]:
        """(names of the charts, reason) of those left out, one entry a reason."""
        reasons: dict[str, list[str]] = {}
        for chart in self.result.skipped:
            reasons.setdefault(chart.reason, []).append(chart.name)
        return [(", ".join(names), reason) for reason, names in reasons.items()]

    @cached_property
    def noise(self) -> str:
        """The noise floor in words."""
        floor = noise_floor(self.data)
        if floor is None:
            return "There is no noise floor: the baseline was not measured under a second name in at least two blocks."
        low, high = floor
        inside = "contains 1, as it should" if low <= 1 <= high else "does not contain 1: trust no small difference"
        return (
            f"The baseline, measured twice in every block under two names, differs from itself by "
            f"[{low:.3f}, {high:.3f}] (95 % interval of the ratio); it {inside}. "
            "A speedup within this range of 1 is noise."
        )

    @cached_property
    def roofline(self) -> list[dict[str, str]]:
        """Each cell's arithmetic against the machine's own matrix-product rate, where `doctor --measure` found it."""
        return limits.arithmetic(self.data.summary, limits.calibration(self.data.environment))

    @cached_property
    def exchange(self) -> list[dict[str, str]]:
        """Each cell's exchange of gradients against the machine's own all-reduce rate."""
        measured = limits.calibration(self.data.environment)
        return limits.exchange(self.data.summary, self.data.standing_runs, measured)

    @cached_property
    def flags(self) -> list[dict[str, str]]:
        """Each flag with the cells that have it and what to do about it."""
        found: dict[tuple[str, str], list[str]] = {}
        for _, row in self.data.summary.iterrows():
            for flag in zip(str(row["flags"]).split(" | "), str(row["flag_keys"]).split(" | "), strict=True):
                if all(flag):
                    found.setdefault(flag, []).append(str(row["cell"]))
        return [
            {"text": text, "cells": _some(cells), "advice": what_to_do(key)}
            for (text, key), cells in sorted(found.items())
        ]

    @cached_property
    def identity(self) -> list[tuple[str, str]]:
        return _facts(self.data.environment.get("identity", {}))

    @cached_property
    def volatile(self) -> list[tuple[str, str]]:
        facts = self.data.environment.get("volatile")
        if not isinstance(facts, Mapping):
            return []
        return _facts({name: value for name, value in facts.items() if name != "calibration"})

    @cached_property
    def published(self) -> list[dict[str, str]]:
        """Published rows with the measured cell of the same strategy and devices beside each."""
        return _published(self.data)

    @cached_property
    def sources(self) -> list[str]:
        """Each source of the published rows once, with author, date and address."""
        rows = self.data.published.rows if self.data.published else []
        return list(dict.fromkeys(f"{row['source']}. {row['author']}, {row['date']}. {row['url']}" for row in rows))

    @cached_property
    def stop_reason(self) -> str:
        return next((str(reason) for reason in self.data.summary["stop_reason"] if reason), "")


def build_report(folders: Iterable[Path], out: Path, *, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Write report.html and report.md, and the charts they show under charts/, into `out`; return the two pages.

    The pages show the SVG files, so `formats` begins with svg; further formats lie beside them. Raises UserError
    when a folder holds no campaign.
    """
    out.mkdir(parents=True, exist_ok=True)
    groups = load_groups(folders)
    sections = [Section(data, result) for data, result in draw_groups(groups, out / "charts", formats=formats)]
    paths = []
    for name in ("report.html", "report.md"):
        text = _templates().get_template(f"{name}.j2").render(sections=sections, several=len(sections) > 1)
        write_text_atomically(out / name, text)
        paths.append(out / name)
    return paths


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["md"] = markdown_text
    environment.filters["code"] = markdown_code
    environment.filters["kind"] = _kind
    return environment


def markdown_text(text: Any) -> str:
    """Text for Markdown in which nothing is markup: one line, with the characters that mean something escaped."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore inside a word is no markup, and names are easier to read without the backslash.
    return re.sub(r"([\\`*\[\]|~#!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", line)


def markdown_code(text: Any) -> str:
    """A code span that holds the text whatever backticks are in it."""
    line = " ".join(str(text).split())
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if "`" in line else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def _kind(status: str) -> str:
    """How the page marks a status."""
    return "ok" if status == OK else "failed" if status in FAILED_STATUSES else "unsupported"


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _facts(facts: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Facts as flat pairs in order of name, without those that name a person or a host."""
    if not isinstance(facts, Mapping):
        return []
    found = []
    for key in sorted(facts, key=str):
        value = facts[key]
        if str(key) in PRIVATE_FACTS or value is None or value in ("", [], {}):
            continue
        if isinstance(value, Mapping):
            found += _facts(value, f"{prefix}{key}.")
        else:
            text = ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
            found.append((f"{prefix}{key}", text))
    return found


def _published(data: ChartData) -> list[dict[str, str]]:
    if data.published is None:
        return []
    rows = []
    for row in data.published.rows:
        own = data.measured
        own = own[(own["strategy"] == row["strategy"]) & (own["devices"] == row["devices"])]
        own = own[(own["scaling"] == row["scaling"]) & own["speedup"].notna()]
        # Published runs without AMP used TF32 or float32 as torch had it: either stands beside them.
        mixed = str(row["precision"]).startswith("amp")
        own = own[own["precision"].str.startswith("amp") == mixed]
        here = own.iloc[0] if len(own) else None
        rows.append(
            {
                **{name: str(row[name]) for name in ("name_in_source", "hardware", "source", "url", "date", "notes")},
                "short": str(row["source"]).split(":", 1)[0],
                "data": f"{row['workload']}, {row['dataset']}",
                "precision": row["precision"],
                "batch": "" if row["batch_global"] is None else str(row["batch_global"]),
                "epoch_seconds": f"{row['epoch_seconds']:.4g}",
                "speedup": number_text(row["speedup"], ".2f"),
                "accuracy": number_text(row["test_accuracy"], ".0f", scale=100),
                "here": "" if here is None else f"{here['speedup']:.2f}",
            }
        )
    return rows
