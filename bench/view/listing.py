"""The lists of `bench list`, one line an entry; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strategies import StrategyEntry

LISTS = ("strategies", "workloads", "presets", "columns")


def lines(what: str, *, strategy_files: tuple[Path, ...] = ()) -> Iterator[str]:
    """The lines of one list. Raises UserError for a strategy file that is not there."""
    if what == "strategies":
        from bench.plan import registry

        entries = registry.known_strategies(strategy_files).entries.values()
        yield from _aligned((entry.name, _of_strategy(entry)) for entry in entries)
    elif what == "workloads":
        from bench.workloads import WORKLOADS

        yield from _aligned((entry.name, entry.description) for entry in WORKLOADS.values())
    elif what == "presets":
        from bench.plan.matrix import load_matrix, preset_names

        yield from _aligned((name, load_matrix(name).description) for name in preset_names())
    else:
        from bench.results.columns import RUN_COLUMNS

        yield from _aligned(
            (column.name, f"{column.kind:5} {column.unit:8} {column.meaning}") for column in RUN_COLUMNS
        )


def _of_strategy(entry: StrategyEntry) -> str:
    """What it is, or why it cannot be used, and what it still needs here."""
    needs = f"; needs {', '.join(entry.missing)}, not installed here" if entry.missing else ""
    return entry.broken or f"{entry.description}{needs}"


def columns_markdown() -> str:
    """The tables of all columns as results/README.md shows them."""
    from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS, SUMMARY_COLUMNS

    parts = []
    for name, columns in (("runs.csv", RUN_COLUMNS), ("steps.csv", STEP_COLUMNS), ("summary.csv", SUMMARY_COLUMNS)):
        # A bar inside a cell would end it.
        cells = [(c.name, c.kind, c.unit, c.meaning.replace("|", r"\|")) for c in columns]
        rows = "\n".join(f"| {' | '.join(row)} |" for row in cells)
        parts.append(f"### {name}\n\n| column | type | unit | meaning |\n| --- | --- | --- | --- |\n{rows}\n")
    return "\n".join(parts)


def _aligned(pairs: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = list(pairs)
    width = max(len(name) for name, _ in rows)
    return (f"{name:{width}}  {text}".rstrip() for name, text in rows)
