"""How many steps and blocks fit a time: worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.plan.matrix import Group, Matrix
from bench.run.pace import Speed, choose, seconds_of
from bench.run.resume import _raised
from bench.run.stopping import decide


@pytest.mark.parametrize(
    ("speed", "asked", "steps", "blocks"),
    [
        # 10 runs: 40 s to start, 10 s a step. 3 * sqrt(4) = 6 steps, a block of 100 s: three in 300 s.
        (Speed(4.0, 1.0), {}, 6, 3),
        (Speed(4.0, 1.0), {"target": 1000.0}, 6, 10),
        # Starting takes no time: the fewest steps, and as many blocks as there may be, then steps fill what is left:
        # 1000 / 5 blocks = 200 s, 20 steps.
        (Speed(0.0, 1.0), {"target": 1000.0, "max_blocks": 5}, 20, 5),
        # 6 steps would leave room for two blocks: (240 / 3 - 40) / 10 = 4 steps.
        (Speed(4.0, 1.0), {"target": 240.0}, 4, 3),
        # Not even the fewest fit: the floor wins.
        (Speed(4.0, 1.0), {"target": 60.0}, 4, 3),
        # As many blocks as asked: (300 / 2 - 40) / 10 = 11 steps.
        (Speed(4.0, 1.0), {"blocks": 2}, 11, 2),
        # A slow start asks for long runs: 3 * sqrt(400) = 60, but three blocks of them do not fit.
        (Speed(10.0, 0.025), {"target": 600.0}, 60, 5),
    ],
)
def test_steps_and_blocks(speed: Speed, asked: dict[str, Any], steps: int, blocks: int) -> None:
    found = choose([speed] * 10, **{"runs": 10, "target": 300.0, "blocks": 0, "max_blocks": 30} | asked)
    assert (found.steps, found.blocks) == (steps, blocks)


def test_of_some_runs_the_others_speed_is_guessed() -> None:
    assert choose([Speed(4.0, 1.0)] * 5, runs=10, target=300.0, blocks=0, max_blocks=30).blocks == 3


def test_an_overrun_is_announced() -> None:
    found = choose([Speed(4.0, 1.0)] * 10, runs=10, target=60.0, blocks=0, max_blocks=30)
    assert found.message == (
        "4 timed steps a run, about 3 blocks of 1 min 20 s: 4 min 0 s, longer than the time target of 1 min 0 s, "
        "since no run has fewer than 4 steps and no campaign fewer than 3 blocks"
    )
    fits = choose([Speed(4.0, 1.0)] * 10, runs=10, target=300.0, blocks=0, max_blocks=30)
    assert "longer" not in fits.message


TARGET = Matrix("m", (Group(),), blocks=0, steps=0, time_target=100.0)


@pytest.mark.parametrize(
    ("done", "seconds", "before", "stop"),
    [
        # A fourth block of 26 s would end at 104 s of 105.
        (3, 78.0, 0.0, False),
        (3, 80.0, 0.0, True),
        # Never under three, whatever they take.
        (2, 500.0, 0.0, False),
        # What earlier sessions took counts.
        (4, 1.0, 90.0, True),
    ],
)
def test_blocks_fill_the_time(done: int, seconds: float, before: float, stop: bool) -> None:
    decision = decide(TARGET, [], blocks_done=done, seconds=seconds, seconds_before=before, block_seconds=26.0)
    assert decision.stop is stop
    if stop:
        assert decision.reason == f"{done} blocks fill the time target of 1 min 40 s"


def test_the_time_of_runs_is_the_sum_of_their_phases() -> None:
    """Everything is exclusive. What a run has once stands in the rows of both its epochs."""
    phases = {"launch_seconds": 1.0, "init_seconds": None, "build_seconds": 2.0, "warmup_seconds": 3.0}
    rows = [phases | {"run_id": "a", "timed_seconds": 10.0, "eval_seconds": epoch} for epoch in (0.5, 0.25)]
    assert seconds_of(rows) == 6.0 + 20.75


@pytest.mark.parametrize(
    ("name", "old", "new", "raised"),
    [
        ("blocks", 3, 5, True),
        ("blocks", 5, 3, False),
        ("blocks", 0, 5, False),
        ("time_target", 300.0, 1200.0, True),
        ("time_limit", 60.0, None, True),
        ("max_blocks", 30, 40, True),
        ("precision_target", 0.02, 0.01, True),
        ("precision_target", 0.01, 0.02, False),
        ("steps", 4, 8, False),
        ("control", False, True, False),
    ],
)
def test_more_of_the_same_needs_no_force(name: str, old: Any, new: Any, raised: bool) -> None:
    assert _raised(name, old, new) is raised
