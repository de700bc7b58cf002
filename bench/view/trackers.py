"""A campaign's rows in an experiment tracker: TensorBoard, or Weights & Biases without an account.

Fed from runs.csv and summary.csv alone, after the measurement: no tracker ever runs beside a timed region. One
tracker run a cell; the step is the block, so that repeats lie side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from bench.errors import UserError
from bench.factors import CELL_COLUMNS, OK, Baseline, varying
from bench.results.cells import judged_runs
from bench.results.csvfile import Row
from bench.results.folder import Campaign

TRACKERS = ("tensorboard", "wandb")
METRICS = (
    "samples_per_second",
    "epoch_seconds",
    "step_seconds_median",
    "step_seconds_p95",
    "data_wait_seconds",
    "peak_memory_bytes_max",
    "host_peak_rss_bytes",
    "loss_first",
    "loss_last",
    "test_accuracy",
)


def track(folder: Path, tracker: str, *, out: Path) -> list[str]:
    """Write a campaign's ok rows to a tracker under `out`; returns the names of the tracker's runs, one a cell.

    Raises UserError for an unknown tracker, and for one that is not installed.
    """
    if tracker not in TRACKERS:
        raise UserError(f"unknown tracker {tracker!r}; known are {', '.join(TRACKERS)}")
    cells = _cells(Campaign(folder))
    if not cells:
        raise UserError(f"{folder} holds no run that counts, so there is nothing to track")
    out.mkdir(parents=True, exist_ok=True)
    write = _to_tensorboard if tracker == "tensorboard" else _to_wandb
    try:
        write(cells, out)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'strategybench[{tracker}]'") from None
    return list(cells)


def _cells(campaign: Campaign) -> dict[str, list[Row]]:
    """The ok rows by cell, named by the factors that vary in this campaign."""
    judged = judged_runs(campaign.runs, Baseline.parse(campaign.baseline_option))
    counts = set(judged.index[judged["status"] == OK])
    rows = [row for number, row in enumerate(campaign.run_rows) if number in counts]
    found = varying(rows)
    shown = [name for name in CELL_COLUMNS if name in found or name in ("strategy", "devices")]
    cells: dict[str, list[Row]] = {}
    for row in rows:
        name = "-".join(str(row[factor]) for factor in shown if row[factor] not in ("", None))
        cells.setdefault(name.replace("/", "_"), []).append(row)
    return cells


def _points(rows: list[Row]) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, metrics) of each row; the step counts blocks, or epochs where a run has several."""
    epochs = max(row["epoch"] or 1 for row in rows)
    for row in rows:
        step = (row["block"] or 0) * epochs + (row["epoch"] or 1) - 1
        yield step, {name: float(row[name]) for name in METRICS if row[name] is not None}


def _to_tensorboard(cells: Mapping[str, list[Row]], out: Path) -> None:
    from tensorboard.summary import Writer

    for name, rows in cells.items():
        writer = Writer(str(out / name))
        for step, metrics in _points(rows):
            for metric, value in metrics.items():
                writer.add_scalar(metric, value, step)
        writer.close()


def _to_wandb(cells: Mapping[str, list[Row]], out: Path) -> None:
    import wandb

    # Nothing leaves the machine unless the user has said so in WANDB_MODE, which the library reads itself.
    mode: Literal["offline"] | None = None if "WANDB_MODE" in os.environ else "offline"
    for name, rows in cells.items():
        first = rows[0]
        run = wandb.init(
            project="strategybench",
            group=str(first["campaign_id"]),
            name=name,
            dir=str(out),
            mode=mode,
            config={factor: first[factor] for factor in CELL_COLUMNS},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        for step, metrics in _points(rows):
            run.log(metrics, step=step)
        run.finish()
    # Its service would run on for as long as this process.
    wandb.teardown()
