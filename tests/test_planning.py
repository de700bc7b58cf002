"""From a matrix to cells, on machines that are made up: batches, plans, refusals, twins and the order of blocks."""

from collections import Counter

import pytest
from planning import CPU, CUDA, SIX, cells, one, plan
from scipy import stats

from bench.errors import UserError
from bench.plan.cells import block_order, device_counts
from bench.plan.matrix import Group, Matrix, load_matrix

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
