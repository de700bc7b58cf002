"""Gates from facts: what was really trained, and that honest runs of an unusual kind pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_gates import PLAN, epoch, judge

from bench.results.lossgate import work_gate
from bench.run.gates import leak, run_gate
from bench.worker.tally import Tally
from strategies.places import Place, Plan

RIGHT: dict[str, Any] = {
    "loss_samples": [100, 100],
    "optimizer_steps": [1, 1],
    "update_norms": [0.5, 0.5],
    "trainable_values": [10, 10],
    "trainable_due": 10,
    "gradient_names": ["a", "b"],
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # A fused optimizer is called in a skipped step too, another is not.
        {"step_seconds": [[1.0] * 4, [2.0] * 4], "optimizer_steps": [4, 4], "skipped_steps": 1},
        {"step_seconds": [[1.0] * 4, [2.0] * 4], "optimizer_steps": [3, 3], "skipped_steps": 1},
        {"gradient_names": None},
        dict.fromkeys(RIGHT),
    ],
)
def test_work_that_was_done_passes(changes: dict[str, Any]) -> None:
    assert judge(epoch(**RIGHT | changes)) == "passed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_samples": [100, 50]}, "the loss was computed of 150 samples, 200 were handed out"),
        ({"loss_samples": [0, 0]}, "the loss was computed of 0 samples, 200 were handed out"),
        ({"optimizer_steps": [1, 0]}, "the optimizer of rank 1 took 0 steps in 1 timed ones"),
        ({"optimizer_steps": [2, 1]}, "the optimizer of rank 0 took 2 steps in 1 timed ones"),
        ({"skipped_steps": 1}, "all 1 optimizer steps were skipped by the loss scaler"),
        ({"update_norms": [0.5, 0.0]}, "the timed steps did not change the parameters of rank 1"),
        ({"update_norms": [None, 0.5]}, "the parameters of rank 0 are not finite after the timed steps"),
        ({"trainable_values": [9, 9]}, "9 values are trained, the bare model has 10"),
        ({"gradient_names": []}, "no parameter had a gradient in warm-up"),
    ],
)
def test_work_that_was_not_done_is_told(changes: dict[str, Any], words: str) -> None:
    assert words in judge(epoch(**RIGHT | changes))


def test_replicas_that_are_made_equal_after_the_clock_has_stopped_were_not() -> None:
    assert judge(epoch(**RIGHT, unsettled_hashes=["a", "b"])) == "passed"
    differs = run_gate(
        epoch(**RIGHT, unsettled_hashes=["a", "b"]), PLAN, expected_samples=200, test_count=50, same_work=True
    )
    assert "differed between replicas until settle()" in differs
    same = epoch(**RIGHT, unsettled_hashes=["a", "a"], restored=True)
    assert run_gate(same, PLAN, expected_samples=200, test_count=50, same_work=True) == "passed"
    assert "did not go back to their start after warm-up" in judge(epoch(**RIGHT, restored=False))


def test_the_loss_of_a_part_may_live_on_one_of_its_readers() -> None:
    stages = Plan((Place(part=0, piece=0), Place(part=0, piece=1)))
    facts = RIGHT | {"samples": [[100], [100]], "parameter_hashes": ["a", "b"], "loss_samples": [0, 100]}
    assert judge(epoch(**facts), stages, expected=100) == "passed"


def test_the_optimizer_may_be_where_a_rank_serves() -> None:
    plan = Plan((Place(part=0), Place(part=1), Place(role="serve")))
    facts = {"samples": [[60, 40], [60, 40], []], "parameter_hashes": ["a", "a", "z"]}
    facts |= {name: [*RIGHT[name], 0] for name in ("loss_samples", "update_norms", "trainable_values")}
    assert judge(epoch(**RIGHT | facts | {"optimizer_steps": [0, 0, 2]}), plan) == "passed"
    assert judge(epoch(**RIGHT | facts | {"optimizer_steps": [0, 0, 0]}), plan) == "no optimizer took a step"


def test_work_is_compared_with_the_baseline_s() -> None:
    base = {"trainable_values": 10, "gradient_tensors": 2, "gradient_names_hash": "x", "update_norm": 1.0}
    base |= {"changed_tensors": 20}
    assert work_gate(base | {"changed_tensors": 18}, base) is None
    few = work_gate(base | {"changed_tensors": 17}, base)
    assert few == "the timed steps changed 17 parameters, the baseline's 20"
    assert work_gate(base, base) is None
    assert work_gate(base | {"update_norm": 3.9}, base) is None
    assert "changed the parameters by 4.1, the baseline's by 1" in (work_gate(base | {"update_norm": 4.1}, base) or "")
    assert "by 0.2," in (work_gate(base | {"update_norm": 0.2}, base) or "")
    assert work_gate(base | {"trainable_values": 9}, base) == "9 values are trained, the baseline trains 10"
    other = {"gradient_names_hash": "y", "gradient_tensors": 1}
    assert work_gate(base | other, base) == "1 parameters had a gradient, 2 the baseline's: they are not the same"
    # What an older file does not hold is not judged.
    assert work_gate({}, base) is None
    assert work_gate(base, dict.fromkeys(base, "")) is None


@pytest.mark.parametrize(
    ("first", "again", "precision", "leaks"),
    [
        (2.0, 2.0, "fp32", False),
        (2.0, 2.001, "fp32", False),
        (2.0, 2.01, "fp32", True),
        (2.0, 2.01, "amp-bf16", False),
        (2.0, 2.1, "amp-bf16", True),
        (None, 2.0, "fp32", False),
        (2.0, None, "fp32", False),
    ],
)
def test_a_first_loss_that_does_not_come_again_is_a_warning(
    first: float | None, again: float | None, precision: str, leaks: bool
) -> None:
    assert bool(leak(epoch(warmup_loss_first=first, loss_first=again), precision)) is leaks


# -- counting ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tally() -> Any:
    made = Tally()
    yield made
    made.close()


def parameter() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def test_samples_count_where_a_gradient_is_to_follow(tally: Tally) -> None:
    loss = tally.counting(torch.nn.functional.mse_loss)
    loss(torch.zeros(4, 2, requires_grad=True), torch.ones(4, 2)).backward()
    with torch.no_grad():
        loss(torch.zeros(8, 2), torch.ones(8, 2))
    # Computed, and never learned from.
    loss(torch.zeros(16, 2, requires_grad=True), torch.ones(16, 2))
    weight = torch.zeros(2, 2, requires_grad=True)
    torch.autograd.grad(loss(weight, torch.ones(2, 2)), weight)
    assert tally.samples == 4 + 2
    tally.start()
    assert tally.samples == 0


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_steps_count_once_they_are_taken(tally: Tally, options: dict[str, bool]) -> None:
    optimizer = tally.made(torch.optim.SGD([parameter()], lr=0.1, **options))
    assert tally.steps == 0
    optimizer.step()
    optimizer.step()
    assert tally.steps == 2


def test_nothing_counts_once_the_clock_has_stopped(tally: Tally) -> None:
    optimizer = tally.made(torch.optim.SGD([parameter()], lr=0.1))
    loss = tally.counting(torch.nn.functional.mse_loss)
    tally.stop()
    optimizer.step()
    loss(torch.zeros(4, 2, requires_grad=True), torch.ones(4, 2)).backward()
    assert (tally.steps, tally.samples) == (0, 0)
    tally.start()
    optimizer.step()
    assert tally.steps == 1


def test_of_several_optimizers_the_idlest_is_told(tally: Tally) -> None:
    busy, idle = (tally.made(torch.optim.SGD([parameter()], lr=0.1)) for _ in range(2))
    busy.step()
    busy.step()
    idle.step()
    assert tally.steps == 1


def test_an_optimizer_of_the_strategy_s_own_counts_where_the_workload_made_none(tally: Tally) -> None:
    torch.optim.Adam([parameter()]).step()
    assert tally.steps == 1


def test_a_scaler_that_skips_takes_no_step(tally: Tally) -> None:
    one = parameter()
    assert one.grad is not None
    one.grad.fill_(float("inf"))
    optimizer = tally.made(torch.optim.SGD([one], lr=0.1))
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    assert tally.steps == 0
