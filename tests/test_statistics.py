"""Statistics against hand-worked values, against other methods, and against simulated truth."""

import math

import numpy as np
import pytest
from scipy import stats

from bench.results.flags import _control
from bench.results.statistics import (
    blocks_needed,
    coefficient_of_variation,
    drift,
    geometric_mean,
    holm,
    mann_whitney,
    median,
    moderated_deviations,
    modified_z,
    paired_interval,
    paired_log_ratio,
    welch_log_ratio,
)

TRIALS = 2000


def simulate(ratio, *, noise, blocks, seed, trials=TRIALS):
    """Times of a baseline and a cell: (trials, blocks) each, with a drift and a block effect common to both."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 3 * noise, (trials, blocks)) + np.linspace(0, 0.1, blocks)
    base = np.exp(common + random.normal(0, noise, (trials, blocks)))
    return ratio * np.exp(common + random.normal(0, noise, (trials, blocks))), base


def intervals(cell, base):
    return [paired_log_ratio(own, other) for own, other in zip(cell, base, strict=True)]


# -- simulated truth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [5, 10])
def test_the_interval_covers_the_truth_at_its_nominal_rate(blocks):
    found = intervals(*simulate(1.7, noise=0.02, blocks=blocks, seed=blocks))
    coverage = np.mean([one.low <= 1.7 <= one.high for one in found])
    assert 0.93 <= coverage <= 0.97


def test_welch_covers_the_truth_at_its_nominal_rate_with_unlike_noise():
    random = np.random.default_rng(3)
    new = 0.8 * np.exp(random.normal(0, 0.03, (TRIALS, 5)))
    base = np.exp(random.normal(0, 0.01, (TRIALS, 5)))
    found = [welch_log_ratio(a, b) for a, b in zip(new, base, strict=True)]
    assert 0.93 <= np.mean([one.low <= 0.8 <= one.high for one in found]) <= 0.97


def test_equal_runs_are_flagged_in_at_most_five_percent_of_campaigns():
    found = intervals(*simulate(1.0, noise=0.01, blocks=5, seed=11))
    assert np.mean([_control(one) is not None for one in found]) <= 0.05
    # Without the floor the rate is the nominal one, up to the noise of 2,000 trials.
    assert np.mean([one.excludes_one for one in found]) == pytest.approx(0.05, abs=0.015)


def test_holm_keeps_the_error_of_a_family_of_equal_cells():
    """Ten cells that are all equal: without adjustment two campaigns in five would call one of them different."""
    p = stats.ttest_1samp(np.random.default_rng(5).normal(size=(TRIALS, 10, 5)), 0, axis=-1).pvalue
    alarms = np.mean([min(holm(list(family))) < 0.05 for family in p])
    assert alarms <= 0.06
    assert np.mean(p.min(axis=1) < 0.05) > 0.35


def test_a_slowdown_of_five_percent_is_found_at_five_blocks_of_one_percent_noise():
    found = intervals(*simulate(1 / 1.05, noise=0.01, blocks=5, seed=7))
    assert np.mean([one.high < 1 for one in found]) >= 0.95


def test_drift_is_found_and_its_size_recovered():
    random = np.random.default_rng(0)
    order, cells = np.arange(40), np.tile([0, 1, 2, 3], 10)
    clean = drift(np.exp(random.normal(0, 0.005, 40)), order, cells)
    bent = drift(np.exp(cells + 0.10 * order / 39 + random.normal(0, 0.005, 40)), order, cells)
    assert clean.p > 0.05
    assert bent.p < 1e-6
    assert bent.percent == pytest.approx(100 * math.expm1(0.10), abs=1.0)


# -- hand-worked and independent ------------------------------------------------------------------------------------


def test_paired_ratio_by_hand():
    """Ratios 1 and 4: logs 0 and 2a with a = log 2, mean a, s = a√2, t(0.975, 1) = 12.7062: a ± 12.7062 · a."""
    found = paired_log_ratio([3.0, 20.0], [3.0, 5.0])
    a, t = math.log(2), 12.706204736
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (
        pytest.approx(math.exp(a - t * a), rel=1e-8),
        pytest.approx(math.exp(a + t * a), rel=1e-8),
    )
    # t = a / (s/√2) = 1, and Cauchy's two-sided p of 1 is a half.
    assert found.p == pytest.approx(0.5)
    assert found.n == 2
    assert found.half_width == pytest.approx(t * a)


def test_pairs_without_variance_give_a_point():
    found = paired_log_ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (found.ratio, found.low, found.high) == (pytest.approx(2.0),) * 3
    assert found.low == found.high
    assert found.p == 0.0
    same = paired_log_ratio([0.1, 0.3], [0.1, 0.3])
    assert (same.ratio, same.low, same.high, same.p) == (1.0, 1.0, 1.0, 1.0)


def test_log_ratios_alone_give_the_same_interval():
    rates = [3.0, 20.0, 4.0], [3.0, 5.0, 2.0]
    logs = [math.log(a / b) for a, b in zip(*rates, strict=True)]
    one, other = paired_log_ratio(*rates), paired_interval(logs, [0.0] * 3)
    assert (one.ratio, one.low, one.high) == pytest.approx((other.ratio, other.low, other.high))


def test_one_pair_gives_the_ratio_alone():
    found = paired_log_ratio([3.0], [2.0])
    assert found.ratio == pytest.approx(1.5)
    assert (found.low, found.high, found.p, found.n, found.half_width) == (None, None, None, 1, None)
    assert not found.excludes_one


@pytest.mark.parametrize(("own", "other"), [([], []), ([1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 1.0])])
def test_values_that_have_no_ratio_are_refused(own, other):
    with pytest.raises(ValueError, match=r"numerators|above 0"):
        paired_log_ratio(own, other)


def test_an_interval_beyond_the_floats_is_blank():
    found = paired_log_ratio([1e200, 1.0], [1e-100, 1.0])
    assert (found.low, found.high) == (None, None)
    assert math.isfinite(found.ratio)


def test_welch_by_the_textbook_formula():
    new, base = [1.0, 1.1, 1.3], [2.0, 2.5, 2.2, 2.4]
    x, y = np.log(new), np.log(base)
    u, v = x.var(ddof=1) / 3, y.var(ddof=1) / 4
    freedom = (u + v) ** 2 / (u**2 / 2 + v**2 / 3)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(u + v)
    found = welch_log_ratio(new, base)
    centre = x.mean() - y.mean()
    assert found.ratio == pytest.approx(math.exp(centre))
    assert found.low == pytest.approx(math.exp(centre - half))
    assert found.high == pytest.approx(math.exp(centre + half))
    assert found.n == 3


def test_welch_without_variance_or_with_one_run():
    assert welch_log_ratio([2.0, 2.0], [2.0, 2.0]).low == 1.0
    assert welch_log_ratio([4.0, 4.0], [2.0, 2.0]).p == 0.0
    assert welch_log_ratio([4.0], [2.0, 2.1]).low is None


def test_mann_whitney_by_counting():
    """Three against three, fully apart: 2 of the 20 orders are as extreme."""
    assert mann_whitney([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(0.1)
    assert mann_whitney([1.0], [2.0, 3.0]) is None
    assert mann_whitney([1.0, 1.0], [1.0, 1.0]) == 1.0


def test_holm_by_hand():
    """m = 4: 0.01 · 4, 0.02 · 3, 0.03 · 2 = 0.06 and the maximum so far, 0.9."""
    assert holm([0.03, None, 0.01, 0.9, 0.02]) == [pytest.approx(0.06), None, 0.04, 0.9, pytest.approx(0.06)]
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_modified_z_by_hand():
    """Median 3, absolute deviations 2 1 0 1 97: MAD 1."""
    assert modified_z([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx([-1.349, -0.6745, 0.0, 0.6745, 0.6745 * 97])
    # MAD 0: mean absolute deviation 9/4.
    assert modified_z([1.0, 1.0, 1.0, 10.0])[3] == pytest.approx(9 / (1.253314 * 2.25))
    assert modified_z([5.0, 5.0]) == [0.0, 0.0]
    assert modified_z([]) == []


def test_simple_figures_by_hand():
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert median([]) is None
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert coefficient_of_variation([1.0]) is None


def test_blocks_needed_against_the_table_of_t():
    """s = 0.01: n = 6 gives 2.5706 · 0.01 / √6 = 0.01049, n = 7 gives 2.4469 · 0.01 / √7 = 0.00925."""
    assert blocks_needed(0.01, target=0.01) == 7
    assert blocks_needed(0.01, target=0.0105) == 6
    assert blocks_needed(0.0, target=0.01) == 2
    assert blocks_needed(14.0, target=0.001) is None
    with pytest.raises(ValueError, match="above 0"):
        blocks_needed(0.01, target=0.0)


def test_moderated_deviations_by_hand():
    """Variances 1 and 9 of three each, pooled 5: (2 · 5 + 2 · 1) / 4 = 3 and (2 · 5 + 2 · 9) / 4 = 7."""
    pilots = [[0.0, 1.0, 2.0], [0.0, 3.0, 6.0]]
    assert moderated_deviations(pilots) == pytest.approx([math.sqrt(3), math.sqrt(7)])
    # Of unlike lengths: variances 1 (2 degrees of freedom) and 2 (1), pooled 4/3.
    found = moderated_deviations([[0.0, 1.0, 2.0], [0.0, 2.0]])
    assert found == pytest.approx([math.sqrt((8 / 3 + 2) / 4), math.sqrt((8 / 3 + 2) / 3)])
    assert moderated_deviations([[0.0, 1.0, 2.0]]) == pytest.approx([1.0])


@pytest.mark.parametrize(("cells", "sizes", "most"), [(8, 0.0, 1.35), (30, 0.0, 1.6), (8, 0.4, 1.35), (30, 0.4, 1.35)])
def test_a_forecast_after_three_blocks_is_not_far_from_what_it_takes(cells, sizes, most):
    """Simulated campaigns that stop at a target of 3 %, noise 5.8 % a cell, or spread about it by `sizes` (log)."""
    random, ratios = np.random.default_rng(12), []
    counts = np.arange(5, 301)
    for _ in range(60):
        logs = random.normal(0, 0.058, (cells, 300)) * np.exp(random.normal(0, sizes, (cells, 1)))
        sums, squares = np.cumsum(logs, axis=1)[:, 4:], np.cumsum(logs**2, axis=1)[:, 4:]
        widths = stats.t.ppf(0.975, counts - 1) * np.sqrt((squares - sums**2 / counts) / (counts - 1) / counts)
        taken = counts[np.argmax((widths <= 0.03).all(axis=0))]
        ratios.append(max(blocks_needed(one, 0.03) for one in moderated_deviations(list(logs[:, :3]))) / taken)
    assert 0.75 <= np.median(ratios) <= most


def test_drift_equals_least_squares_with_an_indicator_for_each_cell():
    random = np.random.default_rng(2)
    cells = random.integers(0, 3, 20)
    order = np.arange(20.0)
    logs = cells * 0.7 + 0.003 * order + random.normal(0, 0.02, 20)
    design = np.column_stack([order, *(cells == number for number in range(3))]).astype(float)
    weights, residual, _, _ = np.linalg.lstsq(design, logs, rcond=None)
    error = math.sqrt(residual[0] / (20 - 4) * np.linalg.inv(design.T @ design)[0, 0])
    found = drift(np.exp(logs), order, list(cells))
    assert found.percent == pytest.approx(100 * math.expm1(19 * weights[0]))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(weights[0]) / error, 16))
    assert found.n == 20


def test_drift_without_freedom_or_noise():
    assert drift([1.0, 2.0], [0, 1], ["a", "b"]) is None
    assert drift([1.0, 1.0], [0, 1], ["a", "a"]) is None
    still = drift([2.0] * 6, range(6), ["a"] * 6)
    assert (still.percent, still.p) == (0.0, 1.0)
