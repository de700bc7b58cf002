"""Runs side by side: who has the floor when, how steps are dealt, what forms a cohort, and what of it is measured."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import Life, fake_runs
from generated import row, table
from planned import planned
from test_rows import epoch, facts, measurement

from bench.factors import CONTROL, Baseline
from bench.floor import FIRST_TURN, REST, TURN, Floor, deal
from bench.machine.environment import spinning
from bench.machine.room import Room
from bench.plan.matrix import Group, Matrix
from bench.results.cells import judged_cells
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import read_rows
from bench.results.summary import campaign_summary, summarise
from bench.run import campaign
from bench.run.campaign import Runner
from bench.run.interrupts import Interrupted
from bench.run.job import Job
from bench.run.launch import Outcome
from bench.run.pipes import Pipes
from bench.run.store import Store
from bench.run.turns import turns_of
from bench.view.progress import Quiet
from bench.wire import RunSpec
from bench.worker.timing import ClockTimer, TurnTimer
from strategies.places import Place

BATCH = {"batch_global": 100, "uses_process_group": True}
BASE = planned("single", 1, **BATCH)
TWIN = BASE.changed(role=CONTROL)
DDP = planned("ddp", 2, **BATCH)
LOADER = planned("ddp", 2, data_pipeline="loader", **BATCH)
TURNS = [FIRST_TURN, TURN, REST]


# -- dealing and timing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "turns", "dealt"),
    [(8, 4, [2, 2, 2, 2]), (8, 3, [2, 3, 3]), (5, 4, [1, 1, 1, 2]), (3, 9, [1, 1, 1]), (4, 1, [4]), (0, 3, [0])],
)
def test_steps_are_dealt_evenly_and_no_turn_is_without_one(steps: int, turns: int, dealt: list[int]) -> None:
    assert deal(steps, turns) == dealt


@pytest.mark.parametrize(
    ("seconds", "steps", "turns"),
    [
        # 12 s in the mean are six turns of two seconds.
        ([16.0, 8.0], [20, 20], 6),
        # Short runs have four turns all the same, and none that has no step.
        ([2.0, 2.0], [8, 8], 4),
        ([2.0, 2.0], [3, 8], 3),
        ([100.0], [6], 6),
        # Nothing is known of their speed: every step is a turn.
        ([], [5, 9], 5),
    ],
)
def test_turns_are_about_as_long_as_asked_and_of_whole_steps(
    seconds: list[float], steps: list[int], turns: int
) -> None:
    assert turns_of(seconds, steps, turn_seconds=2.0) == turns


def test_what_happens_between_turns_is_not_timed() -> None:
    """A clock that only moves when it is told to: steps of 1 s, 10 s between turns, and a wait for data of 0.25 s."""
    now = [0]
    barriers = []
    given = []

    def away() -> None:
        given.append(now[0])
        now[0] += 10_000_000_000

    timer = TurnTimer(
        lambda: ClockTimer(lambda: None, lambda: barriers.append(now[0]), clock=lambda: now[0]), [2, 1], away
    )
    timer.start()
    for _ in range(3):
        now[0] += 250_000_000
        timer.data_ready()
        now[0] += 750_000_000
        timer.gradients_ready()
        timer.step_done()
    found = timer.stop()
    assert (found.total, found.turns) == (pytest.approx(3.0), [pytest.approx(2.0), pytest.approx(1.0)])
    assert found.steps == [pytest.approx(1.0)] * 3
    assert found.data_wait == [pytest.approx(0.25)] * 3
    assert given == [2_000_000_000]
    # All ranks meet at the beginning of each turn.
    assert barriers == [0, 12_000_000_000]


# -- the floor ---------------------------------------------------------------------------------------------------------


def test_a_rank_without_a_channel_never_waits() -> None:
    floor = Floor("r", 0)
    assert (floor.shared, floor.wait(TURN), floor.waited_seconds) == (False, {}, 0.0)


def test_a_run_waits_when_all_its_ranks_do_and_goes_on_with_what_it_is_told() -> None:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    folders: list[Any] = []
    pipes = Pipes(heard, folders.append)
    told: dict[int, Any] = {}
    try:
        places = [pipes.variables("r", rank) for rank in range(2)]

        def rank(number: int) -> None:
            place = places[number]
            floor = Floor("r", number, orders=place["STRATEGYBENCH_ORDERS"], says=place["STRATEGYBENCH_SAYS"])
            told[number] = floor.wait(FIRST_TURN, step_seconds=0.5 + number)

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        said = []
        for thread in threads:
            thread.start()
            who, messages = heard.get(timeout=20)
            assert who is pipes
            said += [pipes.heard(message, 2) for message in messages]
        # The slowest rank's speed is the run's.
        assert said == [None, {"run": "r", "waits": FIRST_TURN, "step_seconds": 1.5}]
        pipes.give("r", {"turns": 3})
        for thread in threads:
            thread.join(20)
        assert told == {0: {"turns": 3}, 1: {"turns": 3}}
        folder = Path(places[0]["STRATEGYBENCH_SAYS"]).parent
        assert folders == [{"folder": str(folder)}]
        pipes.forget("r")
        assert [path.name for path in folder.iterdir()] == ["says"]
    finally:
        pipes.close()
    assert not folder.exists()


# -- what a campaign does ----------------------------------------------------------------------------------------------


def measured(spec: RunSpec, *, seconds: float = 1.0, turns: int = 2) -> Outcome:
    ranks = spec.processes
    shape: dict[str, Any] = {"timed_seconds": [seconds] * ranks, "turn_seconds": [[seconds / turns] * turns] * ranks}
    shape |= {"step_seconds": [[seconds / 2] * 2] * ranks, "data_wait": [[0.0] * 2] * ranks, "turn_steps": [1, 1]}
    shape |= {"samples": [[100 // ranks] * 2] * ranks, "parameter_hashes": ["a"] * ranks}
    return Outcome("ok", measurement=measurement(epoch(**shape)))


def in_turns(spec: RunSpec) -> list[str | Outcome]:
    return [*(TURNS if spec.turns else []), measured(spec)]


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    life: Life = in_turns,
    *,
    cells: Iterable[Any] = (BASE, TWIN, DDP),
    readings: Iterable[dict[str, Any]] = (),
    rooms: Iterable[str] = (),
    **matrix: Any,
) -> tuple[int, list[dict[str, Any]], list[tuple[str, str]]]:
    """Exit code, rows, and what happened in which order. `rooms` is what `full` answers, one after the other."""
    answers = iter(rooms)
    monkeypatch.setattr(Room, "full", lambda self: next(answers, ""))
    monkeypatch.setattr(campaign, "memories", lambda gpus: {})
    order, _ = fake_runs(monkeypatch, life, readings)
    asked = Matrix("m", (Group(strategies=("single", "ddp")),), **matrix)
    store = Store(folder)
    try:
        code = Runner(Job(asked, list(cells), facts(), {}, "bench run"), store, Quiet()).run()
    finally:
        store.close()
    return code, read_rows(folder / "runs.csv", RUN_COLUMNS), order


def names(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{row['role']} {row['strategy']}" for row in rows]


def test_one_run_at_a_time_has_the_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are started, one after the other; then rounds in which each has a turn; then what follows, one at a time."""
    code, rows, order = run(tmp_path, monkeypatch)
    assert code == 0
    assert [what for _, what in order] == ["start"] * 3 + [FIRST_TURN] * 3 + [TURN] * 3 + [REST, "end"] * 3
    runs = [name for name, _ in order]
    assert runs[9::2] == runs[10::2] == runs[:3]
    for first in (3, 6):
        assert sorted(runs[first : first + 3]) == sorted(runs[:3])
    assert [(row["cohort"], row["turns"], row["cohort_reason"]) for row in rows] == [(0, 2, "")] * 3


def test_rounds_are_in_random_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def long(spec: RunSpec) -> list[str | Outcome]:
        return [FIRST_TURN, *[TURN] * 11, REST, measured(spec)]

    _, _, order = run(tmp_path, monkeypatch, long)
    turns = [name for name, what in order if what in (FIRST_TURN, TURN)]
    rounds = {tuple(turns[first : first + 3]) for first in range(0, 36, 3)}
    assert len(rounds) > 2


def test_a_run_that_fails_in_its_turn_is_judged_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def life(spec: RunSpec) -> list[str | Outcome]:
        if spec.cell["strategy"] == "ddp":
            return [FIRST_TURN, Outcome("crashed", "rank 1 in timed: RuntimeError: no", 1)]
        return in_turns(spec)

    code, rows, order = run(tmp_path, monkeypatch, life)
    assert code == 1
    assert {row["strategy"]: row["status"] for row in rows if row["role"] == "measure"} == {
        "single": "ok",
        "ddp": "crashed",
    }
    assert [what for name, what in order if "ddp" in name] == ["start", FIRST_TURN, "end"]


def test_a_run_that_is_killed_while_it_waits_is_seen_at_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, _ = fake_runs(monkeypatch, in_turns)
    watched = campaign.Attempt.__init__.__globals__["Watched"]
    seen = watched.look

    def look(self: Any) -> Outcome | None:
        if "ddp" in self.spec.run_id and self.waits == TURN:
            return Outcome("crashed", "rank 0 was ended by SIGKILL", -9)
        return seen(self)  # type: ignore[no-any-return]

    monkeypatch.setattr(campaign, "memories", lambda gpus: {})
    monkeypatch.setattr(watched, "look", look)
    store = Store(tmp_path)
    try:
        matrix = Matrix("m", (Group(strategies=("single", "ddp")),))
        Runner(Job(matrix, [BASE, DDP], facts(), {}, "bench run"), store, Quiet()).run()
    finally:
        store.close()
    assert {row["strategy"]: row["status"] for row in read_rows(tmp_path / "runs.csv", RUN_COLUMNS)} == {
        "single": "ok",
        "ddp": "crashed",
    }
    assert (next(name for name, _ in order if "ddp" in name), TURN) not in order


def test_what_memory_has_no_room_for_forms_a_cohort_with_a_baseline_and_twin_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [planned("ddp", 2, accumulate=count, **BATCH) for count in (1, 2)]
    _, rows, _ = run(tmp_path, monkeypatch, cells=[BASE, TWIN, *others], rooms=["", "", "host memory: 1 of 9 GiB"])
    first, second = ([row for row in rows if row["cohort"] == cohort] for cohort in (0, 1))
    assert len(first) == 3
    assert {"measure single", "control single"} <= set(names(second))
    assert {row["cohort_reason"] for row in second} == {"there was no room left in host memory: 1 of 9 GiB"}
    assert {row["attempt"] for row in second} == {1}
    assert len({row["run_id"] for row in rows}) == len(rows)
    # Whichever run was left over is compared with the baseline of its own cohort.
    summary = campaign_summary(tmp_path)
    assert set(summary.loc[summary["status"] == "ok", "pairs"]) <= {1, 2}
    assert summary["speedup"].notna().all()


def test_runs_that_work_between_turns_are_measured_one_by_one_beside_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, rows, order = run(tmp_path, monkeypatch, cells=[BASE, TWIN, DDP, LOADER])
    assert code == 0
    apart = [row for row in rows if row["cohort"] == 1]
    assert sorted(names(apart)) == ["control single", "measure ddp", "measure single"]
    assert {row["cohort_reason"] for row in apart} == {"its loader workers work between turns"}
    assert [what for name, what in order if "-c1" in name] == ["start", "end"] * 3


@pytest.mark.parametrize(
    ("cells", "matrix", "reason"),
    [
        ([BASE, TWIN, DDP], {"turns": "off"}, "turns are off, as asked"),
        (
            [cell.changed(data_pipeline="loader") for cell in (BASE, TWIN, DDP)],
            {},
            "its loader workers work between turns",
        ),
    ],
)
def test_where_the_baseline_takes_no_turns_nobody_does(
    cells: list[Any], matrix: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rows, order = run(tmp_path, monkeypatch, cells=cells, **matrix)
    assert [what for _, what in order] == ["start", "end"] * 3
    assert {(row["cohort"], row["cohort_reason"]) for row in rows} == {(0, reason)}


def test_without_loader_workers_the_loader_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows, _ = run(tmp_path, monkeypatch, cells=[BASE, LOADER], loader_workers=0)
    assert {row["cohort"] for row in rows} == {0}


def test_a_rank_that_serves_has_no_turns() -> None:
    served = planned("ps", 3, places=(Place(part=0), Place(part=1), Place(part=None, role="serve")))
    from bench.run.cohorts import works_between_turns

    assert "serves" in works_between_turns(served, loader_workers=0)
    assert works_between_turns(DDP, loader_workers=2) == ""


def test_out_of_memory_beside_others_is_tried_once_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def life(spec: RunSpec) -> list[str | Outcome]:
        if spec.cell["strategy"] == "ddp" and spec.turns:
            return [Outcome("oom", "rank 0 in warmup: OutOfMemoryError")]
        return in_turns(spec)

    code, rows, order = run(tmp_path, monkeypatch, life)
    assert code == 0
    ddp = [row for row in rows if row["strategy"] == "ddp"]
    assert [(row["status"], row["attempt"], row["cohort"]) for row in ddp] == [("oom", 1, 0), ("ok", 2, 1)]
    assert [row["repeated_for"] for row in ddp] == ["it ran out of memory beside other runs", ""]
    # With the baseline of its own cohort, and without its twin: it was made for one run.
    assert sorted(names(row for row in rows if row["cohort"] == 1)) == ["measure ddp", "measure single"]
    assert [what for name, what in order if "-c1" in name] == ["start", "end"] * 2


def test_out_of_memory_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def life(spec: RunSpec) -> list[str | Outcome]:
        if spec.cell["strategy"] == "ddp":
            return [Outcome("oom", "rank 0 in warmup: OutOfMemoryError")]
        return in_turns(spec)

    code, rows, _ = run(tmp_path, monkeypatch, life)
    assert code == 1
    assert [row["status"] for row in rows if row["strategy"] == "ddp"] == ["oom", "oom"]


def test_a_disturbed_baseline_is_repeated_with_all_that_were_compared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, busy = {"foreign_cpu_fraction": 0.0}, {"foreign_cpu_fraction": 0.5}

    def readings() -> Iterable[dict[str, Any]]:
        # The runs are over in the order of their start; the first cohort's order is that of the block.
        order = campaign.block_order([BASE, TWIN, DDP], seed=0, block=0)
        yield from (busy if cell.key == BASE.key else calm for cell in order)

    _, rows, _ = run(tmp_path, monkeypatch, readings=readings(), repeat_disturbed=1)
    assert sorted(names(row for row in rows if row["cohort"] == 1)) == [
        "control single",
        "measure ddp",
        "measure single",
    ]
    assert {row["attempt"] for row in rows if row["cohort"] == 1} == {2}
    (ddp,) = [cell for cell in campaign_summary(tmp_path).to_dict("records") if cell["strategy"] == "ddp"]
    assert ddp["pairs"] == 1


def test_a_disturbed_run_is_repeated_beside_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, busy = {"foreign_cpu_fraction": 0.0}, {"foreign_cpu_fraction": 0.5}
    order = campaign.block_order([BASE, TWIN, DDP], seed=0, block=0)
    readings = [busy if cell.key == DDP.key else calm for cell in order]
    _, rows, _ = run(tmp_path, monkeypatch, readings=readings, repeat_disturbed=1)
    again = [row for row in rows if row["cohort"] == 1]
    assert sorted((row["strategy"], row["attempt"]) for row in again) == [("ddp", 2), ("single", 1)]
    summary = campaign_summary(tmp_path).set_index(["role", "strategy"])
    # The repeat stands for the first; the baseline of both cohorts counts.
    assert summary.loc[("measure", "ddp"), "runs_ok"] == 1
    assert summary.loc[("measure", "ddp"), "pairs"] == 1
    assert summary.loc[("measure", "single"), "runs_ok"] == 2


def test_an_interruption_gives_every_live_run_a_row_and_a_resumed_campaign_a_new_cohort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def life(spec: RunSpec) -> Iterable[str | Outcome]:
        yield FIRST_TURN
        if spec.cell["strategy"] == "ddp":
            raise Interrupted("SIGINT")
        yield TURN
        yield REST
        yield measured(spec)

    code, rows, order = run(tmp_path, monkeypatch, life)
    assert code == 130
    assert [row["status"] for row in rows] == ["interrupted"] * 3
    assert [what for _, what in order[-3:]] == ["end"] * 3
    code, rows, _ = run(tmp_path, monkeypatch)
    assert code == 0
    new = rows[3:]
    assert {(row["cohort"], row["attempt"], row["status"]) for row in new} == {(1, 2, "ok")}
    assert {row["cohort_reason"] for row in new} == {"measured after the campaign had been interrupted"}


def test_what_was_interrupted_without_its_baseline_is_compared_with_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline was ended in what follows its turns; ddp had its row: without a baseline it would be lost."""
    order = campaign.block_order([BASE, DDP], seed=0, block=0)

    def life(spec: RunSpec) -> Iterable[str | Outcome]:
        yield from TURNS
        if spec.cell["strategy"] == "single":
            raise Interrupted("SIGTERM")
        yield measured(spec)

    _, rows, _ = run(tmp_path, monkeypatch, life, cells=[BASE, DDP])
    finished = order[0].key == DDP.key
    assert sorted((row["strategy"], row["status"]) for row in rows) == [
        ("ddp", "ok" if finished else "interrupted"),
        ("single", "interrupted"),
    ]
    code, rows, _ = run(tmp_path, monkeypatch, cells=[BASE, DDP])
    assert code == 0
    assert {row["strategy"] for row in rows if row["cohort"] == 1} == {"single", "ddp"}
    (ddp,) = [cell for cell in campaign_summary(tmp_path).to_dict("records") if cell["strategy"] == "ddp"]
    assert ddp["pairs"] == 1


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_runs_are_paired_by_block_and_cohort() -> None:
    """ddp of the second cohort against that cohort's baseline, twice as fast as the first one's: 300 / 200."""
    rows = [
        row("single", 1, 0, seconds=10.0, cohort=0, run_id="a"),
        row("single", 1, 0, seconds=5.0, cohort=1, run_id="b"),
        row("ddp", 2, 0, seconds=10 / 3, cohort=1, run_id="c"),
    ]
    cells = judged_cells(table(rows), Baseline.parse(None))
    by_name = {cell["strategy"]: cell for cell in cells}
    assert len(by_name["single"].ok_runs) == 2
    assert by_name["ddp"].paired_rates(by_name["single"]) == ([pytest.approx(300.0)], [200.0])


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ""),
        ({"OMP_WAIT_POLICY": "passive"}, ""),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY=ACTIVE"),
        ({"GOMP_SPINCOUNT": "INFINITY"}, "GOMP_SPINCOUNT=INFINITY"),
        ({"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "infinite"}, "KMP_BLOCKTIME=infinite"),
    ],
)
def test_what_has_waiting_threads_spin_is_known(variables: dict[str, str], said: str) -> None:
    assert spinning(variables) == said


@pytest.mark.parametrize(("threads", "turns", "warned"), [(2, "auto", True), (1, "auto", False), (2, "off", False)])
def test_it_is_warned_of_where_runs_wait(
    threads: int, turns: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(campaign, "memories", lambda gpus: {})
    fake_runs(monkeypatch, in_turns)
    store = Store(tmp_path)
    try:
        asked = Matrix("m", (Group(strategies=("single", "ddp")),), turns=turns)
        of = replace(facts(), threads_per_device=threads)
        Runner(Job(asked, [BASE, DDP], of, {}, "bench run"), store, Quiet()).run()
    finally:
        store.close()
    assert ("OMP_WAIT_POLICY=active has the threads" in capsys.readouterr().err) is warned


def test_a_gain_between_cohorts_goes_over_the_baselines_of_both() -> None:
    """ddp@1 is 0.5 times its cohort's baseline, ddp@2 1.5 times that of its own, on a machine now twice as fast: 3."""
    rows = [
        row("single", 1, 0, seconds=10.0, cohort=0, run_id="a"),
        row("ddp", 1, 0, seconds=20.0, cohort=0, run_id="b"),
        row("single", 1, 0, seconds=5.0, cohort=1, run_id="c"),
        row("ddp", 2, 0, seconds=10 / 3, cohort=1, run_id="d"),
    ]
    summary = summarise(table(rows)).set_index(["strategy", "devices"])
    assert summary.loc[("ddp", 2), "gain_from_devices"] == pytest.approx(3.0)


def test_runs_are_ordered_by_plan_and_campaigns_by_when_they_were_begun() -> None:
    """The clock was put back in the middle of the first campaign."""
    rows = [
        row("single", 1, block, campaign_id=name, run_id=f"{name}{block}", order_in_block=0, utc_start=start)
        for name, block, start in (
            ("z", 0, "2026-01-01T00:00:00Z"),
            ("z", 1, "2025-12-31T23:00:00Z"),
            ("a", 0, "2026-02-01T00:00:00Z"),
        )
    ]
    (cell,) = judged_cells(table(rows[::-1]), Baseline.parse(None))
    assert [run.first("run_id") for run in cell.runs] == ["z0", "z1", "a0"]
