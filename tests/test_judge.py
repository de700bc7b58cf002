"""One judge: exit code, summary and whatever reads rows agree on what counts, whatever the order of the runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_runs
from generated import failed, row, table
from planned import planned
from test_rows import epoch, facts, measurement

from bench.factors import Baseline
from bench.plan.matrix import Group, Matrix
from bench.results.cells import judged_cells, judged_runs
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import read_rows
from bench.results.summary import campaign_summary
from bench.run.campaign import Runner, exit_code
from bench.run.job import Job
from bench.run.launch import Outcome
from bench.run.store import Store
from bench.view.progress import Quiet
from bench.wire import RunSpec

BATCH = {"batch_global": 100, "uses_process_group": True}
CELLS = [planned("single", 1, **BATCH), planned("ddp", 2, **BATCH)]
SINGLE = Baseline.parse(None)


def measured(spec: RunSpec, *, loss: float) -> Outcome:
    """Two steps of 100 samples over this run's ranks; `ddp` ends at the loss."""
    ranks = spec.processes
    samples = [[100 // ranks] * 2] * ranks
    last = loss if spec.cell["strategy"] == "ddp" else 2.0
    shape: dict[str, Any] = {"timed_seconds": [1.0] * ranks, "step_seconds": [[0.5, 0.5]] * ranks}
    shape |= {"data_wait": [[0.0, 0.0]] * ranks, "samples": samples, "parameter_hashes": ["a"] * ranks}
    return Outcome("ok", measurement=measurement(epoch(**shape, loss_last=last)))


def order_of(folder: Path) -> list[str]:
    return [found["strategy"] for found in read_rows(folder / "runs.csv", RUN_COLUMNS)]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *, loss: float, seed: int, blocks: int = 1) -> int:
    """The exit code of a campaign of `single` and `ddp` whose runs are made up."""

    fake_runs(monkeypatch, lambda spec: [measured(spec, loss=loss)])
    matrix = Matrix("m", (Group(strategies=("single", "ddp")),), seed=seed, blocks=blocks)
    store = Store(folder)
    try:
        return Runner(Job(matrix, CELLS, facts(), {}, "bench run"), store, Quiet()).run()
    finally:
        store.close()


def seed_with(first: str) -> int:
    """A seed whose first block begins with that strategy."""
    for seed in range(100):
        order = list(CELLS)
        random.Random(f"{seed}/0").shuffle(order)
        if order[0]["strategy"] == first:
            return seed
    raise AssertionError(first)


@pytest.mark.parametrize("first", ["single", "ddp"])
@pytest.mark.parametrize(("loss", "code", "status"), [(2.1, 0, "ok"), (9.0, 1, "invalid")])
def test_the_exit_code_is_the_table_s_whichever_cell_ran_first(
    first: str, loss: float, code: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of 9 where the baseline has 2 is outside the band of a quarter."""
    assert run(tmp_path, monkeypatch, loss=loss, seed=seed_with(first)) == code
    # They are over in the order in which they were started.
    assert order_of(tmp_path)[0] == first
    summary = campaign_summary(tmp_path).set_index("strategy")
    assert (summary["status"]["single"], summary["status"]["ddp"]) == ("ok", status)
    # The rows keep what the run itself could know.
    assert {found["status"] for found in read_rows(tmp_path / "runs.csv", RUN_COLUMNS)} == {"ok"}


def test_a_resumed_campaign_ends_with_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, loss=9.0, seed=0) == 1
    # Nothing is missing, so nothing runs: the verdict is of what stands in the file.
    fake_runs(monkeypatch, lambda spec: pytest.fail("measured again"))
    store = Store(tmp_path)
    try:
        matrix = Matrix("m", (Group(strategies=("single", "ddp")),), seed=0, blocks=1)
        assert Runner(Job(matrix, CELLS, facts(), {}, "bench run"), store, Quiet()).run() == 1
    finally:
        store.close()


def code_of(*rows: dict[str, Any]) -> int:
    return exit_code(table(rows).to_dict("records"), baseline="single@1")


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row("single", 1, 0)], 0),
        ([row("single", 1, 0), failed("dp", 2, 0, status="unsupported")], 0),
        ([failed("dp", 2, 0, status="unsupported")], 3),
        ([], 3),
        *(([row("single", 1, 0), failed("ddp", 2, 0, status=status)], 1) for status in ("crashed", "oom", "timeout")),
        ([row("single", 1, 0), row("ddp", 2, 0, status="invalid", reason="why")], 1),
        # An attempt that a later one replaced does not count, one that nothing replaced does.
        ([row("single", 1, 0), failed("ddp", 2, 0), row("ddp", 2, 0, attempt=2)], 0),
        ([row("single", 1, 0), row("ddp", 2, 0), failed("ddp", 2, 0, attempt=2)], 0),
        ([row("single", 1, 0), failed("ddp", 2, 0, status="interrupted")], 0),
        # Runs that time the parts of a step are runs too.
        ([row("single", 1, 0), failed("single", 1, 0, role="breakdown")], 1),
    ],
)
def test_the_exit_code_of_a_campaign(rows: list[dict[str, Any]], code: int) -> None:
    assert code_of(*rows) == code
    assert code_of(*reversed(rows)) == code


def test_what_reads_rows_sees_the_judged_status() -> None:
    """One run of three lies outside the band; one attempt was replaced; a breakdown run is judged like the others."""
    rows = [row("single", 1, block) for block in range(3)]
    rows += [row("ddp", 2, 0), row("ddp", 2, 1, loss_last=9.0), row("ddp", 2, 2), row("ddp", 2, 2, attempt=2)]
    rows += [row("ddp", 2, 0, role="breakdown", loss_first=9.0)]
    judged = judged_runs(table(rows), SINGLE)
    ddp = judged[(judged["strategy"] == "ddp") & (judged["role"] == "measure")]
    assert list(zip(ddp["block"], ddp["attempt"], ddp["status"], strict=True)) == [
        (0, 1, "ok"),
        (1, 1, "invalid"),
        (2, 2, "ok"),
    ]
    assert ddp["reason"].iloc[1].startswith("loss of the last timed step is 9")
    assert list(judged[judged["role"] == "breakdown"]["status"]) == ["invalid"]
    cell = next(cell for cell in judged_cells(table(rows), SINGLE) if cell["strategy"] == "ddp")
    assert [run.status for run in cell.runs] == ["ok", "invalid", "ok"]
    assert cell.status == "invalid"


def test_other_work_is_not_held_against_the_baseline() -> None:
    rows = [row("single", 1, 0), row("lossy", 1, 0, loss_last=9.0, same_work=False)]
    assert {cell.status for cell in judged_cells(table(rows), SINGLE)} == {"ok"}
    rows[1]["same_work"] = True
    assert {cell.status for cell in judged_cells(table(rows), SINGLE)} == {"ok", "invalid"}
