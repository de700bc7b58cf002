"""The summary against figures worked out by hand from a few rows."""

import json
import math

import pytest
from generated import failed, noisy_campaign, row, table, write_campaign
from summaries import key, summary_of

from bench.errors import UserError
from bench.results.columns import SUMMARY_COLUMNS, names
from bench.results.csvfile import read_rows
from bench.results.speedups import pair_log_ratios
from bench.results.summary import check_baseline_was_run, summarise, write_summary

# -- throughput, speedup, efficiency --------------------------------------------------------------------------------


def test_throughput_speedup_and_efficiency_by_hand():
    """1,000 samples in 10 s and 6.25 s: 100 and 160 samples/s, speedup 1.6, efficiency 0.8 on two devices."""
    found = summary_of(
        [row("single", 1, b, seconds=10.0) for b in (0, 1)] + [row("ddp", 2, b, seconds=6.25) for b in (0, 1)]
    )
    ddp = found[key("ddp", 2)]
    assert ddp["samples_per_second"] == pytest.approx(160)
    assert ddp["samples_per_second_per_device"] == pytest.approx(80)
    assert ddp["epoch_seconds"] == pytest.approx(6.25)
    assert ddp["speedup"] == pytest.approx(1.6)
    assert ddp["speedup_low"] == ddp["speedup_high"] == pytest.approx(1.6)
    assert ddp["efficiency"] == pytest.approx(0.8)
    assert (ddp["baseline"], ddp["pairs"], ddp["runs_ok"], ddp["runs_failed"]) == ("single@1 fp32", 2, 2, 0)
    base = found[key("single", 1)]
    assert (base["speedup"], base["efficiency"], base["p_value"]) == (1.0, 1.0, None)


def test_part_of_an_epoch_is_scaled_to_the_whole():
    """200 of 1,000 samples in 4 s: 50 samples/s, an epoch of 20 s."""
    found = summary_of([row("single", 1, 0, seconds=4.0, timed_samples=200, epoch_measured=False)])
    assert found[key("single", 1)]["epoch_seconds"] == pytest.approx(20.0)
    assert found[key("single", 1)]["samples_per_second"] == pytest.approx(50.0)


def test_epochs_of_one_run_are_one_value():
    """1,000 samples in 10 s and 1,000 in 30 s: 2,000 in 40 s is 50 samples/s, and the last accuracy counts."""
    rows = [
        row("single", 1, 0, seconds=10.0, epoch=1, test_accuracy=0.2, step_seconds_cov=0.1),
        row("single", 1, 0, seconds=30.0, epoch=2, test_accuracy=0.3, step_seconds_cov=0.2),
    ]
    found = summary_of(reversed(rows))[key("single", 1)]
    assert found["samples_per_second"] == pytest.approx(50.0)
    assert (found["test_accuracy"], found["runs_ok"]) == (0.3, 1)
    assert found["step_seconds_cov"] == pytest.approx(0.15)


def test_speedup_is_paired_by_block():
    """Block 1 is half as fast for both: every ratio is 2, so the interval is a point."""
    rows = [row("single", 1, 0, seconds=10), row("single", 1, 1, seconds=20)]
    rows += [row("ddp", 2, 0, seconds=5), row("ddp", 2, 1, seconds=10), row("ddp", 2, 2, seconds=1)]
    ddp = summary_of(rows)[key("ddp", 2)]
    assert ddp["pairs"] == 2
    assert (ddp["speedup"], ddp["speedup_low"], ddp["speedup_high"]) == (pytest.approx(2.0),) * 3


def test_the_interval_is_scipys_on_log_ratios():
    """Ratios 1 and 4 over two blocks: 2 · 2^±12.7062, as worked out for the statistics."""
    rows = [row("single", 1, b, seconds=8.0) for b in (0, 1)]
    rows += [row("ddp", 2, 0, seconds=8.0), row("ddp", 2, 1, seconds=2.0)]
    ddp = summary_of(rows)[key("ddp", 2)]
    assert ddp["speedup"] == pytest.approx(2.0)
    assert ddp["speedup_high"] == pytest.approx(2 * 2**12.706204736, rel=1e-6)
    assert ddp["p_value"] == pytest.approx(0.5)


def test_one_block_gives_a_speedup_without_an_interval():
    ddp = summary_of([row("single", 1, 0), row("ddp", 2, 0, seconds=5)])[key("ddp", 2)]
    assert ddp["speedup"] == pytest.approx(2.0)
    assert (ddp["speedup_low"], ddp["p_value"], ddp["p_value_holm"], ddp["pairs"]) == (None, None, None, 1)


def test_campaigns_are_pooled_by_machine_and_blocks_are_not_mixed():
    """Equal block numbers of two campaigns stay apart; another machine has its own rows and its own baseline."""
    rows = []
    for campaign, machine, factor in (("c0", "m", 1), ("c1", "m", 3), ("c2", "other", 7)):
        rows += [row("single", 1, 0, seconds=10 * factor, campaign_id=campaign, environment_id=machine)]
        rows += [row("ddp", 2, 0, seconds=5 * factor, campaign_id=campaign, environment_id=machine)]
    frame = summarise(table(rows))
    pairs = {(r["environment_id"], r["strategy"]): (r["pairs"], r["speedup"]) for r in frame.to_dict("records")}
    assert pairs[("m", "ddp")] == (2, pytest.approx(2.0))
    assert pairs[("other", "ddp")] == (1, pytest.approx(2.0))


def test_holm_covers_all_judged_cells_and_neither_baseline_nor_control():
    found = summary_of(noisy_campaign(seed=1))
    judged = {k: r for k, r in found.items() if r["p_value_holm"] is not None}
    assert sorted(k[0] for k in judged) == ["ddp", "ddp", "ddp_mp", "ddp_syncbn"]
    smallest = min(r["p_value"] for r in judged.values())
    assert min(r["p_value_holm"] for r in judged.values()) == pytest.approx(4 * smallest)
    control = found[key("single", 1, role="control")]
    assert control["p_value"] is not None
    assert control["speedup_low"] < 1 < control["speedup_high"]


# -- which runs count -----------------------------------------------------------------------------------------------


def test_breakdown_runs_never_enter():
    rows = [row("single", 1, 0), row("single", 1, 0, seconds=99.0, role="breakdown", run_id="b")]
    found = summary_of(rows)
    assert list(found) == [key("single", 1)]
    assert found[key("single", 1)]["runs_ok"] == 1


def test_the_last_attempt_counts_and_a_flag_says_so():
    rows = [row("single", 1, 0, seconds=50.0, attempt=1), row("single", 1, 0, seconds=10.0, attempt=2)]
    found = summary_of(rows)[key("single", 1)]
    assert (found["runs_ok"], found["runs_failed"], found["epoch_seconds"]) == (1, 0, pytest.approx(10.0))
    assert found["flags"] == "measured again: 1 run repeated, the last attempt that was measured counts"


@pytest.mark.parametrize(
    ("statuses", "expected", "failures"),
    [
        (["ok", "crashed"], "ok", 1),
        (["ok", "invalid"], "invalid", 1),
        (["timeout", "oom"], "oom", 2),
        (["unsupported", "unsupported"], "unsupported", 0),
        (["interrupted", "crashed"], "crashed", 2),
    ],
)
def test_the_status_of_a_cell(statuses, expected, failures):
    rows = [row("single", 1, b) for b in (0, 1)]
    rows += [
        row("ddp", 2, b, seconds=5) if status == "ok" else failed("ddp", 2, b, status=status)
        for b, status in enumerate(statuses)
    ]
    ddp = summary_of(rows)[key("ddp", 2)]
    assert (ddp["status"], ddp["runs_failed"]) == (expected, failures)
    assert ddp["reason"] == next(status for status in statuses if status != "ok")
    assert (ddp["speedup"] is None) == (expected != "ok")


def test_an_epoch_that_crashed_fails_its_run():
    rows = [row("single", 1, 0, run_id="r"), failed("single", 1, 0, epoch=2, run_id="r")]
    found = summary_of(rows)[key("single", 1)]
    assert (found["status"], found["runs_ok"], found["epoch_seconds"]) == ("crashed", 0, None)


# -- the baseline ---------------------------------------------------------------------------------------------------


def test_the_baseline_is_of_the_same_precision_where_there_is_one_else_fp32():
    amp = {"precision": "amp-bf16"}
    rows = [row("single", 1, 0, seconds=10), row("ddp_amp", 2, 0, seconds=2.5, **amp), row("ddp", 2, 0, seconds=5)]
    found = summary_of(rows)[key("ddp_amp", 2, "amp-bf16")]
    assert (found["baseline"], found["speedup"]) == ("single@1 fp32", pytest.approx(4.0))
    assert found["gain_from_precision"] == pytest.approx(2.0)
    assert found["gain_from_devices"] is None
    rows += [row("single", 1, 0, seconds=8, **amp), row("ddp_amp", 1, 0, seconds=7.5, **amp)]
    found = summary_of(rows)[key("ddp_amp", 2, "amp-bf16")]
    assert (found["baseline"], found["speedup"]) == ("single@1 amp-bf16", pytest.approx(3.2))
    assert found["gain_from_precision"] == 1.0
    assert found["gain_from_devices"] == pytest.approx(3.0)


def test_another_baseline_may_be_named():
    rows = [row("single", 1, 0, seconds=10), row("ddp", 2, 0, seconds=5), row("ddp", 4, 0, seconds=2.5)]
    found = summary_of(rows, baseline="ddp@2")
    assert found[key("ddp", 4)]["speedup"] == pytest.approx(2.0)
    assert found[key("single", 1)]["speedup"] == pytest.approx(0.5)
    assert next(iter(found)) == key("ddp", 2)


@pytest.mark.parametrize("text", ["single@0", "@2", "single@two", "a b", "single@"])
def test_a_malformed_baseline_is_refused(text):
    with pytest.raises(UserError, match="NAME"):
        summarise(table([row("single", 1, 0)]), baseline=text)


def test_an_absent_baseline_leaves_speedups_blank_and_can_be_asked_about():
    rows = [row("ddp", 2, 0)]
    found = summary_of(rows)[key("ddp", 2)]
    assert (found["baseline"], found["speedup"], found["pairs"], found["status"]) == ("", None, 0, "ok")
    with pytest.raises(UserError, match="there are ddp@2"):
        check_baseline_was_run(table(rows), "single")


def test_strong_cells_need_the_same_global_batch_and_weak_ones_it_per_replica():
    rows = [row("single", 1, 0, seconds=10, batch_global=100)]
    rows += [row("ddp", 2, 0, seconds=5, scaling="weak", batch_global=200)]
    rows += [row("dp", 2, 0, seconds=5, scaling="weak", batch_global=100)]
    rows += [row("fsdp", 2, 0, seconds=5, scaling="strong", batch_global=200)]
    found = summary_of(rows)
    assert found[key("ddp", 2, scaling="weak")]["speedup"] == pytest.approx(2.0)
    assert found[key("dp", 2, scaling="weak")]["speedup"] is None
    assert found[key("fsdp", 2)]["speedup"] is None


def test_a_weak_cell_prefers_the_weak_baseline():
    rows = [row("single", 1, 0, seconds=10), row("single", 1, 0, seconds=20, scaling="weak")]
    rows += [row("ddp", 2, 0, seconds=5, scaling="weak", batch_global=200)]
    assert summary_of(rows)[key("ddp", 2, scaling="weak")]["speedup"] == pytest.approx(4.0)


def test_a_failed_baseline_is_no_baseline():
    rows = [failed("single", 1, 0), row("ddp", 2, 0)]
    found = summary_of(rows)
    assert found[key("ddp", 2)]["speedup"] is None
    assert found[key("single", 1)]["status"] == "crashed"


def test_cost_is_the_fewest_devices_that_beat_the_tuned_single_device():
    rows = [row("single", 1, 0, seconds=10), row("single_tuned", 1, 0, seconds=4, precision="amp-bf16")]
    rows += [row("ddp", n, 0, seconds=s) for n, s in ((1, 10.5), (2, 5.5), (4, 3.0), (8, 2.0))]
    rows += [row("ddp_mp", 2, 0, seconds=9.0), failed("fsdp", 2, 0)]
    found = summary_of(rows)
    assert {found[key("ddp", n)]["cost_devices"] for n in (1, 2, 4, 8)} == {"4"}
    assert found[key("ddp_mp", 2)]["cost_devices"] == "never"
    assert found[key("single", 1)]["cost_devices"] == "never"
    assert found[key("fsdp", 2)]["cost_devices"] == ""
    assert found[key("single_tuned", 1, "amp-bf16")]["cost_devices"] == ""
    without = summary_of([one for one in rows if one["strategy"] != "single_tuned"])
    assert {record["cost_devices"] for record in without.values()} == {""}


# -- files ----------------------------------------------------------------------------------------------------------


def test_the_file_is_reproducible_byte_for_byte(tmp_path):
    folder = write_campaign(tmp_path / "c", noisy_campaign(seed=3), matrix='baseline = "ddp@1"\n')
    (folder / "stop.json").write_text(json.dumps({"stop_reason": "block limit"}), encoding="utf-8")
    frame = write_summary(folder)
    first = (folder / "summary.csv").read_bytes()
    write_summary(folder)
    assert (folder / "summary.csv").read_bytes() == first
    read = read_rows(folder / "summary.csv", SUMMARY_COLUMNS)
    assert {one["stop_reason"] for one in read} == {"block limit"}
    assert {one["baseline"] for one in read} == {"ddp@1 fp32"}
    assert [one["speedup"] for one in read] == list(frame["speedup"])


def test_given_options_win_over_the_files(tmp_path):
    folder = write_campaign(tmp_path / "c", noisy_campaign(seed=3), matrix='baseline = "ddp@1"\n')
    frame = write_summary(folder, baseline="single", stop_reason="asked to")
    assert set(frame["baseline"]) == {"single@1 fp32"}
    assert set(frame["stop_reason"]) == {"asked to"}


def test_a_broken_stop_file_is_named(tmp_path):
    folder = write_campaign(tmp_path / "c", [row("single", 1, 0)])
    (folder / "stop.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"stop\.json is not"):
        write_summary(folder)


def test_the_order_of_the_rows():
    rows = [row(s, d, 0) for s, d in (("single_tuned", 1), ("ddp", 4), ("ddp", 2), ("single", 1))]
    rows += [row("single", 1, 0, role="control"), row("dp", 2, 0, precision="amp-bf16")]
    order = [(k[0], k[1], k[4]) for k in summary_of(rows)]
    assert order == [
        ("single", 1, "measure"),
        ("single", 1, "control"),
        ("ddp", 2, "measure"),
        ("ddp", 4, "measure"),
        ("dp", 2, "measure"),
        ("single_tuned", 1, "measure"),
    ]


def test_no_runs_give_an_empty_summary():
    assert list(summarise(table([])).columns) == names(SUMMARY_COLUMNS)


def test_log_ratios_for_the_stop_rule():
    rows = [row("single", 1, b) for b in (0, 1)] + [row("ddp", 2, b, seconds=5) for b in (0, 1)]
    ratios = pair_log_ratios(table(rows))
    assert list(ratios) == ["ddp 2 strong fp32 measure toy synthetic resident contiguous off cpu 1 100 1"]
    assert next(iter(ratios.values())) == pytest.approx([math.log(2)] * 2)


def test_compilation_pays_after_the_epochs_that_save_its_time():
    """30 s of compilation, and epochs of 8 s instead of 10 s: 15 epochs; where nothing is saved, never."""
    rows = [row("ddp", 2, 0, seconds=10), row("single", 1, 0, seconds=20)]
    rows += [row("ddp", 2, 0, seconds=8, compile="default", compile_seconds=30.0, run_id="a")]
    rows += [row("ddp", 2, 0, seconds=11, compile="max-autotune", compile_seconds=30.0, run_id="b")]
    rows += [row("dp", 2, 0, seconds=8, compile="default", compile_seconds=30.0, run_id="c")]
    found = {
        (r["strategy"], r["compile"]): r["compile_pays_after_epochs"] for _, r in summarise(table(rows)).iterrows()
    }
    assert found[("ddp", "default")] == "15"
    assert found[("ddp", "max-autotune")] == "never"
    assert found[("ddp", "off")] == found[("single", "off")] == found[("dp", "default")] == ""
