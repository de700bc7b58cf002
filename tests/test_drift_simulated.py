"""The suite's interval on a simulated machine whose speed drifts: whether it covers the truth, and what turns gain.

The figures in docs/statistics.md are those of this file.
"""

from functools import cache

import numpy as np
import pytest
from drifting import APART, IN_TURNS, Machine, Plan, log_rates

from bench.results.statistics import paired_interval

TRIALS = 2000
TRUTHS = np.log([1.0, 1.0, 1.7, 0.9, 1.2, 1.9, 0.8, 1.3])
"""The baseline, its twin and six cells; the third is the one whose interval is judged."""
PLANS = {"apart": APART, "in turns": IN_TURNS}


def spread_of_equal_runs(plan):
    """Standard deviation of the log ratio of two runs that differ in nothing."""
    found = log_rates(
        np.random.default_rng(1), [0.0, 0.0], trials=4000, blocks=1, plan=plan, machine=Machine(process=0.0)
    )
    return float(np.std(found[..., 0] - found[..., 1]))


@pytest.mark.parametrize("steps", [2, 8, 16])
def test_equal_runs_that_stand_minutes_apart_differ_as_they_were_seen_to(steps):
    assert 0.10 <= spread_of_equal_runs(Plan(steps, between=120.0)) <= 0.14


@pytest.mark.parametrize(("steps", "seen"), [(8, 0.048), (16, 0.022)])
def test_equal_runs_in_turns_differ_as_they_were_seen_to(steps, seen):
    """Noise that is independent from step to step gives one step noise for both, which lies between the two seen."""
    assert spread_of_equal_runs(Plan(steps, turn=2)) == pytest.approx(seen, rel=0.25)


@cache
def intervals(plan, blocks):
    rates = log_rates(np.random.default_rng(blocks), TRUTHS, trials=TRIALS, blocks=blocks, plan=PLANS[plan])
    return [paired_interval(list(own), list(base)) for own, base in zip(rates[..., 2], rates[..., 0], strict=True)]


@pytest.mark.parametrize("blocks", [3, 5])
@pytest.mark.parametrize("plan", PLANS)
def test_the_interval_covers_the_truth_at_its_nominal_rate(plan, blocks):
    coverage = np.mean([one.low <= 1.7 <= one.high for one in intervals(plan, blocks)])
    assert 0.93 <= coverage <= 0.97


@pytest.mark.parametrize("blocks", [3, 5])
def test_turns_make_the_interval_a_third_narrower(blocks):
    apart, turns = (np.median([one.half_width for one in intervals(plan, blocks)]) for plan in PLANS)
    assert 0.55 <= turns / apart <= 0.70
