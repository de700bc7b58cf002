"""What a campaign leaves behind once it has stopped: summary, charts, report, and the table on the screen."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from bench.errors import UserError
from bench.results.summary import write_summary


def finish(folder: Path, *, exit_code: int, quiet: bool, json: bool) -> None:
    """Summarise and draw from the CSV files alone, then show the table, or one line of JSON, or nothing."""
    import typer
    from rich.console import Console

    from bench.view.progress import lasting
    from bench.view.table import document, print_table

    if not (folder / "runs.csv").exists():
        typer.echo(f"nothing was measured; {folder}", err=True)
        return
    try:
        write_report([folder], folder, formats=("svg", "png"))
    except (UserError, OSError):
        raise
    except Exception as error:
        # The figures are in the folder, and the table needs no chart.
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        typer.echo(f"no charts or report could be made ({what}); try again with: bench report {folder}", err=True)
    # Where the terminal has gone away the results are in the folder all the same, and so is the exit code's meaning.
    with contextlib.suppress(OSError):
        if not quiet:
            print_table(folder, console=lasting(Console()))
            typer.echo(f"results: {folder}")
        if json:
            typer.echo(document(folder, exit_code=exit_code))


def write_report(folders: Sequence[Path], out: Path, *, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """summary.csv in each folder, and charts and report of all of them in `out`. Returns the report's files."""
    from bench.view.report import build_report

    for folder in folders:
        write_summary(folder)
    return build_report(list(folders), out, formats=formats)
