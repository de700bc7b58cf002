"""`bench run --dry-run`: cells, and time and memory by the last campaign of this environment; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from campaigns import run, toy
from generated import row
from planned import planned

from bench.factors import cell_key
from bench.plan.matrix import Group, Matrix
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import write_rows
from bench.run.forecast import CellForecast, _cohorts, _of_cell, _pace, _speed, _steps, last_campaign
from bench.run.pace import Speed

DDP = planned("ddp", 2, batch_global=100)


def stored(folder: Path, *, environment: str = "here", start: str = "2026-01-01T00:00:00Z", **values: Any) -> Path:
    """A campaign of one run: 1 s to start in each of four phases, 10 s for 10 steps."""
    phases = dict.fromkeys(("launch_seconds", "init_seconds", "build_seconds", "warmup_seconds"), 1.0)
    found = row("ddp", 2, 0, environment_id=environment, utc_start=start, **phases, **values)
    folder.mkdir(parents=True)
    write_rows(folder / "runs.csv", RUN_COLUMNS, [found])
    return folder


def test_the_newest_campaign_of_this_environment_tells(tmp_path: Path) -> None:
    stored(tmp_path / "old", start="2026-01-01T00:00:00Z")
    new = stored(tmp_path / "new", start="2026-02-01T00:00:00Z")
    stored(tmp_path / "other", environment="elsewhere", start="2026-03-01T00:00:00Z")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "runs.csv").write_text("no table\n")
    found = last_campaign(tmp_path, "here")
    assert found is not None
    assert found[0] == new
    assert last_campaign(tmp_path, "nowhere") is None
    (told,) = found[1]
    assert cell_key(told) == DDP.key
    assert _speed([told]) == Speed(4.0, 1.0)


def test_a_run_takes_its_start_and_its_steps() -> None:
    rows = [row("ddp", 2, 0, eval_seconds=3.0, host_memory_bytes=500)]
    found = _of_cell(DDP, rows, Speed(4.0, 1.0), 6, Matrix("m", (Group(),), epochs=2))
    # Twice: six steps of a second and an evaluation of three.
    assert (found.seconds, found.memory_bytes) == (4.0 + 2 * (6 + 3.0), 500)


@pytest.mark.parametrize(("chosen", "steps"), [(None, 10), (4, 4), (99, 10), (0, None)])
def test_steps_are_those_asked_for_or_an_epoch_s_or_unknown(chosen: int | None, steps: int | None) -> None:
    assert _steps(chosen, DDP, train_count=1050) == steps


def test_what_is_not_known_of_every_run_is_not_guessed() -> None:
    matrix = Matrix("m", (Group(),), steps=0, blocks=0, time_target=100.0)
    assert _pace(matrix, [Speed(1.0, 1.0), None])[:2] == (0, None)
    # Two runs of 4 s to start and 1 s a step: round(3 * 2) steps, 20 s a block, five blocks.
    steps, blocks, _ = _pace(matrix, [Speed(4.0, 1.0)] * 2)
    assert (steps, blocks) == (6, 5)


def test_cohorts_are_filled_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.run.forecast.memory_limit_bytes", lambda: 100)
    runs = [CellForecast(DDP, 1, 1.0, memory, "") for memory in (40, 40, 40, 80)]
    # Ninety may be taken: two of forty, one of forty, the one of eighty.
    assert _cohorts(runs) == 3
    assert _cohorts([*runs, CellForecast(DDP, 1, None, None, "")]) is None


def test_the_command_starts_nothing_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    out = tmp_path / "results" / "new"
    arguments = [*toy(out), "--dry-run"]
    first = run(arguments)
    assert first.returncode == 0, first.stderr
    assert "unknown" in first.stdout
    assert "single@2 fp32: unsupported: single uses one device; 2 were asked for" in first.stdout
    assert not out.parent.exists()
    told = json.loads(run([*arguments, "--json"]).stdout)
    assert told["seconds"] is None
    assert [cell["steps"] for cell in told["cells"] if cell["status"] == "planned"] == [3] * len(
        [cell for cell in told["cells"] if cell["status"] == "planned"]
    )
    assert run(toy(out)).returncode == 0
    known = json.loads(run([*toy(out.parent / "next"), "--dry-run", "--json"]).stdout)
    assert known["source"] == str(out)
    assert known["seconds"] > 0
    assert known["cohorts"] == 1
