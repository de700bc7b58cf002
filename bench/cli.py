"""The command `bench`. A subcommand imports what it needs when it runs, so that `--help` and `list` start at once."""

from __future__ import annotations

import errno
import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from bench.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, UserError
from bench.plan.matrix import Matrix
from bench.plan.options import HOW_MUCH, PANELS, RESULTS, Option, factor_options, from_words, options_of
from bench.run.interrupts import Interrupted
from bench.run.request import Request

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Windows lacks some of these numbers.
_PATH_ERROR_NAMES = ("EACCES", "EPERM", "EEXIST", "ENOTDIR", "EISDIR", "ENAMETOOLONG", "ELOOP", "ESTALE")
PATH_ERRORS = tuple(getattr(errno, name) for name in _PATH_ERROR_NAMES if hasattr(errno, name))

app = typer.Typer(
    name="bench",
    help="Compare parallel training strategies on this machine: measure, summarise, draw, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="The data of the workloads.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option(help="Results folder; default results/<utc>-<host>-<preset>.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the datasets; default the user's cache folder.")]
StrategyFile = Annotated[list[Path] | None, typer.Option(help="Python file with a STRATEGIES table; repeatable.")]
QuietSwitch = Annotated[bool, typer.Option("--quiet", help="No progress, no table.")]
JSON_HELP = "Last line of stdout: one JSON document with all that the table shows."
JsonSwitch = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Folders = Annotated[list[Path], typer.Argument(help="Results folders.")]


RUN_OPTIONS: tuple[Option, ...] = (
    *factor_options(),
    *(known for known in (*options_of(Matrix), *options_of(Request)) if known.help),
    Option("dry_run", "Start nothing: show cells, and time and memory by the last campaign here.", HOW_MUCH, "switch"),
    Option("find_batch", "Measure nothing: search the largest batch per part that fits.", HOW_MUCH, "switch"),
    Option("quiet", "No progress, no table.", RESULTS, "switch"),
    Option("json", JSON_HELP, RESULTS, "switch"),
)
"""Every option of `bench run`, in the order of the help page."""

_TYPES: dict[str, Any] = {
    "whole": int,
    "number": float,
    "switch": bool,
    "either": bool,
    "path": Path,
    "paths": list[Path],
    "sets": list[str],
}


class GroupedCommand(TyperCommand):
    """A command whose help page has its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panel_of = {known.spelling.split("/")[0]: known.panel for known in RUN_OPTIONS}
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panel = next((panel_of[name] for name in parameter.opts if name in panel_of), kind)
                groups.setdefault(panel, []).append(record)
        for panel in ("Arguments", *PANELS, "Options"):
            if panel in groups:
                with formatter.section(panel):
                    formatter.write_dl(groups[panel])


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with RUN_OPTIONS as its keyword parameters: typer reads signature and annotations."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            known.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _TYPES.get(known.shape, str) | None,
                typer.Option(known.spelling, help=known.help),
            ],
        )
        for known in RUN_OPTIONS
    ]
    command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    return command


@app.command(cls=GroupedCommand)
@_with_options
def run(
    matrix: Annotated[
        str | None, typer.Argument(help="Preset or TOML file; default gpu where there are GPUs, else cpu.")
    ] = None,
    **given: Any,
) -> None:
    """Measure a matrix and end with its speedup table."""
    values = {known.name: from_words(known, given[known.name]) for known in RUN_OPTIONS}
    asked = {known.name: values.pop(known.name) for known in options_of(Request)}
    asked["strategy_files"] = tuple(asked["strategy_files"] or ())
    flags = {name: bool(values.pop(name)) for name in ("dry_run", "find_batch", "quiet", "json")}
    settled = {name: value for name, value in asked.items() if value is not None}
    request = Request(matrix=matrix, overrides=values, command=command_line(), **settled)
    if flags.pop("dry_run"):
        _show_forecast(request, json=flags["json"])
        return
    _measure(request, **flags)


@app.command()
def smoke(
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Out = None,
    data_root: DataRoot = None,
    strategy_file: StrategyFile = None,
    quiet: QuietSwitch = False,
    json: JsonSwitch = False,
) -> None:
    """Check that every strategy runs here: the preset `smoke`."""
    request = Request(
        matrix="smoke",
        overrides={"device": device},
        out=out,
        data_root=data_root,
        strategy_files=tuple(strategy_file or ()),
        command=command_line(),
    )
    _measure(request, quiet=quiet, json=json)


def command_line(argv: list[str] | None = None) -> str:
    """The command as typed, for the reader who wants to run it again."""
    words = sys.argv[1:] if argv is None else argv
    return "bench " + shlex.join(words)


def _show_forecast(request: Request, *, json: bool) -> None:
    """What the request would measure; nothing is started, fetched or written."""
    from bench.machine.environment import collect
    from bench.run.forecast import forecast
    from bench.run.resolve import naming_lines, resolve
    from bench.view.dryrun import document, print_forecast

    with naming_lines(request):
        resolved = resolve(request, note=lambda text: typer.echo(text, err=True))
    facts = collect(anonymous=request.anonymous, kind=resolved.machine.device_kind)
    root = (request.resume or request.out or Path("results", "new")).parent
    found = forecast(resolved, environment_id=facts["environment_id"], root=root)
    if json:
        typer.echo(document(found))
    else:
        print_forecast(found, root=root)


def _measure(request: Request, *, quiet: bool, json: bool, find_batch: bool = False) -> None:
    from bench.run.campaign import measure
    from bench.run.findbatch import find_batches
    from bench.run.job import write_header
    from bench.run.prepare import prepare_job
    from bench.view.finish import finish
    from bench.view.progress import make_reporter

    reporter = make_reporter(quiet=quiet)
    with reporter:
        job, store = prepare_job(request, reporter)
    try:
        write_header(store, job)
        if find_batch:
            with reporter:
                lines = find_batches(job, store, reporter)
            typer.echo("\n".join([*lines, f"every try: {store.folder / 'batch_search.csv'}"]))
            raise typer.Exit
        code = measure(job, store, reporter)
        finish(store.folder, exit_code=code, quiet=quiet, json=json)
    finally:
        store.close()
    raise typer.Exit(code)


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help="strategies, workloads, presets or columns.")] = "strategies",
    strategy_file: StrategyFile = None,
) -> None:
    """Name what can be asked for."""
    from bench.view.listing import LISTS, lines

    if what not in LISTS:
        raise UserError(f"bench list {what}: there is no such list; known are {', '.join(LISTS)}")
    for line in lines(what, strategy_files=tuple(strategy_file or ())):
        typer.echo(line)


@app.command()
def doctor(
    data_root: DataRoot = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure matrix products and an all-reduce, for the report's roofline.")
    ] = False,
) -> None:
    """What was found on this machine, and what follows for the presets."""
    from bench.view.doctor import collect_findings, measure_rates, render

    render(collect_findings(data_root))
    if measure:
        for line in measure_rates():
            typer.echo(line)


@data_app.command("prepare")
def data_prepare(
    dataset: Annotated[str, typer.Argument(help="cifar10, cifar100 or synthetic.")] = "cifar10",
    data_root: DataRoot = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic data.")] = 0,
) -> None:
    """Find, download, check and convert a dataset before any campaign needs it."""
    from bench.data import prepare
    from bench.view.progress import make_reporter

    with make_reporter(quiet=False) as reporter:
        data = prepare(
            dataset,
            kind="cifar10" if dataset in ("synthetic", "auto") else dataset,
            data_root=data_root,
            seed=seed,
            progress=reporter.download,
            report=reporter.note,
        )
        for text in (*data.warnings, data.notice):
            if text:
                reporter.note(text)
    typer.echo(f"{data.name}: {data.train_count} training and {data.test_count} test samples, {data.fingerprint}")
    typer.echo(f"in {data.train_inputs.parent}")


@app.command()
def plot(folders: Folders, out: Annotated[Path | None, typer.Option(help="Where the charts go.")] = None) -> None:
    """Draw the charts of one or several campaigns from their CSV files."""
    from bench.view.charts import draw_all

    target = out or folders[0] / "charts"
    result = draw_all(folders, target)
    for chart in result.drawn:
        typer.echo(f"drawn {chart.name}: {chart.title}")
    for skipped in result.skipped:
        typer.echo(f"left out {skipped.name}: {skipped.reason}")
    typer.echo(f"in {target}")


@app.command()
def report(folders: Folders, out: Annotated[Path | None, typer.Option(help="Where the report goes.")] = None) -> None:
    """Write summary, charts and report of one or several campaigns from their CSV files."""
    from bench.view.finish import write_report

    for path in write_report(folders, out or folders[0]):
        typer.echo(str(path))


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="Results folder of the earlier campaign.")],
    new: Annotated[Path, typer.Argument(help="Results folder of the later campaign.")],
    margin: Annotated[float, typer.Option(help="SAME: the interval lies within this relative difference.")] = 0.05,
    by: Annotated[
        str,
        typer.Option(
            help="auto: relative to the baseline, and for the baseline what its probe says of the machine; "
            "absolute: samples/s as they are; relative: relative to the baseline only."
        ),
    ] = "auto",
    format: Annotated[str, typer.Option(help="text, markdown, json or csv.")] = "text",
    force: Annotated[
        bool, typer.Option("--force", help="Compare other machines or versions, and say what differs.")
    ] = False,
) -> None:
    """Say for each cell whether it became faster or slower; exit 4 where one became slower or is missing."""
    from bench.results.compare import compare as compare_campaigns
    from bench.view.verdicts import verdicts_text

    comparison = compare_campaigns(base, new, margin=margin, force=force, by=by)
    typer.echo(verdicts_text(comparison, format).rstrip("\n"))
    raise typer.Exit(comparison.exit_code)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Results folder.")],
    format: Annotated[str, typer.Option(help="pytest-benchmark, json, markdown or latex.")] = "markdown",
) -> None:
    """Print a campaign in another format."""
    from bench.view.export import export as export_campaign

    typer.echo(export_campaign(folder, format).rstrip("\n"))


@app.command()
def track(
    folder: Annotated[Path, typer.Argument(help="Results folder.")],
    to: Annotated[str, typer.Option(help="tensorboard or wandb (offline unless WANDB_MODE says otherwise).")],
    out: Annotated[Path | None, typer.Option(help="Where the tracker's files go; default FOLDER/<tracker>.")] = None,
) -> None:
    """Write a campaign's rows to an experiment tracker."""
    from bench.view.trackers import track as track_campaign

    target = out or folder / to
    for name in track_campaign(folder, to, out=target):
        typer.echo(name)
    typer.echo(f"in {target}")


def _told(error: OSError) -> str:
    """The message where a disk refused, or a path that a person gave; "" where it may be a fault of the suite."""
    # The target of a rename is the file that the user knows.
    place = error.filename2 or error.filename
    if error.errno in DISK_ERRORS:
        return f"could not write {place or 'to the disk'}: {error.strerror}; what was measured before is kept"
    if error.errno in PATH_ERRORS and place:
        return f"could not use {place}: {error.strerror}; give another place, or move what is in the way"
    return ""


def main() -> None:
    """Entry point of the command. A user's mistake is one message and exit code 2; anything else may crash loudly."""
    try:
        app()
    except UserError as error:
        typer.echo(f"bench: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:
        message = _told(error)
        if not message:
            raise
        typer.echo(f"bench: {message}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except (KeyboardInterrupt, Interrupted):
        typer.echo("bench: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
