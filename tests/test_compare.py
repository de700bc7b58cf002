"""Verdicts on generated campaigns whose truth is known."""

import csv
import io
import json

import pytest
from generated import failed, noisy_campaign, row, write_campaign

from bench.errors import UserError
from bench.results.compare import compare
from bench.view.verdicts import VERDICT_FORMATS, verdicts_text

IDENTITY = {"cpu": "A Processor", "cores": 2, "torch": "2.14.0", "strategybench": "0.1.0"}


def verdicts(comparison):
    return {one.name: one.verdict for one in comparison.rows}


def campaigns(tmp_path, base, new, **options):
    return write_campaign(tmp_path / "base", base, **options), write_campaign(tmp_path / "new", new, **options)


def times_longer(rows, factor, prefix):
    return [
        one | {"timed_seconds": one["timed_seconds"] * (factor if one["strategy"].startswith(prefix) else 1)}
        for one in rows
    ]


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.3])
def test_a_campaign_is_the_same_as_itself(tmp_path, blocks, noise):
    folder = write_campaign(tmp_path / "c", noisy_campaign(seed=0, blocks=blocks, noise=noise))
    found = compare(folder, folder)
    assert set(verdicts(found).values()) == {"SAME"}
    assert found.exit_code == 0
    assert len(found.rows) == 5


def test_a_cell_that_is_unsupported_in_both_is_named_and_not_compared(tmp_path):
    rows = [row("single", 1, 0), failed("dp", 2, 0, status="unsupported")]
    found = compare(*campaigns(tmp_path, rows, rows))
    assert verdicts(found) == {"single@1": "SAME"}
    assert found.header[-1] == "not compared, since unsupported in both: dp@2 fp32"
    one_side = compare(*campaigns(tmp_path / "x", rows, rows[:1]))
    assert verdicts(one_side) == {"single@1": "SAME", "dp@2": "MISSING"}


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.15])
def test_a_copy_whose_ddp_times_are_ten_percent_longer_is_slower_there_only(tmp_path, noise):
    rows = noisy_campaign(seed=4, noise=noise)
    found = compare(*campaigns(tmp_path, rows, times_longer(rows, 1.1, "ddp")))
    assert found.exit_code == 4
    for one in found.rows:
        slower = one.factors["strategy"].startswith("ddp")
        assert one.verdict == ("SLOWER" if slower else "SAME")
        assert one.ratio == pytest.approx(1 / 1.1 if slower else 1.0)


@pytest.mark.parametrize("noise", [0.01, 0.02])
def test_an_independent_campaign_with_slower_ddp_is_slower_there_only(tmp_path, noise):
    """Welch's case: other runs with their own noise, so only DDP at ten percent stands out."""
    slower = {"ddp": 1.1, "ddp_syncbn": 1.1, "ddp_mp": 1.1}
    new = noisy_campaign(seed=22, noise=noise, slower=slower, campaign_id="c1")
    found = compare(*campaigns(tmp_path, noisy_campaign(seed=21, noise=noise), new))
    by_name = verdicts(found)
    assert {by_name[name] for name in ("ddp@1", "ddp@2", "ddp_syncbn@2", "ddp_mp@2")} == {"SLOWER"}
    assert by_name["single@1"] in ("SAME", "UNCLEAR")
    assert found.exit_code == 4
    swapped = compare(tmp_path / "new", tmp_path / "base")
    assert verdicts(swapped)["ddp@2"] == "FASTER"
    assert swapped.exit_code == 0


def test_equal_campaigns_of_little_noise_are_the_same_and_of_much_unclear(tmp_path):
    quiet = campaigns(
        tmp_path, noisy_campaign(seed=1, noise=0.005), noisy_campaign(seed=2, noise=0.005, campaign_id="c1")
    )
    assert set(verdicts(compare(*quiet)).values()) == {"SAME"}
    loud = campaigns(
        tmp_path / "loud", noisy_campaign(seed=1, noise=0.2), noisy_campaign(seed=2, noise=0.2, campaign_id="c1")
    )
    assert set(verdicts(compare(*loud)).values()) == {"UNCLEAR"}
    assert compare(*loud).exit_code == 0


def test_false_alarms_over_many_equal_pairs_are_rare(tmp_path):
    """Five cells a pair, Holm over them: at most 5 % of pairs may name any cell; 4 of 40 would be 10 %."""
    alarms = 0
    for seed in range(40):
        pair = campaigns(
            tmp_path / str(seed),
            noisy_campaign(seed=2 * seed, noise=0.02),
            noisy_campaign(seed=2 * seed + 1, noise=0.02, campaign_id="c1"),
        )
        alarms += bool({"SLOWER", "FASTER"} & set(verdicts(compare(*pair)).values()))
    assert alarms <= 3


def test_cells_are_paired_by_factors_not_by_position(tmp_path):
    base = [row("single", 1, b) for b in (0, 1)] + [row("ddp", 2, b, seconds=5) for b in (0, 1)]
    assert set(verdicts(compare(*campaigns(tmp_path, base, base[::-1]))).values()) == {"SAME"}


def test_one_run_a_side_gives_a_ratio_and_no_verdict(tmp_path):
    new = [row("single", 1, 0, seconds=20, campaign_id="c1")]
    (found,) = compare(*campaigns(tmp_path, [row("single", 1, 0)], new)).rows
    assert (found.verdict, found.ratio, found.low, found.p) == ("UNCLEAR", pytest.approx(0.5), None, None)
    assert found.note == "one run on a side: no interval"


def test_missing_is_a_regression_only_where_the_base_was_ok(tmp_path):
    base = [row("single", 1, 0), row("ddp", 2, 0), row("dp", 2, 0), failed("fsdp", 2, 0), failed("zero", 2, 0)]
    new = [
        row("single", 1, 0),
        failed("ddp", 2, 0, status="oom"),
        row("fsdp", 2, 0),
        failed("zero", 2, 0),
        row("more", 2, 0),
    ]
    found = {one.name: one for one in compare(*campaigns(tmp_path, base, new)).rows}
    assert {name for name, one in found.items() if one.verdict == "MISSING"} == found.keys() - {"single@1"}
    assert {name for name, one in found.items() if one.regression} == {"ddp@2", "dp@2"}
    assert found["ddp@2"].note == "oom in new: oom"
    assert found["dp@2"].note == "not in new"
    assert found["more@2"].note == "not in base"
    assert compare(tmp_path / "base", tmp_path / "new").exit_code == 4


def test_control_and_breakdown_rows_are_not_compared(tmp_path):
    rows = [row("single", 1, 0), row("single", 1, 0, role="control"), row("single", 1, 0, role="breakdown")]
    assert len(compare(*campaigns(tmp_path, rows, rows)).rows) == 1


def test_a_cell_outside_its_loss_band_counts_as_missing(tmp_path):
    base = [row("single", 1, 0), row("ddp", 2, 0)]
    new = [row("single", 1, 0), row("ddp", 2, 0, seconds=1.0, loss_first=99.0)]
    found = compare(*campaigns(tmp_path, base, new))
    assert verdicts(found)["ddp@2"] == "MISSING"
    assert found.exit_code == 4


# -- what must agree ------------------------------------------------------------------------------------------------


def test_other_versions_are_refused_by_name_and_forced_with_a_header(tmp_path):
    base = write_campaign(tmp_path / "base", noisy_campaign(seed=0), identity=IDENTITY)
    new = write_campaign(
        tmp_path / "new", noisy_campaign(seed=0, environment_id="other"), identity=IDENTITY | {"torch": "2.15.0"}
    )
    with pytest.raises(UserError, match=r"torch: 2\.14\.0 != 2\.15\.0") as error:
        compare(base, new)
    assert "--force" in str(error.value)
    assert "cpu" not in str(error.value)
    found = compare(base, new, force=True)
    assert "differs, compared by force: torch: 2.14.0 != 2.15.0" in found.header
    assert set(verdicts(found).values()) == {"SAME"}


def test_other_machines_are_refused_without_their_facts_too(tmp_path):
    new = [row("single", 1, 0, environment_id="other", device_name="Another")]
    with pytest.raises(UserError, match="environment_id: machine != other; device_name: A Processor != Another"):
        compare(*campaigns(tmp_path, [row("single", 1, 0)], new))


def test_another_version_of_the_suite_or_commit_is_what_one_compares(tmp_path):
    base = write_campaign(tmp_path / "base", noisy_campaign(seed=0), identity=IDENTITY)
    rows = noisy_campaign(seed=0, environment_id="other", git_commit="b" * 40)
    new = write_campaign(tmp_path / "new", rows, identity=IDENTITY | {"strategybench": "0.2.0"})
    assert "commit bbbbbbbbbbbb" in compare(base, new).header[0]


def test_other_samples_under_the_same_name_are_refused(tmp_path):
    sides = [[row("single", 1, 0, dataset_fingerprint=mark)] for mark in ("x", "y")]
    with pytest.raises(UserError, match="fingerprint of synthetic: x != y"):
        compare(*campaigns(tmp_path, *sides))


@pytest.mark.parametrize("options", [{"margin": 0.0}, {"margin": 1.5}, {"confidence": 1.0}, {"confidence": 95.0}])
def test_options_out_of_range_are_refused(tmp_path, options):
    folder = write_campaign(tmp_path / "c", [row("single", 1, 0)])
    with pytest.raises(UserError, match=next(iter(options))):
        compare(folder, folder, **options)


def test_a_base_without_ok_runs_is_refused(tmp_path):
    folder = write_campaign(tmp_path / "c", [failed("single", 1, 0)])
    with pytest.raises(UserError, match="no ok run"):
        compare(folder, folder)


# -- rendering ------------------------------------------------------------------------------------------------------


def test_every_format_says_the_same(tmp_path):
    rows = noisy_campaign(seed=4)
    found = compare(*campaigns(tmp_path, rows, times_longer(rows, 1.1, "ddp_mp")))
    document = json.loads(verdicts_text(found, "json"))
    assert document["exit_code"] == 4
    assert [cell["verdict"] for cell in document["cells"]] == [one.verdict for one in found.rows]
    parsed = list(csv.DictReader(io.StringIO(verdicts_text(found, "csv"))))
    assert [line["verdict"] for line in parsed] == [one.verdict for one in found.rows]
    assert [float(line["ratio"]) for line in parsed] == [one.ratio for one in found.rows]
    for format in ("text", "markdown"):
        text = verdicts_text(found, format)
        assert "1 SLOWER, 4 SAME" in text
        assert "0.909 [0.909, 0.909]" in text
        assert "nan" not in text.lower()
    assert verdicts_text(found, "markdown").count("\n|") == 2 + len(found.rows)


def test_an_unknown_format_lists_the_known(tmp_path):
    folder = write_campaign(tmp_path / "c", [row("single", 1, 0)])
    with pytest.raises(UserError, match=", ".join(VERDICT_FORMATS)):
        verdicts_text(compare(folder, folder), "xml")
