"""Cells that have no meaning here, options and names that are wrong: a row with its reason, or one message."""

import re
from dataclasses import replace

import pytest
from planning import CUDA, REGISTRY, cells, one, plan

from bench.errors import UserError
from bench.plan.checks import check_baseline
from bench.plan.matrix import Group, Matrix, load_matrix
from strategies import Registry

# -- unsupported ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "devices", "precision", "words"),
    [
        ("dp", 2, (), "torch.nn.DataParallel on CPU forwards to one replica"),
        ("ddp_mp", 1, (), "two devices a replica; 1 is odd"),
        ("ddp_mp", 3, (), "two devices a replica; 3 is odd"),
        ("single", 2, (), "single uses one device; 2 were asked for"),
        ("single_tuned", 2, (), "single_tuned uses one device; 2 were asked for"),
        ("ddp", 1, ("tf32",), "tf32 is a mode of NVIDIA GPUs"),
        ("ddp_amp", 1, ("fp32",), "ddp_amp runs at amp-bf16, amp-fp16, not at fp32"),
        ("ddp_amp", 1, ("tf32",), "ddp_amp runs at amp-bf16, amp-fp16, not at tf32"),
    ],
)
def test_what_has_no_meaning_here_is_a_row_with_its_reason(strategy, devices, precision, words):
    cell = one(strategy, devices, precision=precision)
    assert cell.status == "unsupported"
    assert words in cell.reason


def test_a_layout_of_images_does_not_fit_vectors():
    assert "channels_last is a layout of images" in one("ddp", 1, workload="toy", memory_format="channels_last").reason
    assert one("ddp", 1, memory_format="channels_last").status == ""


def test_an_unsupported_cell_is_not_judged_by_its_batch():
    assert one("ddp_mp", 3, batch=4).status == "unsupported"
    assert one("ddp_amp", 3, batch=4, precision=("fp32",)).status == "unsupported"


def test_float16_on_cpu_runs_with_a_warning():
    cell = one("ddp_amp", 1, precision=("amp-fp16",))
    assert cell.status == ""
    assert "slower than float32" in cell.warnings[0]
    assert one("ddp_amp", 1).warnings == ()
    assert one("ddp_amp", 1, precision=("amp-fp16",), machine=CUDA).warnings == ()


def test_what_smoke_plans_is_what_the_documentation_promises():
    matrix = load_matrix("smoke")
    found = {(cell["strategy"], cell["devices"]): cell.status for cell in plan(matrix)}
    unsupported = {("single", 2), ("dp", 2), ("ddp_mp", 1)}
    assert len(found) == 12
    assert {place for place, status in found.items() if status == "unsupported"} == unsupported
    assert {status for place, status in found.items() if place not in unsupported} == {""}


# -- options of strategies --------------------------------------------------------------------------------------------


def test_a_swept_option_makes_a_cell_of_each_value():
    found = cells("ddp", devices=(2,), options={"ddp": {"bucket_cap_mb": [1, 5], "static_graph": True}})
    assert [cell["variant"] for cell in found] == [
        "bucket_cap_mb=1;static_graph=true",
        "bucket_cap_mb=5;static_graph=true",
    ]


def test_the_variant_names_only_what_differs_from_the_default():
    assert one("ddp", 2, options={"ddp": {"bucket_cap_mb": 25, "broadcast_buffers": False}})["variant"] == (
        "broadcast_buffers=false"
    )
    assert one("ddp", 2, options={"ddp": {"bucket_cap_mb": 25}}).key == one("ddp", 2).key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ddp": {"bucket": 5}}, "strategy 'ddp' has no option 'bucket'; its options are: bucket_cap_mb"),
        ({"ddq": {"bucket_cap_mb": 5}}, "options for unknown strategy 'ddq'; known are single"),
        ({"ddp": {"bucket_cap_mb": "big"}}, "option 'bucket_cap_mb' of strategy 'ddp' takes a number, not 'big'"),
        ({"ddp": {"bucket_cap_mb": [1, True]}}, "takes a number, not 'true'"),
        ({"ddp": {"static_graph": 1}}, "option 'static_graph' of strategy 'ddp' takes true or false, not '1'"),
    ],
)
def test_wrong_options_of_a_strategy_are_refused(options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        cells("ddp", options=options)


# -- names ------------------------------------------------------------------------------------------------------------


def test_an_unknown_strategy_is_told_the_known_ones():
    with pytest.raises(UserError, match=r"unknown strategy 'dpp'; known are single, .*ddp_mp"):
        cells("dpp")


def test_a_matrix_without_strategies_is_refused():
    with pytest.raises(UserError, match="matrix m names no strategy"):
        cells()


def test_a_baseline_is_a_name_and_a_count():
    for right in ("single", "single@1", "ddp@16"):
        check_baseline(right, REGISTRY)
    for wrong in ("ddp@", "ddp@0", "ddp@x", "ddp@-1", "ddp@01", "ddp@²", "ddp@1@2", "ddp@1.5"):
        with pytest.raises(UserError, match="--baseline"):
            check_baseline(wrong, REGISTRY)
    with pytest.raises(UserError, match="--baseline: unknown strategy 'none'; known are single"):
        check_baseline("none@1", REGISTRY)


def test_a_broken_plugin_is_a_crashed_cell_beside_the_others(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("raise RuntimeError('no such library')\nSTRATEGIES = {'bad': None}\n", encoding="utf-8")
    registry = Registry({**REGISTRY.entries, **Registry.collect([path]).entries})
    groups = (Group(strategies=("bad", "single"), devices=(1,)),)
    bad, single = plan(Matrix("m", groups, steps=1, control=False), registry=registry)
    assert (bad.status, single.status) == ("crashed", "")
    assert "no such library" in bad.reason


def test_a_strategy_whose_packages_are_missing_is_unsupported_with_the_command_that_installs_them():
    needs = ("numpy", "nvidia-ml-py:pynvml", "no-such-package", "other-name:no_such_module")
    entry = replace(REGISTRY.entries["ddp"], requires=needs)
    registry = Registry({**REGISTRY.entries, "ddp": entry})
    groups = (Group(strategies=("ddp", "single"), devices=(1, 2), scaling=("strong", "weak")),)
    found = plan(Matrix("m", groups, steps=1, control=False), registry=registry)
    ddp = [cell for cell in found if cell["strategy"] == "ddp"]
    assert {(cell["devices"], cell["scaling"], cell.status) for cell in ddp} == {
        (devices, scaling, "unsupported") for devices in (1, 2) for scaling in ("strong", "weak")
    }
    assert {cell.reason for cell in ddp} == {
        "ddp needs no-such-package, other-name, not installed here; pip install no-such-package other-name"
    }
    assert next(cell for cell in found if cell["strategy"] == "single").status == ""
    assert replace(entry, requires=("numpy", "nvidia-ml-py:pynvml")).missing == ()
