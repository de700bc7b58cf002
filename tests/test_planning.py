"""From a matrix to cells, on machines that are made up: batches, plans, refusals, twins and the order of blocks."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from scipy import stats

from bench import workloads
from bench.errors import UserError
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu
from bench.plan.cells import block_order, device_counts, plan_cells
from bench.plan.checks import check_baseline, check_cells
from bench.plan.matrix import Group, Matrix, load_matrix
from strategies import BUILT_IN, Registry

SIX = ("single", "dp", "ddp", "ddp_amp", "ddp_syncbn", "ddp_mp")
REGISTRY = Registry({entry.name: entry for entry in BUILT_IN})
CPU = Machine("cpu", "A Processor", 8, 8)
GPUS = tuple(Gpu(index, f"GPU-{index}", "NVIDIA A100-SXM4-40GB", 40 << 30, "600.1", (8, 0)) for index in range(4))
CUDA = Machine("cuda", "NVIDIA A100-SXM4-40GB", 4, 32, GPUS)
CIFAR_TRAIN_COUNT = 50_000


def plan(matrix, *, machine=CPU, train_count=CIFAR_TRAIN_COUNT, registry=REGISTRY):
    workload = workloads.find(matrix.workload)
    found = plan_cells(matrix, machine=machine, registry=registry, workload=workload)
    check_cells(found, matrix, workload=workload, train_count=train_count)
    return found


def cells(*strategies, devices=(1, 2), machine=CPU, workload="resnet50-cifar10", steps=1, control=False, **group):
    top = {name: group.pop(name) for name in ("options", "breakdown", "baseline", "warmup_steps") if name in group}
    groups = (Group(strategies=strategies, devices=tuple(devices), **group),)
    return plan(Matrix("m", groups, workload=workload, steps=steps, control=control, **top), machine=machine)


def one(strategy, devices, **group):
    (cell,) = cells(strategy, devices=(devices,), **group)
    return cell


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "devices", "scaling", "whole", "replica"),
    [
        ("single", 1, "strong", 256, 256),
        ("single", 1, "weak", 256, 256),
        ("ddp", 1, "strong", 256, 256),
        ("ddp", 4, "strong", 256, 64),
        ("ddp", 4, "weak", 1024, 256),
        ("ddp_mp", 2, "strong", 256, 256),
        ("ddp_mp", 4, "strong", 256, 128),
        ("ddp_mp", 4, "weak", 512, 256),
    ],
)
def test_batches_under_strong_and_weak_scaling(strategy, devices, scaling, whole, replica):
    cell = one(strategy, devices, scaling=(scaling,), batch=256)
    assert (cell["batch_global"], cell.batch_per_part) == (whole, replica)


def test_a_batch_that_is_not_given_is_the_workloads():
    assert one("single", 1)["batch_global"] == 256
    assert one("single", 1, workload="toy")["batch_global"] == 64


@pytest.mark.parametrize("devices", [3, 5, 7])
def test_a_batch_that_does_not_divide_is_refused_with_the_arithmetic(devices):
    with pytest.raises(
        UserError, match=rf"ddp@{devices} fp32: a global batch of 256 does not divide into {devices} parts"
    ):
        one("ddp", devices, batch=256)


def test_micro_batches_count_as_parts():
    assert one("ddp", 2, batch=8, accumulate=2).batch_per_part == 4
    with pytest.raises(UserError, match="global batch of 8 does not divide into 2 parts x 3 micro-batches"):
        one("ddp", 2, batch=8, accumulate=3)


def test_a_weak_batch_always_divides_over_replicas():
    assert one("ddp", 7, batch=5, scaling=("weak",))["batch_global"] == 35


def test_batch_norm_needs_two_samples_a_replica_and_micro_batch():
    with pytest.raises(UserError, match="2 samples / 2 = 1 per part and micro-batch, and the BatchNorm"):
        one("ddp", 2, batch=2)
    with pytest.raises(UserError, match="4 samples / 4 = 1 per part and micro-batch"):
        one("ddp", 2, batch=4, accumulate=2)
    assert one("ddp", 2, batch=4).batch_per_part == 2
    assert one("ddp", 2, batch=2, workload="toy").batch_per_part == 1


def test_a_batch_larger_than_the_training_set_is_refused():
    with pytest.raises(UserError, match="global batch of 50001 exceeds the 50000 training samples"):
        one("single", 1, batch=50_001)
    assert one("single", 1, batch=50_000, warmup_steps=1)["batch_global"] == 50_000


def test_steps_and_warm_up_may_fill_the_epoch_and_no_more():
    """50,000 samples are 195 full batches of 256."""
    assert one("single", 1, batch=256, steps=195, warmup_steps=195).status == ""
    with pytest.raises(UserError, match="--steps 196 > 195 full batches of 256 in an epoch of 50000 samples"):
        one("single", 1, batch=256, steps=196)
    with pytest.raises(UserError, match="--warmup-steps 196 > 195 full batches of 256"):
        one("single", 1, batch=256, warmup_steps=196)


def test_weak_scaling_shortens_the_epoch():
    with pytest.raises(UserError, match=r"ddp@2 fp32 weak: --steps 98 > 97 full batches of 512"):
        one("ddp", 2, batch=256, scaling=("weak",), steps=98)


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


# -- four GPUs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "devices", "spread", "precision", "batch"),
    [
        ("single", 1, (1, 1, 1), "fp32", 256),
        ("single_tuned", 1, (1, 1, 1), "amp-bf16", 256),
        ("dp", 1, (1, 1, 1), "fp32", 256),
        ("dp", 4, (1, 4, 4), "fp32", 64),
        ("ddp", 4, (4, 1, 4), "fp32", 64),
        ("ddp_amp", 4, (4, 1, 4), "amp-fp16", 64),
        ("ddp_syncbn", 4, (4, 1, 4), "fp32", 64),
        ("ddp_tuned", 4, (4, 1, 4), "amp-bf16", 64),
        ("ddp_mp", 2, (1, 2, 1), "fp32", 256),
        ("ddp_mp", 4, (2, 2, 2), "fp32", 128),
    ],
)
def test_plans_on_gpus(strategy, devices, spread, precision, batch):
    cell = one(strategy, devices, machine=CUDA, batch=256)
    assert (cell.plan.processes, cell.plan.places[0].devices, cell.plan.replicas) == spread
    assert {place.devices for place in cell.plan.places} == {spread[1]}
    assert (cell.status, cell["precision"], cell["batch_global"], cell.batch_per_part) == ("", precision, 256, batch)
    assert cell.uses_process_group is strategy.startswith("ddp")


@pytest.mark.parametrize(("machine", "precision"), [(CPU, "amp-bf16"), (CUDA, "amp-fp16")])
def test_mixed_precision_by_device(machine, precision):
    assert one("ddp_amp", 1, machine=machine)["precision"] == precision


def test_the_tuned_strategies_are_channels_last():
    assert {one(name, 1)["memory_format"] for name in ("single_tuned", "ddp_tuned")} == {"channels_last"}
    assert {one(name, 1)["memory_format"] for name in SIX if name != "ddp_mp"} == {"contiguous"}


def test_the_article_preset_has_exactly_the_published_rows():
    found = [
        (cell["strategy"], cell["devices"], cell["precision"], cell["batch_global"], cell.batch_per_part)
        for cell in plan(load_matrix("article"), machine=CUDA)
        if cell["role"] == "measure"
    ]
    assert sorted(found) == [
        ("ddp_syncbn", 2, "amp-fp16", 512, 256),
        ("ddp_syncbn", 2, "tf32", 512, 256),
        ("ddp_syncbn", 4, "amp-fp16", 1024, 256),
        ("ddp_syncbn", 4, "tf32", 1024, 256),
        ("dp", 4, "tf32", 1024, 256),
        ("single", 1, "tf32", 256, 256),
    ]


def test_the_gpu_preset_measures_one_two_and_four():
    matrix = device_counts(load_matrix("gpu"), CUDA, [1, 2, 4])
    found = {(cell["strategy"], cell["devices"]) for cell in plan(matrix, machine=CUDA) if not cell.status}
    assert {devices for strategy, devices in found if strategy == "ddp"} == {1, 2, 4}
    assert {devices for strategy, devices in found if strategy == "ddp_mp"} == {2, 4}
    assert {devices for strategy, devices in found if strategy.startswith("single")} == {1}


def test_device_counts_that_are_given_stay():
    groups = device_counts(Matrix("m", (Group(devices=(3,)), Group())), CPU, [1, 2]).groups
    assert [group["devices"] for group in groups] == [(3,), (1, 2)]


# -- the list of cells ------------------------------------------------------------------------------------------------


def test_what_two_groups_have_in_common_is_one_cell():
    groups = (Group(strategies=("single", "ddp"), devices=(1, 2)), Group(strategies=("ddp",), devices=(2, 4)))
    found = plan(Matrix("m", groups, steps=1, control=False))
    places = [(cell["strategy"], cell["devices"]) for cell in found]
    assert places == [("single", 1), ("single", 2), ("ddp", 1), ("ddp", 2), ("ddp", 4)]


def test_other_batches_precisions_and_layouts_are_other_cells():
    groups = (
        Group(strategies=("ddp",), devices=(2,), batch=64),
        Group(strategies=("ddp",), devices=(2,), batch=128),
        Group(strategies=("ddp",), devices=(2,), batch=64, precision=("amp-bf16",)),
        Group(strategies=("ddp",), devices=(2,), batch=64, memory_format="channels_last"),
        Group(strategies=("ddp",), devices=(2,), batch=64, accumulate=2),
        Group(strategies=("ddp",), devices=(2,), batch=64, compile="default"),
    )
    assert len({cell.key for cell in plan(Matrix("m", groups, steps=1, control=False))}) == len(groups)


def test_the_product_of_a_groups_lists():
    found = cells("ddp", "ddp_amp", devices=(1, 2), scaling=("strong", "weak"), precision=("amp-bf16", "amp-fp16"))
    assert len({cell.key for cell in found}) == 2 * 2 * 2 * 2


def test_the_baseline_has_one_twin_and_it_comes_last():
    found = cells("ddp", "single", devices=(1, 2), control=True)
    twins = [cell for cell in found if cell["role"] == "control"]
    assert [(cell["strategy"], cell["devices"], cell["role"]) for cell in twins] == [("single", 1, "control")]
    assert found[-1] is twins[0]
    (other,) = [cell for cell in cells("ddp", baseline="ddp@2", control=True) if cell["role"] == "control"]
    assert (other["strategy"], other["devices"]) == ("ddp", 2)


def test_no_twin_without_the_baseline_or_of_an_unsupported_one():
    assert all(cell["role"] == "measure" for cell in cells("ddp", control=True))
    assert all(cell["role"] == "measure" for cell in cells("single", devices=(2,), baseline="single@2", control=True))


def test_breakdown_adds_a_marked_twin_of_every_measured_cell():
    found = cells("single", "dp", "ddp", breakdown=True)
    roles = Counter(cell["role"] for cell in found)
    assert roles == {"measure": 6, "breakdown": 4}
    assert all(not cell.status for cell in found if cell["role"] == "breakdown")
    assert len({cell.key for cell in found}) == 10


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


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def six_cells():
    return [cell for cell in cells(*SIX, devices=(1,), control=True) if not cell.status]


def test_a_block_is_every_measured_cell_once():
    found = cells(*SIX, control=True, breakdown=True)
    order = block_order(found, seed=0, block=0)
    assert Counter(cell.key for cell in order) == Counter(cell.key for cell in found if not cell.status)


def test_a_blocks_order_is_fixed_by_seed_and_block(six_cells):
    def order(seed, block):
        return [cell.key for cell in block_order(six_cells, seed=seed, block=block)]

    assert order(0, 3) == order(0, 3)
    assert len({tuple(order(0, block)) for block in range(10)}) > 5
    assert len({tuple(order(seed, 0)) for seed in range(10)}) > 5
    assert order(1, 10) != order(11, 0)


def test_every_cell_stands_at_every_place_equally_often(six_cells):
    """2,000 blocks; chi-square of each cell's places against equal shares, Bonferroni over the cells at 1e-4."""
    blocks = 2_000
    counts = {cell.key: Counter() for cell in six_cells}
    for block in range(blocks):
        for place, cell in enumerate(block_order(six_cells, seed=0, block=block)):
            counts[cell.key][place] += 1
    for places in counts.values():
        observed = [places[place] for place in range(len(six_cells))]
        assert sum(observed) == blocks
        assert stats.chisquare(observed).pvalue > 1e-4 / len(six_cells)
