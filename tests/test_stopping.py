"""When a campaign has enough blocks, on generated runs whose intervals are worked out beside."""

import math
from dataclasses import replace

import pytest
from generated import failed, row, write_campaign
from scipy import stats

from bench.plan.matrix import Group, Matrix
from bench.results.folder import Campaign
from bench.run.stopping import Decision, decide, half_width

AUTO = Matrix("m", (Group(),), blocks=0)
PATTERN = (1.0, -1.0, 0.5, -0.5, 0.0)
"""Deviations of five blocks: mean 0, sum of squares 2.5, standard deviation sqrt(2.5 / 4)."""


def campaign(folder, blocks, *, spread, **values):
    """single@1 at 10 s, ddp@2 at 5 s times exp(spread * pattern)."""
    rows = []
    for block in range(blocks):
        rows.append(row("single", 1, block, seconds=10.0, **values))
        seconds = 5.0 * math.exp(spread * PATTERN[block % len(PATTERN)])
        rows.append(row("ddp", 2, block, seconds=seconds, **values))
    return Campaign(write_campaign(folder, rows)).run_rows


def spread_for(width):
    """The spread at which five blocks have this half-width: t * s / sqrt(5)."""
    return width * math.sqrt(5) / (stats.t.ppf(0.975, 4) * math.sqrt(2.5 / 4))


# -- fixed blocks and the time limit ----------------------------------------------------------------------------------


def test_fixed_blocks_are_taken_as_asked_without_reading_anything():
    matrix = Matrix("m", (Group(),), blocks=3)
    assert decide(matrix, (), blocks_done=2, seconds=1.0) == Decision(False)
    assert decide(matrix, (), blocks_done=3, seconds=1.0) == Decision(True, "3 blocks as asked")
    one = replace(matrix, blocks=1)
    assert decide(one, (), blocks_done=1, seconds=1.0) == Decision(True, "1 block as asked")


@pytest.mark.parametrize("blocks", [0, 9])
def test_the_time_limit_ends_any_campaign(blocks):
    matrix = replace(AUTO, blocks=blocks, time_limit=90.0)
    assert decide(matrix, (), blocks_done=2, seconds=89.9) == Decision(False)
    decision = decide(matrix, (), blocks_done=2, seconds=90.0)
    assert decision == Decision(True, "time limit of 1 min 30 s reached after 2 blocks")


def test_the_block_limit_ends_an_automatic_campaign():
    matrix = replace(AUTO, max_blocks=4)
    assert decide(matrix, (), blocks_done=4, seconds=1.0) == Decision(True, "limit of 4 blocks reached")


# -- by precision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [1, 2])
def test_a_pilot_is_three_blocks(done):
    assert decide(AUTO, (), blocks_done=done, seconds=1.0) == Decision(False)


@pytest.mark.parametrize("done", [3, 4])
def test_five_blocks_are_the_least_however_narrow(done, tmp_path):
    measured = campaign(tmp_path, done, spread=0.0)
    decision = decide(AUTO, measured, blocks_done=done, seconds=60.0 * done)
    assert not decision.stop
    assert f"about 5 blocks in all, {5 - done} min 0 s to go" in decision.message


def test_half_width_is_students():
    ratios = [0.7 + 0.01 * place for place in PATTERN]
    assert half_width(ratios) == pytest.approx(stats.t.ppf(0.975, 4) * 0.01 * math.sqrt(2.5 / 4) / math.sqrt(5))
    assert half_width([0.7]) == math.inf
    assert half_width([0.7] * 3) == 0.0


@pytest.mark.parametrize(("kind", "target"), [("cpu", 0.03), ("cuda", 0.01)])
@pytest.mark.parametrize(("share", "stops"), [(0.98, True), (1.02, False)])
def test_it_stops_once_every_interval_is_within_the_devices_target(kind, target, share, stops, tmp_path):
    measured = campaign(tmp_path, 5, spread=spread_for(share * target), device_kind=kind)
    decision = decide(AUTO, measured, blocks_done=5, seconds=50.0)
    assert decision.stop is stops
    if stops:
        assert decision.reason == f"every speedup is within {target:.1%} after 5 blocks"
    else:
        assert f"the target ±{target:.1%}: about 6 blocks in all, 10 s to go" in decision.message


def test_a_target_that_is_given_counts(tmp_path):
    measured = campaign(tmp_path, 5, spread=spread_for(0.02))
    assert decide(replace(AUTO, precision_target=0.021), measured, blocks_done=5, seconds=1.0).stop
    assert not decide(replace(AUTO, precision_target=0.019), measured, blocks_done=5, seconds=1.0).stop


def test_the_forecast_is_the_least_count_whose_interval_is_narrow_enough(tmp_path):
    measured = campaign(tmp_path, 5, spread=spread_for(0.06))
    decision = decide(AUTO, measured, blocks_done=5, seconds=5.0)
    deviation = spread_for(0.06) * math.sqrt(2.5 / 4)
    needed = next(n for n in range(2, 99) if stats.t.ppf(0.975, n - 1) * deviation / math.sqrt(n) <= 0.03)
    assert f"about {needed} blocks in all, {needed - 5} s to go" in decision.message


def test_the_forecast_stays_within_the_block_limit(tmp_path):
    measured = campaign(tmp_path, 5, spread=1.0)
    decision = decide(replace(AUTO, max_blocks=8), measured, blocks_done=5, seconds=50.0)
    assert "about 8 blocks in all, 30 s to go" in decision.message


def test_the_widest_cell_decides(tmp_path):
    rows = []
    for block in range(5):
        rows.append(row("single", 1, block, seconds=10.0))
        rows.append(row("ddp", 1, block, seconds=10.0))
        rows.append(row("ddp", 2, block, seconds=5.0 * math.exp(spread_for(0.04) * PATTERN[block])))
    measured = Campaign(write_campaign(tmp_path, rows)).run_rows
    decision = decide(AUTO, measured, blocks_done=5, seconds=1.0)
    assert not decision.stop
    assert "the widest interval is ±4.0%" in decision.message


def test_without_a_baseline_more_blocks_decide_nothing(tmp_path):
    rows = [row("ddp", 2, block) for block in range(3)]
    measured = Campaign(write_campaign(tmp_path, rows)).run_rows
    assert decide(AUTO, measured, blocks_done=3, seconds=1.0).reason.startswith("no cell can be compared")


def test_a_cell_that_always_fails_does_not_keep_the_campaign_going(tmp_path):
    rows = []
    for block in range(5):
        rows += [row("single", 1, block), row("ddp", 2, block, seconds=5.0), failed("dp", 2, block)]
    measured = Campaign(write_campaign(tmp_path, rows)).run_rows
    assert decide(AUTO, measured, blocks_done=5, seconds=1.0).stop


def test_another_baseline_is_respected(tmp_path):
    measured = campaign(tmp_path, 5, spread=spread_for(0.02))
    assert decide(replace(AUTO, baseline="ddp@2"), measured, blocks_done=5, seconds=1.0).stop
    missing = decide(replace(AUTO, baseline="ddp@4"), measured, blocks_done=5, seconds=1.0)
    assert missing.reason.startswith("no cell can be compared")
