"""The race in campaigns: from their rows alone, in the blocks that are measured, in table, stop rule and resume."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_runs
from generated import row, table
from planned import planned
from summaries import key, summary_of
from test_judge import measured
from test_rows import facts

from bench.plan.matrix import Group, Matrix
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import read_rows, write_rows
from bench.results.speedups import judged_by, pair_log_ratios, race
from bench.run.campaign import Runner
from bench.run.job import Job
from bench.run.racing import out_of_race, still_racing
from bench.run.stopping import decide
from bench.run.store import Store
from bench.view.maintable import outcome_text
from bench.view.progress import Quiet
from bench.wire import RunSpec

WIGGLE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)
RACE = Matrix("m", (Group(),), race=True, blocks=0)


def rows_of(blocks: int, *, slow_until: int = 99, **values: Any) -> list[dict[str, Any]]:
    """single 10 s, ddp@2 5 s and dp@2 20 s, which is measured in the blocks below `slow_until`."""
    rows = []
    for block in range(blocks):
        rows += [row("single", 1, block), row("single", 1, block, role="control", seconds=10.0 * WIGGLE[block - 1])]
        rows.append(row("ddp", 2, block, seconds=5.0 * WIGGLE[block], **values))
        if block < slow_until:
            rows.append(row("dp", 2, block, seconds=20.0))
    return rows


def out(rows: list[dict[str, Any]], baseline: str | None = None) -> dict[str, int]:
    judged = judged_by(table(rows), baseline)
    names = {item.cell.key: item.cell["strategy"] for item in judged}
    return {names[cell]: why.after_blocks for cell, why in race(judged).items()}


# -- from the rows ----------------------------------------------------------------------------------------------------


def test_the_race_is_replayed_from_rows() -> None:
    assert out(rows_of(2)) == {}
    assert out(rows_of(3)) == {"dp": 3}
    assert out(rows_of(6, slow_until=3)) == {"dp": 3}


def test_a_block_that_is_not_whole_decides_nothing_yet() -> None:
    rows = rows_of(3)
    assert out(rows[:-1]) == {}
    interrupted = row("dp", 2, 2, seconds=None, status="interrupted", timed_samples=None)
    assert out([*rows[:-1], interrupted]) == {}
    # A run that failed is one that was measured; the cell itself has only two of three and is not judged yet.
    assert out([*rows[:-1], row("dp", 2, 2, seconds=None, status="crashed", timed_samples=None)]) == {}


def test_the_baseline_and_its_twin_are_never_out() -> None:
    assert out(rows_of(6)) == {"dp": 3}


def test_a_cell_that_turned_out_invalid_beats_nobody() -> None:
    """ddp's loss leaves the baseline's band: single beats dp then, by 2 instead of 4."""
    judged = judged_by(table(rows_of(4, loss_first=9.0)), None)
    (why,) = race(judged).values()
    assert why.ratio == pytest.approx(2.0)


def test_cells_race_among_those_of_one_baseline() -> None:
    """Under weak scaling work and baseline are others: its speedups say nothing of those under strong scaling."""
    weak = [row("single", 1, block, scaling="weak") for block in range(4)]
    weak += [row("fsdp2", 2, block, seconds=40.0, scaling="weak", batch_global=200) for block in range(4)]
    assert out([*rows_of(4), *weak]) == {"dp": 3, "fsdp2": 3}
    (dp, fsdp2) = sorted(race(judged_by(table([*rows_of(4), *weak]), None)).values(), key=lambda why: -why.ratio)
    # dp's 20 s against ddp's 5; fsdp2's 1,000 samples in 40 s against single's in 10, though ddp's are faster.
    assert (dp.ratio, fsdp2.ratio) == (pytest.approx(4.0, rel=0.01), pytest.approx(4.0))
    assert dp.beaten_by != fsdp2.beaten_by


# -- table, stop rule, next block -------------------------------------------------------------------------------------


def test_the_table_marks_who_is_out_and_keeps_the_interval() -> None:
    found = summary_of(rows_of(6, slow_until=3), raced_over="")
    dp, ddp = found[key("dp", 2)], found[key("ddp", 2)]
    assert (dp["out_of_race_after"], dp["pairs"], dp["flag_keys"]) == (3, 3, "out_of_race")
    assert dp["speedup"] == pytest.approx(0.5)
    assert dp["flags"].startswith("out of the race: after 3 blocks ddp@2 fp32 had 4.00 times its speedup (p = ")
    assert outcome_text(dp) == "ok, out of the race after 3 blocks"
    assert (ddp["out_of_race_after"], outcome_text(ddp)) == (None, "ok")
    # A campaign without the race has none out, however far apart its cells are.
    assert summary_of(rows_of(6))[key("dp", 2)]["out_of_race_after"] is None


def test_the_stop_rule_waits_only_for_cells_in_the_race() -> None:
    five = rows_of(5, slow_until=3)
    five = [made | {"timed_seconds": 20.0 + made["block"]} if made["strategy"] == "dp" else made for made in five]
    assert set(pair_log_ratios(table(five), raced=True)) < set(pair_log_ratios(table(five)))
    raced = decide(RACE, five, blocks_done=5, seconds=1.0)
    alone = decide(Matrix("m", (Group(),), blocks=0), five, blocks_done=5, seconds=1.0)
    # dp's three times, 20 to 22 s, leave ± 12 %; ddp's five ± 2 %.
    assert (raced.stop, alone.stop) == (True, False)


def test_the_next_block_is_without_the_cells_that_are_out_and_their_breakdowns() -> None:
    cells = {
        name: planned(name, devices, batch_global=100, role=role)
        for name, devices, role in (("single", 1, "measure"), ("ddp", 2, "measure"), ("dp", 2, "measure"))
    }
    twins = [cells["single"].changed(role="control"), cells["dp"].changed(role="breakdown")]
    told = out_of_race(RACE, rows_of(4))
    assert told == {
        cells["dp"].key: "dp@2 fp32 is out of the race after 3 blocks: ddp@2 fp32 had 4.00 times its speedup",
    }
    assert still_racing([*cells.values(), *twins], told) == [cells["single"], cells["ddp"], twins[0]]
    assert out_of_race(Matrix("m", (Group(),)), rows_of(4)) == {}
    assert out_of_race(RACE, []) == {}


# -- a campaign of made-up runs ---------------------------------------------------------------------------------------

CELLS = [planned("single", 1, batch_global=100)] + [
    planned(name, 2, batch_global=100, uses_process_group=True) for name in ("ddp", "dp")
]


def counted(folder: Path, monkeypatch: pytest.MonkeyPatch, *, blocks: int) -> Counter[str]:
    """How many runs of each strategy the folder has once the campaign is begun, or goes on, to that many blocks."""

    def life(spec: RunSpec) -> list[Any]:
        outcome = measured(spec, loss=2.0)
        assert outcome.measurement is not None
        slower = 10.0 if spec.cell["strategy"] == "dp" else 1.0
        for one in outcome.measurement.epochs:
            one.timed_seconds[:] = [slower * seconds for seconds in one.timed_seconds]
        return [outcome]

    fake_runs(monkeypatch, life)
    store = Store(folder)
    try:
        matrix = Matrix("m", (Group(),), blocks=blocks, race=True)
        assert Runner(Job(matrix, CELLS, facts(), {}, "bench run"), store, Quiet()).run() == 0
    finally:
        store.close()
    return Counter(found["strategy"] for found in read_rows(folder / "runs.csv", RUN_COLUMNS))


def test_a_campaign_measures_a_cell_until_it_is_out_and_goes_on_so_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counted(tmp_path, monkeypatch, blocks=5) == {"single": 5, "ddp": 5, "dp": 3}
    assert counted(tmp_path, monkeypatch, blocks=7) == {"single": 7, "ddp": 7, "dp": 3}
    # The same, where the campaign had been ended within its third block.
    rows = [made for made in read_rows(tmp_path / "runs.csv", RUN_COLUMNS) if made["block"] < 3]
    kept = [made for made in rows if made["block"] < 2 or made["strategy"] == "single"]
    other = tmp_path / "other"
    other.mkdir()
    write_rows(other / "runs.csv", RUN_COLUMNS, kept)
    # What is missing of the third block is measured beside a run of the baseline of its own.
    assert counted(other, monkeypatch, blocks=5) == {"single": 6, "ddp": 5, "dp": 3}
