"""The command `bench`. A subcommand imports what it needs when it runs, so that `--help` and `list` start at once."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, UserError
from bench.run.interrupts import Interrupted

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
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no table.")]
Json = Annotated[
    bool, typer.Option("--json", help="Last line of stdout: one JSON document with all that the table shows.")
]
Folders = Annotated[list[Path], typer.Argument(help="Results folders.")]


@app.command()
def run(
    matrix: Annotated[
        str | None, typer.Argument(help="Preset or TOML file; default gpu where there are GPUs, else cpu.")
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas between; see `bench list strategies`.")
    ] = None,
    devices: Annotated[str | None, typer.Option(help="Device counts with commas between, or auto.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    workload: Annotated[str | None, typer.Option(help="See `bench list workloads`.")] = None,
    dataset: Annotated[str | None, typer.Option(help="auto, cifar10, cifar100 or synthetic.")] = None,
    data_root: DataRoot = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="strong (global batch fixed), weak (per-replica batch fixed), or both with a comma."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Global batch (strong) or batch a replica (weak).")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches per optimizer step.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, amp-bf16, amp-fp16; commas between.")] = None,
    memory_format: Annotated[str | None, typer.Option(help="contiguous or channels_last.")] = None,
    data_pipeline: Annotated[
        str | None, typer.Option(help="resident, loader (torchvision transforms and DataLoader) or synthetic_device.")
    ] = None,
    loader_workers: Annotated[int | None, typer.Option(help="DataLoader workers a process.")] = None,
    compile_mode: Annotated[
        str | None, typer.Option("--compile", help="off, default, reduce-overhead or max-autotune.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Timed steps of an epoch, at most its full batches, or epoch.")
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Untimed steps before the model goes back to its start.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to train; one row each.")] = None,
    blocks: Annotated[str | None, typer.Option(help="Repeats of the whole matrix, or auto.")] = None,
    precision_target: Annotated[
        float | None, typer.Option(help="blocks auto: half-width to reach, such as 0.01.")
    ] = None,
    max_blocks: Annotated[int | None, typer.Option(help="blocks auto: most blocks.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds after which no further block begins.")] = None,
    repeat_disturbed: Annotated[
        int | None,
        typer.Option(help="Times to repeat a run that a throttling device or another process disturbed."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and augmentation.")] = None,
    threads_per_device: Annotated[int | None, typer.Option(help="CPU threads of each device.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a single run may take.")] = None,
    baseline: Annotated[str | None, typer.Option(help="NAME[@DEVICES] that speedups refer to.")] = None,
    breakdown: Annotated[
        bool | None, typer.Option("--breakdown", help="Add marked runs that time the parts of a step.")
    ] = None,
    trace: Annotated[
        bool | None,
        typer.Option("--trace", help="With --breakdown: keep the profiler's trace in the run's log folder."),
    ] = None,
    no_control: Annotated[bool, typer.Option("--no-control", help="No A/A twin of the baseline.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="STRATEGY.OPTION=VALUE, commas sweep; repeatable.")
    ] = None,
    find_batch: Annotated[
        bool, typer.Option("--find-batch", help="Measure nothing: search the largest batch a replica that fits.")
    ] = False,
    out: Out = None,
    strategy_file: StrategyFile = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder for the bare model's state after each run.")] = None,
    init_from: Annotated[Path | None, typer.Option(help="Checkpoint to start every run from.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Results folder to continue: only missing runs.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume on another machine, version or matrix.")] = False,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Leave out host and user name.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measure a matrix and end with its speedup table."""
    from bench.run.prepare import Request, comma_list, command_line, parse_settings

    overrides: dict[str, Any] = {
        "strategies": comma_list(strategies, "--strategies"),
        "devices": devices if devices == "auto" else comma_list(devices, "--devices", int),
        "device": device,
        "workload": workload,
        "dataset": dataset,
        "scaling": comma_list(scaling, "--scaling"),
        "batch": batch,
        "accumulate": accumulate,
        "precision": comma_list(precision, "--precision"),
        "memory_format": memory_format,
        "compile": compile_mode,
        "data_pipeline": data_pipeline,
        "loader_workers": loader_workers,
        "steps": _number_or_word(steps),
        "warmup_steps": warmup_steps,
        "epochs": epochs,
        "blocks": _number_or_word(blocks),
        "precision_target": precision_target,
        "max_blocks": max_blocks,
        "time_limit": time_limit,
        "repeat_disturbed": repeat_disturbed,
        "seed": seed,
        "threads_per_device": threads_per_device,
        "timeout": timeout,
        "baseline": baseline,
        "breakdown": breakdown,
        "trace": trace,
        "control": False if no_control else None,
        "options": parse_settings(settings) if settings else None,
    }
    _measure(
        Request(
            matrix=matrix,
            overrides=overrides,
            out=out,
            data_root=data_root,
            strategy_files=tuple(strategy_file or ()),
            checkpoint=checkpoint,
            initial_state=init_from,
            resume=resume,
            force=force,
            anonymous=anonymous,
            command=command_line(),
        ),
        quiet=quiet,
        json=json,
        find_batch=find_batch,
    )


@app.command()
def smoke(
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Out = None,
    data_root: DataRoot = None,
    strategy_file: StrategyFile = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Check that every strategy runs here: the preset `smoke`."""
    from bench.run.prepare import Request, command_line

    request = Request(
        matrix="smoke",
        overrides={"device": device},
        out=out,
        data_root=data_root,
        strategy_files=tuple(strategy_file or ()),
        command=command_line(),
    )
    _measure(request, quiet=quiet, json=json)


def _number_or_word(text: str | None) -> int | str | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return text


def _measure(request: Any, *, quiet: bool, json: bool, find_batch: bool = False) -> None:
    from bench.run.campaign import Runner, measure
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
                lines = Runner(job, store, reporter).find_batches()
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
    format: Annotated[str, typer.Option(help="text, markdown, json or csv.")] = "text",
    force: Annotated[
        bool, typer.Option("--force", help="Compare other machines or versions, and say what differs.")
    ] = False,
) -> None:
    """Say for each cell whether it became faster or slower; exit 4 where one became slower or is missing."""
    from bench.results.compare import compare as compare_campaigns
    from bench.results.compare import render

    comparison = compare_campaigns(base, new, margin=margin, force=force)
    typer.echo(render(comparison, format).rstrip("\n"))
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
