"""Which runs count: each way of being wrong, and that being right passes."""

import pytest

from bench.results.lossgate import loss_gate
from bench.run.gates import run_gate, samples
from bench.wire import EpochMeasurement
from strategies.places import Place, Plan, data_parallel

PLAN = data_parallel(2)


def epoch(**changes):
    values = {
        "epoch": 1,
        "timed_seconds": [1.0, 2.0],
        "step_seconds": [[1.0], [2.0]],
        "data_wait": [[0.0], [0.0]],
        "samples": [[60, 40], [60, 40]],
        "loss_first": 2.3,
        "loss_last": 2.0,
        "finite": True,
        "skipped_steps": 0,
        "parameter_hashes": ["a", "a"],
    }
    return EpochMeasurement(**(values | changes))


def judge(measured, plan=PLAN, *, expected=200):
    return run_gate(measured, plan, expected_samples=expected, test_count=50)


def test_a_right_run_passes():
    assert judge(epoch()) == "passed"
    assert judge(epoch(evaluated=50, correct=12)) == "passed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finite": False, "loss_first": None, "loss_last": None}, "not finite"),
        ({"parameter_hashes": ["a", "b"]}, "parameters differ between replicas: 2 versions"),
        ({"samples": [[60, 40], [60, 39]]}, "199 samples were trained on, 200 should have been"),
        ({"samples": [[61, 40], [60, 40]]}, "201 samples were trained on, 200 should have been"),
        ({"evaluated": 52, "correct": 9}, "52 test samples were evaluated, there are 50"),
        ({"evaluated": 0, "correct": 0}, "0 test samples were evaluated, there are 50"),
    ],
)
def test_each_wrong_run_is_told_why(changes, words):
    assert words in judge(epoch(**changes))


def test_ranks_of_a_piece_are_compared_with_one_another():
    """Ranks 0 and 1 hold the pieces a and b of one copy, ranks 2 and 3 those of the other; each pair reads a part."""
    plan = Plan(tuple(Place(part=rank // 2, piece=rank % 2) for rank in range(4)))
    four = {"samples": [[100], [100], [100], [100]]}
    assert judge(epoch(**four, parameter_hashes=["a", "b", "a", "b"]), plan) == "passed"
    assert "parameters of piece 1 differ" in judge(epoch(**four, parameter_hashes=["a", "b", "a", "c"]), plan)
    assert "parameters of piece 0 differ" in judge(epoch(**four, parameter_hashes=["a", "b", "b", "a"]), plan)


def test_where_no_two_ranks_hold_the_same_there_is_nothing_to_compare():
    plan = Plan(tuple(Place(part=rank, piece=rank) for rank in range(2)))
    assert judge(epoch(parameter_hashes=["a", "b"]), plan) == "passed"


def test_samples_of_a_part_count_once_however_many_ranks_read_it():
    plan = Plan((Place(part=0, piece=0), Place(part=0, piece=1)))
    measured = epoch(samples=[[60, 40], [60, 40]], parameter_hashes=["a", "b"])
    assert samples(measured, plan) == 100
    assert judge(measured, plan, expected=100) == "passed"
    unlike = epoch(samples=[[60, 40], [60, 30]], parameter_hashes=["a", "b"])
    assert judge(unlike, plan, expected=100) == "the ranks that read part 0 took unlike numbers of samples: [90, 100]"


def test_a_rank_that_serves_trains_on_nothing_and_holds_nothing_to_compare():
    plan = Plan((Place(part=0), Place(part=1), Place(role="serve")))
    measured = epoch(samples=[[60, 40], [60, 40], []], parameter_hashes=["a", "a", "z"])
    assert judge(measured, plan) == "passed"


def test_losses_are_judged_only_where_the_baseline_has_some():
    assert loss_gate(99.0, 2.0, None, None) is None
    assert "first timed step is 99, the baseline's 2.3" in (loss_gate(99.0, 2.0, 2.3, 2.0) or "")


@pytest.mark.parametrize(
    ("first", "last", "passes"),
    [
        (2.3 * 1.099, 2.0, True),
        (2.3 * 1.101, 2.0, False),
        (2.3 * 0.899, 2.0, False),
        (2.3, 2.0 * 1.249, True),
        (2.3, 2.0 * 1.251, False),
        (2.3, 2.0 * 0.749, False),
    ],
)
def test_the_band_is_ten_percent_of_the_first_loss_and_a_quarter_of_the_last(first, last, passes):
    assert (loss_gate(first, last, 2.3, 2.0) is None) is passes


def test_near_zero_the_band_has_an_absolute_floor():
    assert loss_gate(0.049, 0.0, 0.0, 0.0) is None
    assert "may differ by 0.05" in (loss_gate(0.051, 0.0, 0.0, 0.0) or "")
