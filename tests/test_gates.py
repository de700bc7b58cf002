"""Which runs count: each way of being wrong, and that being right passes."""

import pytest

from bench.run.gates import baseline_gate, run_gate
from bench.wire import EpochMeasurement


def epoch(**changes):
    values = {
        "epoch": 1,
        "timed_seconds": [1.0, 2.0],
        "step_seconds": [[1.0], [2.0]],
        "data_wait": [[0.0], [0.0]],
        "samples": 200,
        "loss_first": 2.3,
        "loss_last": 2.0,
        "finite": True,
        "skipped_steps": 0,
        "parameter_hashes": ["a", "a"],
    }
    return EpochMeasurement(**(values | changes))


def judge(measured, *, ranks_per_replica=1):
    return run_gate(measured, expected_samples=200, ranks_per_replica=ranks_per_replica, test_count=50)


def test_a_right_run_passes():
    assert judge(epoch()) == "passed"
    assert judge(epoch(evaluated=50, correct=12)) == "passed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finite": False, "loss_first": None, "loss_last": None}, "not finite"),
        ({"parameter_hashes": ["a", "b"]}, "parameters differ between replicas: 2 versions"),
        ({"samples": 199}, "199 samples were trained on, 200 should have been"),
        ({"samples": 201}, "201 samples were trained on, 200 should have been"),
        ({"evaluated": 52, "correct": 9}, "52 test samples were evaluated, there are 50"),
        ({"evaluated": 0, "correct": 0}, "0 test samples were evaluated, there are 50"),
    ],
)
def test_each_wrong_run_is_told_why(changes, words):
    assert words in judge(epoch(**changes))


def test_a_replica_over_two_ranks_is_compared_as_a_pair():
    """Ranks 0 and 1 hold the halves a and b of one replica, ranks 2 and 3 those of the other."""
    assert judge(epoch(parameter_hashes=["a", "b", "a", "b"]), ranks_per_replica=2) == "passed"
    assert "2 versions" in judge(epoch(parameter_hashes=["a", "b", "a", "c"]), ranks_per_replica=2)
    assert "2 versions" in judge(epoch(parameter_hashes=["a", "b", "b", "a"]), ranks_per_replica=2)


def test_losses_are_judged_only_where_a_baseline_has_run():
    far = epoch(loss_first=99.0)
    assert baseline_gate(far, None) == "passed"
    assert baseline_gate(far, (None, None)) == "passed"
    assert "first timed step is 99, the baseline's 2.3" in baseline_gate(far, (2.3, 2.0))


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
    assert (baseline_gate(epoch(loss_first=first, loss_last=last), (2.3, 2.0)) == "passed") is passes


def test_near_zero_the_band_has_an_absolute_floor():
    assert baseline_gate(epoch(loss_first=0.049, loss_last=0.0), (0.0, 0.0)) == "passed"
    assert "may differ by 0.05" in baseline_gate(epoch(loss_first=0.051, loss_last=0.0), (0.0, 0.0))
