"""Trackers get the rows' own values, through the real libraries, without an account or a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_campaign import Options, write_campaign

from bench.errors import UserError
from bench.results.folder import Campaign
from bench.view.trackers import METRICS, track


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("campaign")
    write_campaign(place, Options())
    return place


def ok_rows(folder: Path, strategy: str, devices: int) -> list[dict]:
    return [
        row
        for row in Campaign(folder).run_rows
        if (row["strategy"], row["devices"]) == (strategy, devices)
        and (row["status"], row["role"]) == ("ok", "measure")
    ]


def _events(events: Any, metric: str) -> list[Any]:
    return events.Tensors(metric) if metric in events.Tags()["tensors"] else []


def test_tensorboard_reads_back_what_the_rows_say(folder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    names = track(folder, "tensorboard", out=tmp_path)
    rows = ok_rows(folder, "single", 1)
    name = "single-1-fp32-measure"
    assert name in names
    events = EventAccumulator(str(tmp_path / name))
    events.Reload()
    assert len(rows) > 1
    for metric in METRICS:
        expected = {row["block"]: row[metric] for row in rows if row[metric] is not None}
        found = {event.step: float(make_ndarray(event.tensor_proto)) for event in _events(events, metric)}
        assert found == pytest.approx(expected, rel=1e-6), metric


def test_wandb_writes_an_offline_run_a_cell(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = track(folder, "wandb", out=tmp_path)
    runs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == len(names) >= 2
    assert all(b"samples_per_second" in path.read_bytes() for path in runs)


def test_an_unknown_tracker_lists_the_known(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="known are tensorboard, wandb"):
        track(folder, "mlflow", out=tmp_path)


@pytest.mark.parametrize(("tracker", "module"), [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_library_is_named(
    tracker: str, module: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.summary", None)
    with pytest.raises(UserError, match=rf"pip install 'strategybench\[{tracker}\]'"):
        track(folder, tracker, out=tmp_path)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "track", str(folder), "--to", "tensorboard", "--out", str(tmp_path / "tb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "single-1" in done.stdout
    assert list((tmp_path / "tb").iterdir())
