"""Run rows with a known truth, for tests of everything that reads runs.csv: no process is started for them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import write_rows
from bench.results.folder import frame

_BASE: dict[str, Any] = {column.name: "" if column.kind == "str" else None for column in RUN_COLUMNS} | {
    "schema_version": "1",
    "campaign_id": "c0",
    "attempt": 1,
    "environment_id": "machine",
    "git_commit": "a" * 40,
    "git_dirty": False,
    "role": "measure",
    "device_kind": "cpu",
    "device_name": "A Processor",
    "threads_per_device": 1,
    "workload": "toy",
    "dataset": "synthetic",
    "data_pipeline": "resident",
    "precision": "fp32",
    "memory_format": "contiguous",
    "compile": "off",
    "scaling": "strong",
    "batch_global": 100,
    "accumulate": 1,
    "same_work": True,
    "seed": 0,
    "epoch": 1,
    "status": "ok",
    "epoch_samples": 1000,
    "epoch_measured": True,
    "timed_steps": 10,
    "timed_samples": 1000,
    "loss_first": 2.3,
    "loss_last": 2.0,
}

_TWINS = {
    "single": {"tuned_twin": "single_tuned"},
    "single_tuned": {"tuned_twin": "single_tuned"},
    "ddp_amp": {"plain_twin": "ddp"},
}
"""What a run states of the strategies that belong to its own."""


def row(strategy: str, devices: int, block: int, *, seconds: float | None = 10.0, **values: Any) -> dict[str, Any]:
    """One row of runs.csv: 1,000 samples in `seconds`, unless `values` say otherwise."""
    made = _BASE | _TWINS.get(strategy, {})
    made |= {
        "strategy": strategy,
        "devices": devices,
        "processes": devices,
        "replicas": devices,
        "block": block,
        "order_in_block": 0,
        "utc_start": f"2026-01-01T00:{block:02d}:00+00:00",
        "timed_seconds": seconds,
    }
    made |= values
    if "batch_per_part" not in values and made["batch_global"] is not None:
        made["batch_per_part"] = made["batch_global"] // devices
    if "run_id" not in values:
        role = f"-{made['role']}" if made["role"] != "measure" else ""
        made["run_id"] = f"{strategy}-{devices}-{made['precision']}-{made['scaling']}{role}-b{block}-a{made['attempt']}"
    return made


def failed(strategy: str, devices: int, block: int, *, status: str = "crashed", **values: Any) -> dict[str, Any]:
    """A row of a run that gave no figures."""
    blank = dict.fromkeys(("timed_samples", "timed_steps", "loss_first", "loss_last", "epoch_measured"))
    return row(strategy, devices, block, seconds=None, **{**blank, "status": status, "reason": status, **values})


def table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as `Campaign.runs` would give them."""
    return frame([dict(made) for made in rows], RUN_COLUMNS)


def write_campaign(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    identity: Mapping[str, Any] | None = None,
    matrix: str = "",
) -> Path:
    """A results folder with runs.csv, and with environment.json and matrix.toml where they are given."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "runs.csv", RUN_COLUMNS, rows)
    if identity is not None:
        document = {"environment_id": rows[0]["environment_id"], "identity": dict(identity), "volatile": {}}
        (folder / "environment.json").write_text(json.dumps(document), encoding="utf-8")
    if matrix:
        (folder / "matrix.toml").write_text(matrix, encoding="utf-8")
    return folder


def noisy_campaign(
    *, seed: int, blocks: int = 5, noise: float = 0.02, slower: Mapping[str, float] | None = None, **values: Any
) -> list[dict[str, Any]]:
    """Six cells with a control, lognormal noise a run and a common factor a block.

    `slower` multiplies the seconds of the strategies it names; `values` go into every row.
    """
    random = np.random.default_rng(seed)
    cells = [("single", 1, "measure"), ("single", 1, "control"), ("ddp", 1, "measure"), ("ddp", 2, "measure")]
    cells += [("ddp_syncbn", 2, "measure"), ("ddp_mp", 2, "measure")]
    made = []
    for block in range(blocks):
        for order, place in enumerate(random.permutation(len(cells))):
            strategy, devices, role = cells[place]
            seconds = 10 / devices**0.9 * float(np.exp(random.normal(0, noise)))
            seconds *= (slower or {}).get(strategy, 1.0)
            made.append(row(strategy, devices, block, seconds=seconds, role=role, order_in_block=order, **values))
    return made
