"""What every strategy answers when the harness asks, against values worked out by hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from truth_ranks import SHAPE, built, data, frozen_model, make_optimizer, plain_model, plan_for

from strategies import Registry
from strategies.base import Context, Strategy
from strategies.data_parallel import DataParallel
from strategies.places import SERVE, Place, Plan, data_parallel, one_process
from strategies.state import distance, sample_of

ALONE = [name for name in Registry.collect().entries if plan_for(Registry.collect().load(name)(), 1)]
"""Strategies that can run as one process on the CPU."""


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    """A process group of this process alone, with no socket."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def alone(name: str, make_model: Callable[[], nn.Module] = plain_model) -> Strategy:
    found = plan_for(Registry.collect().load(name)(), 1)
    assert found is not None
    return built(name, found[1], 0, model="", precision="fp32", make_model=make_model)


def gradients(strategy: Strategy) -> None:
    inputs, targets = data()
    strategy.forward_backward([strategy.place(inputs[0], targets[0])])


# -- the model, from outside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALONE)
def test_the_fingerprint_is_that_of_the_parameters_bytes_by_name(name: str) -> None:
    strategy, expected = alone(name), hashlib.sha256()
    for key in ("0.bias", "0.weight", "2.bias", "2.weight", "6.bias", "6.weight"):
        expected.update(key.encode())
        expected.update(plain_model().get_parameter(key).detach().numpy().tobytes())
    assert strategy.fingerprint() == expected.hexdigest()[:16]


def test_one_bit_is_another_fingerprint() -> None:
    strategy = alone("single")
    before = strategy.fingerprint()
    last = strategy.model.get_parameter("6.bias").data
    last[0] = torch.nextafter(last[0], torch.tensor(torch.inf))
    assert strategy.fingerprint() != before


@pytest.mark.parametrize("name", ALONE)
def test_the_number_of_values_that_train(name: str) -> None:
    """Convolutions 3-8 and 8-8 of 3 x 3 and linear 32-5, with biases; 3-8 frozen, BatchNorm of 8 and linear 32-5."""
    assert alone(name).trainable_count() == (27 + 1) * 8 + (72 + 1) * 8 + (32 + 1) * 5
    assert alone(name, frozen_model).trainable_count() == 2 * 8 + (32 + 1) * 5


@pytest.mark.parametrize("name", ALONE)
def test_gradients_are_told_by_the_names_of_the_bare_model(name: str) -> None:
    strategy = alone(name, frozen_model)
    assert strategy.gradient_names() == ()
    gradients(strategy)
    assert strategy.gradient_names() == ("1.weight", "1.bias", "5.weight", "5.bias")
    strategy.apply()
    assert strategy.gradient_names() == ()


def two_weights() -> nn.Module:
    """y = 1 a + 2 b, as a sequence that can be split over two devices."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Identity())
    model[0].weight.data = torch.tensor([[1.0, 2.0]])
    return model


@pytest.mark.parametrize("name", ALONE)
def test_the_norm_of_an_update_is_that_of_a_step_by_hand(name: str) -> None:
    """y = 3 against 0: the square's gradient is 6 for each weight; at a rate of 0.1 both change by 0.6."""
    found = plan_for(Registry.collect().load(name)(), 1)
    assert found is not None
    strategy = Registry.collect().load(name)()
    devices = (torch.device("cpu"),) * found[1].places[0].devices
    strategy.build(Context(0, found[1], devices, nn.functional.mse_loss, (2,)), two_weights, make_optimizer)
    whole, start = strategy.snapshot(), strategy.parameter_sample()
    assert (strategy.update_norm(start), strategy.changed_tensors(start)) == (0.0, 0)
    strategy.forward_backward([strategy.place(torch.ones(1, 2), torch.zeros(1, 1))])
    strategy.apply()
    assert strategy.update_norm(start) == pytest.approx(math.sqrt(2 * 0.6**2), rel=1e-6)
    assert strategy.changed_tensors(start) == 1
    strategy.restore(whole)
    assert (strategy.update_norm(start), strategy.changed_tensors(start)) == (0.0, 0)


def test_the_norm_of_a_large_parameter_is_estimated_from_some_of_its_values() -> None:
    """A million values, changed by 3 each: the norm is 3000 however few are looked at, and random ones are close."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1000, 1000, generator=generator)
    start = sample_of([("w", before)])
    assert 3900 < len(start["w"]) < 4200
    assert distance([("w", before + 3)], start) == pytest.approx(3000)
    noise = torch.randn(1000, 1000, generator=generator)
    assert distance([("w", before + noise)], start) == pytest.approx(1000, rel=0.05)
    # One column alone: every place of a row is met.
    column = before.clone()
    column[:, 7] += 1
    assert distance([("w", column)], start) == pytest.approx(math.sqrt(1000), rel=0.5)


@pytest.mark.parametrize("name", ALONE)
def test_the_bare_state_loads_into_the_bare_model(name: str) -> None:
    strategy = alone(name, frozen_model)
    gradients(strategy)
    strategy.apply()
    bare = frozen_model()
    bare.load_state_dict(strategy.bare_state()["model"], strict=True)
    assert not torch.equal(bare[5].weight, frozen_model()[5].weight)
    again = alone(name, frozen_model)
    again.load_bare_state(strategy.bare_state())
    assert again.fingerprint() == strategy.fingerprint()


@pytest.mark.parametrize("name", ALONE)
def test_evaluation_is_left_for_training_whatever_happens(name: str) -> None:
    strategy = alone(name, frozen_model)
    inputs, _ = data()
    with strategy.evaluating():
        assert not any(layer.training for layer in strategy.model.modules())
        first, again = strategy.predict(inputs[0]), strategy.predict(inputs[0])
        assert first is not None
        assert again is not None
        assert (first.shape, first.requires_grad) == ((16, 5), False)
        assert torch.equal(first, again)
    assert all(layer.training for layer in strategy.model.modules())

    def fail() -> None:
        with strategy.evaluating():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all(layer.training for layer in strategy.model.modules())


def test_the_region_without_exchange_ends_whatever_happens() -> None:
    strategy = alone("ddp")
    with strategy.without_exchange():
        assert not strategy.exchange
    assert strategy.exchange

    def fail() -> None:
        with strategy.without_exchange():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert strategy.exchange


def test_what_a_whole_model_in_one_process_has_nothing_to_do_for() -> None:
    strategy = alone("single")
    before = strategy.fingerprint()
    strategy.settle()
    with strategy.epoch():
        pass
    assert (strategy.fingerprint(), strategy.skipped_steps(), strategy.traffic()) == (before, 0, {})


def test_a_plan_with_a_server_needs_a_strategy_that_serves() -> None:
    with pytest.raises(NotImplementedError, match=r"Single plans a rank that serves, and has no serve\(\)"):
        alone("single").serve()


def test_the_context_knows_the_place_of_its_rank() -> None:
    plan = Plan((Place(role=SERVE), Place(part=0), Place(part=1)))
    context = Context(2, plan, (torch.device("cpu"),), nn.functional.mse_loss, SHAPE)
    assert (context.world_size, context.place) == (3, Place(part=1))


# -- traffic, in numbers; what gloo really does is held against it in the truths -------------------------------------

CONV, NORM, LINEAR, BUFFERS = 4 * (27 + 1) * 8, 4 * 2 * 8, 4 * (32 + 1) * 5, 4 * 2 * 8 + 8
"""Bytes of the parameters of the model with BatchNorm, and of its two statistics and its count of batches."""


def of_two(name: str, **changes: Any) -> dict[str, int]:
    """What rank 0 of two would say, without a second one."""
    strategy = alone(name, frozen_model if changes.pop("frozen", False) else normed)
    plan = data_parallel(2)
    strategy.context = Context(0, plan, strategy.context.devices, nn.functional.cross_entropy, SHAPE, **changes)
    return dict(strategy.traffic())


def normed() -> nn.Module:
    model = frozen_model()
    return model.requires_grad_(True)


def test_ddp_reduces_its_gradients_and_broadcasts_its_buffers() -> None:
    assert of_two("ddp") == {"all_reduce": CONV + NORM + LINEAR, "broadcast": BUFFERS}
    assert of_two("ddp", accumulate=4) == of_two("ddp")
    assert of_two("ddp", frozen=True)["all_reduce"] == NORM + LINEAR
    assert "broadcast" not in of_two("ddp", options={"broadcast_buffers": False})
    # One number for each of six parameter tensors.
    assert of_two("ddp", options={"find_unused_parameters": True})["all_reduce"] == CONV + NORM + LINEAR + 4 * 6


def test_synchronised_batch_norm_adds_its_statistics_in_each_micro_batch() -> None:
    gradients = CONV + NORM + LINEAR
    assert of_two("ddp_syncbn") == {
        "all_reduce": gradients + 4 * 2 * 8,
        "all_gather": 4 * (2 * 8 + 1),
        "broadcast": BUFFERS,
    }
    assert of_two("ddp_syncbn", accumulate=3)["all_reduce"] == gradients + 3 * 4 * 2 * 8
    assert of_two("ddp_syncbn", accumulate=3)["all_gather"] == 3 * 4 * (2 * 8 + 1)


@pytest.mark.parametrize("name", ALONE)
def test_one_process_has_no_traffic(name: str) -> None:
    assert alone(name).traffic() == {}


@pytest.mark.parametrize("accumulate", [1, 3])
def test_data_parallel_moves_the_model_out_and_the_gradients_back(accumulate: int) -> None:
    strategy, gpus = DataParallel(), tuple(torch.device("cuda", number) for number in range(4))
    plan = one_process(4, copies=4)
    strategy.context = Context(0, plan, gpus, nn.functional.cross_entropy, SHAPE, accumulate=accumulate)
    strategy.model = frozen_model()
    assert strategy.traffic() == {
        "broadcast": accumulate * (CONV + NORM + LINEAR + BUFFERS),
        "reduce": accumulate * (NORM + LINEAR),
    }
