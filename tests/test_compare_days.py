"""Campaigns of two days: what moved is told apart by the probe and the baseline, with figures worked out by hand."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from campaigns import COMMAND, run
from generated import row, write_campaign

from bench.errors import UserError
from bench.results.compare import Comparison, compare
from bench.view.verdicts import verdicts_text

FLOPS, BYTES = 8e10, 1.5e10
T_2 = 4.302652729911275
"""Student's t of 2 degrees of freedom that leaves 2.5 % above it: those of Welch's test with 2 and 2 equal spreads."""

NO_PROBE = "without a probe on both sides this may be the machine's; --by absolute takes it as it is"


def day(
    campaign: str,
    *,
    machine: float = 1.0,
    memory: float | None = None,
    code: Mapping[str, float] | None = None,
    probe: bool = True,
    spread: Mapping[str, float] | None = None,
    blocks: int = 2,
) -> list[dict[str, Any]]:
    """Two blocks of single@1 at 10 s and ddp@2 at 5 s on a machine of speed 1.

    machine: its speed; memory: that of its memory in the probe, where it is another. code: by strategy, the speed of
    its code. spread: a, by strategy or `probe`, where the first block is e^a times as fast and the second e^-a.
    """
    made = []
    for block in range(blocks):

        def uneven(name: str, block: int = block) -> float:
            return math.exp((spread or {}).get(name, 0.0) * (-1) ** block)

        for strategy, devices, seconds in (("single", 1, 10.0), ("ddp", 2, 5.0)):
            speed = machine * (code or {}).get(strategy, 1.0) * uneven(strategy)
            rates: dict[str, Any] = {}
            if probe and strategy == "single":
                rates["probe_flops_per_second"] = FLOPS * machine * uneven("probe")
                rates["probe_bytes_per_second"] = BYTES * (memory or machine) * uneven("probe")
            made.append(row(strategy, devices, block, seconds=seconds / speed, campaign_id=campaign, **rates))
    return made


def compared(tmp_path, base: list[dict[str, Any]], new: list[dict[str, Any]], **options: Any) -> Comparison:
    folders = (write_campaign(tmp_path / name, rows) for name, rows in (("monday", base), ("tuesday", new)))
    return compare(*folders, **options)


def verdicts(found: Comparison) -> dict[str, tuple[str, str]]:
    return {one.name: (one.verdict, one.by) for one in found.rows}


def interval(one, prefix: str = "") -> tuple[float, float, float]:
    return tuple(getattr(one, f"{prefix}{name}") for name in ("ratio", "low", "high"))


# -- the machine ----------------------------------------------------------------------------------------------------


def test_a_machine_half_as_fast_with_equal_code_is_no_regression_and_is_named(tmp_path):
    found = compared(tmp_path, day("a"), day("b", machine=0.5))
    assert verdicts(found) == {"ddp@2": ("SAME", "relative"), "single@1": ("SAME", "corrected")}
    assert found.exit_code == 0
    assert found.machine.state == "moved"
    ddp, single = found.rows
    for one in (ddp, single):
        assert interval(one) == pytest.approx((0.5, 0.5, 0.5))
        assert interval(one, "corrected_") == pytest.approx((1, 1, 1))
    assert interval(ddp, "relative_") == pytest.approx((1, 1, 1))
    assert interval(single, "relative_") == (None, None, None)
    text = verdicts_text(found, "text")
    assert "machine by its probe: arithmetic 0.500 [0.500, 0.500], memory 0.500 [0.500, 0.500]: moved\n" in text
    assert "moved, new / base: the machine 0.50\n" in text
    assert "baseline single@1: 100.0 samples/s in base, 50.0 in new\n" in text


def test_by_absolute_the_same_is_two_regressions(tmp_path):
    found = compared(tmp_path, day("a"), day("b", machine=0.5), by="absolute")
    assert verdicts(found) == {"ddp@2": ("SLOWER", "absolute"), "single@1": ("SLOWER", "absolute")}
    assert found.exit_code == 4


def test_ten_percent_slower_ddp_is_found_on_a_machine_twice_as_fast(tmp_path):
    spread = {"ddp": 0.001}
    found = compared(tmp_path, day("a", spread=spread), day("b", machine=2, code={"ddp": 0.9}, spread=spread))
    assert verdicts(found) == {"ddp@2": ("SLOWER", "relative"), "single@1": ("SAME", "corrected")}
    assert found.exit_code == 4
    ddp = found.rows[0]
    assert ddp.ratio == pytest.approx(1.8)
    # Variance of a mean of two that lie 0.002 apart: 0.001^2 on each side.
    width = math.exp(T_2 * math.sqrt(2) * 0.001)
    assert interval(ddp, "relative_") == pytest.approx((0.9, 0.9 / width, 0.9 * width))
    assert "moved, new / base: the machine 2.00, ddp@2 0.90 relative to baseline\n" in verdicts_text(found, "text")


# -- the baseline ---------------------------------------------------------------------------------------------------


def test_a_slower_baseline_on_a_machine_that_stood_still_is_found_and_its_cells_are_not_called_faster(tmp_path):
    found = compared(tmp_path, day("a"), day("b", code={"single": 0.9}))
    assert found.machine.state == "steady"
    assert verdicts(found) == {"ddp@2": ("SAME", "absolute"), "single@1": ("SLOWER", "absolute")}
    assert found.exit_code == 4
    ddp = found.rows[0]
    assert ddp.relative_ratio == pytest.approx(1 / 0.9)
    assert ddp.note == "judged without the baseline, which itself moved"


def test_a_faster_baseline_is_no_regression_of_its_cells(tmp_path):
    found = compared(tmp_path, day("a"), day("b", machine=0.5, code={"single": 1.25}))
    assert verdicts(found) == {"ddp@2": ("SAME", "corrected"), "single@1": ("FASTER", "corrected")}
    assert found.rows[0].relative_ratio == pytest.approx(0.8)
    assert found.exit_code == 0


def test_a_slower_baseline_is_found_on_a_slower_machine_with_the_probe_s_own_noise(tmp_path):
    spread = {"probe": 0.002}
    found = compared(tmp_path, day("a", spread=spread), day("b", machine=0.5, code={"single": 0.9}, spread=spread))
    single = found.rows[1]
    assert (single.verdict, single.by) == ("SLOWER", "corrected")
    width = math.exp(T_2 * math.sqrt(2) * 0.002)
    assert interval(single, "corrected_") == pytest.approx((0.9, 0.9 / width, 0.9 * width))
    assert interval(single) == pytest.approx((0.45, 0.45, 0.45))


def test_a_noisy_probe_settles_nothing_and_is_no_regression(tmp_path):
    spread = {"probe": 0.2}
    found = compared(tmp_path, day("a", spread=spread), day("b", machine=0.9, spread=spread))
    assert found.machine.state == "unclear"
    assert verdicts(found) == {"ddp@2": ("SAME", "relative"), "single@1": ("UNCLEAR", "corrected")}
    assert found.exit_code == 0


def test_where_arithmetic_and_memory_disagree_the_interval_holds_both(tmp_path):
    """0.5 of the arithmetic and 0.64 of the memory: the baseline at 0.5 is as fast as it was, or 0.78125 of it."""
    found = compared(tmp_path, day("a"), day("b", machine=0.5, memory=0.64))
    single = found.rows[1]
    assert interval(single, "corrected_") == pytest.approx((math.sqrt(0.78125), 0.78125, 1.0))
    assert (single.verdict, single.by, single.p) == ("UNCLEAR", "corrected", 1.0)
    assert found.exit_code == 0
    text = verdicts_text(found, "text")
    assert "uneven: arithmetic moved by 0.78 against memory; relative ratios may hold some of it\n" in text
    assert "moved, new / base: the machine 0.50 to 0.64\n" in text


def test_the_probe_of_a_block_is_the_mean_of_the_baseline_s_run_and_its_twin_s(tmp_path):
    """0.4 and 0.9 times as fast: 0.6, of which the baseline at 0.6 is no more than that."""
    base, new = day("a"), day("b", machine=0.6)
    twins = [one | {"role": "control", "run_id": one["run_id"] + "-twin"} for one in new if one["strategy"] == "single"]
    for rows, speed in ((new, 0.4), (twins, 0.9)):
        for one in rows:
            if one["strategy"] == "single":
                one |= {"probe_flops_per_second": FLOPS * speed, "probe_bytes_per_second": BYTES * speed}
    found = compared(tmp_path, base, [*new, *twins])
    assert interval(found.rows[1], "corrected_") == pytest.approx((1, 1, 1))


# -- without a probe, or without a baseline -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "new", "where"), [(False, False, "base and new"), (True, False, "new"), (False, True, "base")]
)
def test_without_a_probe_a_difference_of_the_baseline_is_not_said_to_be_its_own(tmp_path, base, new, where):
    found = compared(tmp_path, day("a", probe=base), day("b", machine=0.5, probe=new))
    assert verdicts(found) == {"ddp@2": ("SAME", "relative"), "single@1": ("UNCLEAR", "absolute")}
    single = found.rows[1]
    assert (single.note, single.p, single.corrected_ratio) == (NO_PROBE, None, None)
    assert found.exit_code == 0
    words = f"machine: no probe in {where}, so nothing says whether it was as fast both times\n"
    assert words in verdicts_text(found, "text")
    assert compare(tmp_path / "monday", tmp_path / "tuesday", by="absolute").exit_code == 4


def test_without_a_probe_an_equal_baseline_is_the_same(tmp_path):
    found = compared(tmp_path, day("a", probe=False), day("b", machine=0.97, probe=False))
    single = found.rows[1]
    assert (single.verdict, single.by, single.note) == ("SAME", "absolute", "")


def test_a_cell_whose_baseline_is_missing_on_a_side_is_judged_as_a_baseline_is(tmp_path):
    new = [one for one in day("b", machine=0.5) if one["strategy"] == "ddp"]
    found = compared(tmp_path, day("a"), new)
    assert verdicts(found) == {"ddp@2": ("UNCLEAR", "absolute"), "single@1": ("MISSING", "")}
    assert found.rows[0].note == NO_PROBE
    assert found.rows[0].relative_ratio is None
    # The baseline was ok and is gone, which is a regression whatever the machine did.
    assert found.exit_code == 4


def test_only_blocks_in_which_the_baseline_is_ok_give_a_relative_ratio(tmp_path):
    base, new = day("a", spread={"ddp": 0.01}), day("b", blocks=3, spread={"ddp": 0.01})
    new[4]["status"] = "crashed"
    found = compared(tmp_path, base, [*new[:5], new[5] | {"timed_seconds": 50.0}])
    ddp = found.rows[0]
    assert (ddp.base_runs, ddp.new_runs, ddp.relative_ratio) == (2, 3, pytest.approx(1))
    # Its third run, ten times as slow, is in the absolute ratio alone: the mean of 1, 1 and 1/10 on logs.
    assert ddp.ratio == pytest.approx(0.1 ** (1 / 3))


def test_one_block_a_side_is_unclear_whatever_the_machine_did(tmp_path):
    found = compared(tmp_path, day("a", blocks=1), day("b", machine=0.5, blocks=1))
    assert {one.verdict for one in found.rows} == {"UNCLEAR"}
    assert {one.note for one in found.rows} == {"one run on a side: no interval"}
    assert found.machine.state == "unclear"


# -- by -------------------------------------------------------------------------------------------------------------


def test_by_relative_says_nothing_of_the_baseline(tmp_path):
    found = compared(tmp_path, day("a"), day("b", machine=0.5, code={"single": 0.5}), by="relative")
    assert verdicts(found) == {"ddp@2": ("FASTER", "relative"), "single@1": ("UNCLEAR", "relative")}
    assert found.rows[1].note == "no baseline beside it that counts in both"
    assert found.exit_code == 0


def test_another_by_is_refused(tmp_path):
    with pytest.raises(UserError, match="--by speed: give one of auto, absolute, relative"):
        compared(tmp_path, day("a"), day("b"), by="speed")


@pytest.mark.parametrize(("by", "code"), [("auto", 0), ("absolute", 4), ("relative", 0)])
def test_the_command_exits_by_what_it_was_told_to_compare(tmp_path, by, code):
    compared(tmp_path, day("a"), day("b", machine=0.5))
    folders = (str(tmp_path / "monday"), str(tmp_path / "tuesday"))
    done = run([*COMMAND, "compare", *folders, "--by", by, "--format", "json"])
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert (document["by"], document["exit_code"], document["machine"]["state"]) == (by, code, "moved")
    assert document["machine"]["arithmetic"]["ratio"] == pytest.approx(0.5)
    ddp = document["cells"][0]
    assert (ddp["ratio"], ddp["relative_ratio"]) == (pytest.approx(0.5), pytest.approx(1))


# -- for a terminal ---------------------------------------------------------------------------------------------------


def test_a_cell_is_one_line_of_at_most_100_columns_and_its_star_is_the_verdict_s(tmp_path):
    spread = {"ddp": 0.01, "single": 0.01, "probe": 0.02}
    found = compared(tmp_path, day("a", spread=spread), day("b", machine=0.5, code={"ddp": 0.8}, spread=spread))
    lines = verdicts_text(found, "text").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("verdict"))
    assert max(map(len, lines[start:])) <= 100
    assert lines[start].split("  ")[0] == "verdict"
    assert [line.split()[:3] for line in lines[start + 1 : start + 3]] == [
        ["SLOWER", "ddp@2", "2+2"],
        ["UNCLEAR", "single@1", "2+2"],
    ]
    assert ["*" in cell for cell in lines[start + 1].split("]")] == [False, False, True, False]
    assert ["*" in cell for cell in lines[start + 2].split("]")] == [False, True, False]


def test_cells_are_told_apart_by_what_differs_between_them(tmp_path):
    base, new = day("a"), day("b")
    more = [one | {"precision": "amp-bf16", "run_id": one["run_id"] + "-amp"} for one in (*base, *new)]
    found = compared(tmp_path, [*base, *more[:4]], [*new, *more[4:]])
    text = verdicts_text(found, "text")
    names = [re.split(r"\s{2,}", line)[1] for line in text.splitlines() if line.startswith("SAME")]
    assert names == ["ddp@2 amp-bf16", "ddp@2 fp32", "single@1 amp-bf16", "single@1 fp32"]
