"""The race: by hand, replayed, and on simulated campaigns of many cells."""

import math

import numpy as np
import pytest
from races import CELLS, half_widths, races, spread_of_speedups
from scipy import stats

from bench.results.race import Out, against_the_leader, level_of_look, out_of_the_race
from bench.results.statistics import paired_interval

WIGGLE = (0.01, -0.01, 0.0, 0.02, -0.02, 0.01)


def by_block(level, *, wiggle=WIGGLE, blocks=6):
    return {block: level + wiggle[block] for block in range(blocks)}


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_the_levels_of_all_looks_sum_to_alpha_shared_among_the_rivals():
    assert level_of_look(3, rivals=10) == pytest.approx(0.05 / 2 / 10)
    assert level_of_look(4, rivals=10) == pytest.approx(0.05 / 6 / 10)
    assert sum(level_of_look(done, rivals=1) for done in range(3, 100_000)) == pytest.approx(0.05, rel=1e-4)


def test_p_is_students_over_the_differences_to_the_leader():
    """Differences 0.3, 0.2, 0.4: mean 0.3, s = 0.1, t = 0.3 / (0.1 / √3) with two degrees of freedom."""
    leader, ratios, p = against_the_leader(np.array([[0.5, 0.2], [0.5, 0.3], [0.5, 0.1]]), np.array([True, True]))
    assert leader == 0
    assert ratios[1] == pytest.approx(0.3)
    # Of Student's distribution with 2 degrees of freedom: P(T > t) = (1 - t / √(2 + t²)) / 2.
    t = 0.3 / (0.1 / math.sqrt(3))
    assert p == pytest.approx([1.0, (1 - t / math.sqrt(2 + t * t)) / 2])


def test_a_cell_far_below_is_out_with_who_beat_it_by_how_much_and_when():
    speedups = {
        "fast": by_block(0.6),
        "near": by_block(0.59, wiggle=WIGGLE[::-1]),
        "slow": by_block(-0.1, wiggle=[0] * 6),
    }
    found = out_of_the_race(speedups, blocks_done=6)
    assert found.keys() == {"slow"}
    out = found["slow"]
    # Three differences of 0.71, 0.69 and 0.70: t = 0.7 / (0.01 / √3), p far below 0.05 / 2 / 2.
    assert out == Out(
        3, "fast", pytest.approx(math.exp(0.7)), pytest.approx(stats.t.sf(0.7 / (0.01 / 3**0.5), 2)), 0.0125
    )


def test_nobody_is_out_before_the_first_look():
    speedups = {"fast": by_block(0.6, wiggle=[0] * 6), "slow": by_block(-0.1)}
    assert out_of_the_race(speedups, blocks_done=2) == {}
    assert out_of_the_race(speedups, blocks_done=3).keys() == {"slow"}


def test_who_stays_is_never_out_and_may_lead():
    baseline = dict.fromkeys(range(6), 0.0)
    assert out_of_the_race({"base": baseline, "fast": by_block(0.6)}, blocks_done=6, staying={"base"}) == {}
    found = out_of_the_race({"base": baseline, "slow": by_block(-0.6)}, blocks_done=6, staying={"base"})
    assert found["slow"].beaten_by == "base"


def test_cells_are_compared_in_the_blocks_that_both_have():
    """A cell whose runs failed in all blocks but two is not judged, however slow those two were."""
    speedups = {"fast": by_block(0.6), "broken": {0: -1.0, 4: -1.0}, "late": {3: 0.1, 4: 0.11, 5: 0.09}}
    found = out_of_the_race(speedups, blocks_done=6)
    assert found.keys() == {"late"}
    assert found["late"].after_blocks == 6


def test_a_block_that_is_not_whole_is_not_looked_at():
    speedups = {"fast": by_block(0.6, blocks=3), "slow": by_block(-0.1, wiggle=[0] * 6, blocks=2)}
    assert out_of_the_race(speedups, blocks_done=2) == {}


def test_cells_that_are_equal_to_the_last_digit_stay():
    assert out_of_the_race({"one": by_block(0.1), "other": by_block(0.1)}, blocks_done=6) == {}
    assert out_of_the_race({"alone": by_block(0.1)}, blocks_done=6) == {}
    assert out_of_the_race({}, blocks_done=6) == {}


# -- replayed ---------------------------------------------------------------------------------------------------------


def test_a_race_that_goes_on_from_its_rows_comes_to_the_same_end():
    """Block by block with the survivors only, as a campaign measures, and at once from all that it measured."""
    random = np.random.default_rng(4)
    truths = spread_of_speedups(random, 1)[0]
    measured = {cell: {} for cell in range(CELLS)}
    out = {}
    for block in range(12):
        for cell in measured.keys() - out.keys():
            measured[cell][block] = truths[cell] + random.normal(0, 0.05)
        before, out = out, out_of_the_race(measured, blocks_done=block + 1)
        assert before.items() <= out.items()
    assert 10 < len(out) < CELLS
    assert {len(measured[cell]) for cell in measured.keys() - out.keys()} == {12}
    assert all(len(measured[cell]) == reason.after_blocks for cell, reason in out.items())
    # Rows of a block that was measured without the race change nothing of what was decided before.
    for cell in out:
        measured[cell][11] = 5.0
    assert out_of_the_race(measured, blocks_done=12).items() >= before.items()


# -- simulated --------------------------------------------------------------------------------------------------------


def test_half_widths_are_those_of_the_suites_interval():
    ratios = np.random.default_rng(0).normal(0.3, 0.1, (6, 2))
    own = paired_interval(list(ratios[:, 1]), [0.0] * 6).half_width
    assert half_widths(ratios)[5, 1] == pytest.approx(own)


def test_the_fastest_of_thirty_cells_stays_and_the_race_takes_half_the_runs():
    found = list(races(spread_of_speedups(np.random.default_rng(8), 200), seed=8))
    assert np.mean([one.best_was_out for one in found]) <= 0.05
    assert sum(one.raced for one in found) <= 0.5 * sum(one.equal for one in found)


def test_of_thirty_equal_cells_one_that_is_named_beforehand_is_seldom_out():
    """Where all are equal each is the fastest, and none is in truth below another."""
    found = list(races(np.zeros((100, CELLS)), seed=9))
    assert np.mean([one.best_was_out for one in found]) <= 0.05
