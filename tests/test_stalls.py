"""Runs that stalled: by the others of their cell, at any number of runs, and by their own steps."""

import math

import numpy as np
import pytest
from drifting import APART, IN_TURNS, log_rates
from generated import row, table
from summaries import key, summary_of

from bench.results.cells import make_run
from bench.results.flags import disturbances
from bench.results.speedups import judged_by
from bench.results.stalls import _noise, stalled_runs


def stalls(rows):
    """The flags' texts by strategy, and role where it is the twin's."""
    judged = judged_by(table(rows), None)
    names = {item.cell.key: item.cell["strategy"] + "+" * (item.cell["role"] == "control") for item in judged}
    return {names[cell]: flag.text for cell, flag in stalled_runs(judged).items()}


def campaign(seconds, *, base=(10.0,) * 9, twin=(10.0,) * 9):
    """A row for each time of ddp@2, with the baseline's and its twin's of the same block."""
    rows = []
    for block, own in enumerate(seconds):
        rows += [row("single", 1, block, seconds=base[block]), row("ddp", 2, block, seconds=own)]
        rows += [row("single", 1, block, seconds=twin[block], role="control")] if twin else []
    return rows


# -- by the others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [2, 3, 4, 9])
@pytest.mark.parametrize("twin", [(10.0,) * 9, ()])
def test_a_run_at_a_quarter_of_the_speed_is_named_at_any_number_of_runs(runs, twin):
    seconds = [5.0 + 0.01 * block for block in range(runs)]
    seconds[-1] = 20.0
    found = stalls(campaign(seconds, twin=twin))
    name = f"ddp-2-fp32-strong-b{runs - 1}-a1"
    # The others' median lies between 5 and 5.04 s, so that 20 s are 25 % of their speed.
    assert found == {"ddp": f"stalled run: {name} ran at 25 % of the speed of its cell's other runs, paired by block"}


def test_the_flag_stands_in_the_summary_and_no_figure_changes():
    found = summary_of(campaign([5.0, 5.0, 20.0]))[key("ddp", 2)]
    assert found["flag_keys"] == "stalled_run"
    assert found["runs_ok"] == 3
    # Speedups of 2, 2 and a half.
    assert found["speedup"] == pytest.approx(2.0 ** (1 / 3))


@pytest.mark.parametrize(("slow", "flagged"), [(5.0 / 0.76, False), (5.0 / 0.74, True)])
def test_the_floor_is_a_quarter_of_the_speed(slow, flagged):
    assert ("ddp" in stalls(campaign([5.0, 5.0, slow]))) is flagged


def test_a_block_in_which_the_whole_machine_was_slow_is_no_stall():
    assert stalls(campaign([5.0, 5.0, 20.0], base=(10.0, 10.0, 40.0), twin=(10.0, 10.0, 40.0))) == {}


@pytest.mark.parametrize("runs", [2, 3, 4])
def test_a_baseline_that_stalled_is_named_and_not_those_beside_it(runs):
    base = [10.0] * runs
    base[0] = 40.0
    assert list(stalls(campaign([5.0] * runs, base=base))) == ["single"]
    assert list(stalls(campaign([5.0] * runs, base=base, twin=()))) == ["single"]


def test_a_twin_that_stalled_is_named():
    assert list(stalls(campaign([5.0] * 3, twin=(10.0, 40.0, 10.0)))) == ["single+"]


def test_several_are_counted_and_the_slowest_is_named():
    text = stalls(campaign([5.0, 5.0, 5.0, 5.0, 10.0, 20.0]))["ddp"]
    assert text.startswith("stalled run: ddp-2-fp32-strong-b5-a1 ran at 25 %")
    assert text.endswith("(and 1 more)")


def test_where_all_runs_vary_by_as_much_none_stalled():
    """Ratios to the baseline of 1, 2, 1/2, 1, 2 and 1/2 in turn: a half is what this cell does."""
    noisy = [10.0, 5.0, 20.0, 10.0, 5.0, 20.0]
    assert "ddp" not in stalls(campaign(noisy, twin=()))


def test_one_run_has_no_others():
    assert stalls(campaign([50.0])) == {}


def test_the_noise_is_that_of_the_other_blocks_by_hand():
    """Without block 2: differences 0.1, 0.3 and 0.2 of the first, 0.4 of the second: their median is 0.25."""
    first, second = {0: 0.0, 1: 0.1, 2: 9.0, 3: 0.3}, {0: 0.4, 1: 0.0, 2: 7.0}
    assert _noise([first, second], 2) == pytest.approx(0.25 / (0.6745 * math.sqrt(2)))
    assert _noise([{0: 1.0, 1: 2.0}], 0) == 0.0


@pytest.mark.parametrize(("plan", "blocks", "most"), [(IN_TURNS, 3, 0.02), (APART, 3, 0.10)])
def test_a_machine_that_only_drifts_is_seldom_said_to_have_stalled(plan, blocks, most):
    """The share of campaigns of eight cells with any such flag."""
    truths = np.log([1.0, 1.0, 1.7, 0.9, 1.2, 1.9, 0.8, 1.3])
    rates = np.exp(log_rates(np.random.default_rng(6), truths, trials=60, blocks=blocks, plan=plan))
    cells = [("single", "measure"), ("single", "control"), *((f"s{number}", "measure") for number in range(2, 8))]
    flagged = 0
    for trial in rates:
        rows = [
            row(name, 1, block, seconds=1000 / trial[block, place], role=role)
            for block in range(blocks)
            for place, (name, role) in enumerate(cells)
        ]
        flagged += bool(stalls(rows))
    assert flagged / len(rates) <= most


# -- by its own steps -------------------------------------------------------------------------------------------------


def test_a_run_that_lost_its_time_to_a_few_steps_is_named_by_its_own_steps():
    """Ten steps of 1 s at the median and 14 s in all: 4 s of 14 are 29 %. No other run is needed."""
    text = stalls([row("ddp", 2, 0, seconds=14.0, step_seconds_median=1.0)])["ddp"]
    name = "ddp-2-fp32-strong-b0-a1"
    assert text == f"stalled run: in {name} 4 of its 14 s went to a few of its 10 steps, the median step being 1 s"


@pytest.mark.parametrize(
    "values",
    [
        {"seconds": 13.3, "step_seconds_median": 1.0},
        {"seconds": 14.0, "step_seconds_median": None},
        {"seconds": 14.0, "step_seconds_median": 1.0, "timed_steps": 2},
    ],
)
def test_steps_that_tell_of_no_stall(values):
    """3.3 of 13.3 s are 24.8 %; and of two steps the median is the mean, so the rest is none of a step."""
    assert stalls([row("ddp", 2, 0, **values)]) == {}


def test_a_run_is_not_measured_again_for_having_stalled():
    slow = row("ddp", 2, 0, seconds=400.0, step_seconds_median=1.0)
    assert stalls([slow])
    assert disturbances(make_run([slow])) == []
