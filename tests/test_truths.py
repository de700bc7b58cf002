"""The truths of every strategy, on two real gloo ranks; one conformance test runs over every registered name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import truth_ranks
from torch import nn
from truth_ranks import STEPS, built, data, plan_for, runs_at, train

from bench.run.node import can_fork
from strategies import Registry
from strategies.base import Plan, Strategy, Unsupported
from strategies.places import Asked, one_process

NAMES = list(Registry.collect().entries)
GROUPED = [name for name in NAMES if plan_for(Registry.collect().load(name)(), 2)]
FP32 = [name for name in GROUPED if runs_at(name, "fp32")]
# bfloat16 keeps 8 bits of a number: 2**-8 = 0.4 % each, and a few of them in a row.
TOLERANCES = {"fp32": 1e-5, "amp-bf16": 3e-2}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Both ranks' results, by name."""
    folder = tmp_path_factory.mktemp("truths")
    environment = pytest.MonkeyPatch()
    loopback = "lo" if "lo" in [name for _, name in socket.if_nameindex()] else "lo0"
    environment.setenv("GLOO_SOCKET_IFNAME", loopback)
    try:
        method = "forkserver" if can_fork() else "spawn"
        mp.start_processes(truth_ranks.rank_main, args=(2, GROUPED, str(folder)), nprocs=2, start_method=method)
    finally:
        environment.undo()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A process group of this process alone, with no socket: what a strategy on one device needs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone() -> dict[Any, dict[str, Any]]:
    """`single` on the same global batches, by model and precision."""
    plan = one_process()
    return {
        (model, precision): train(built("single", plan, 0, model=model, precision=precision), plan, 0)
        for model in truth_ranks.MODELS
        for precision in ("fp32", "amp-bf16")
    }


def hand_written() -> tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The same three steps without the suite: losses, first gradients, final parameters."""
    model = truth_ranks.plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = data()
    losses, gradients = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step]), targets[step])
        loss.backward()
        if step == 0:
            gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        losses.append(loss.item())
        optimizer.step()
    return losses, gradients, {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_single_is_the_plain_loop(alone: dict[Any, dict[str, Any]]) -> None:
    losses, gradients, parameters = hand_written()
    single = alone["plain", "fp32"]
    assert single["losses"] == losses
    for name, gradient in gradients.items():
        assert torch.equal(single["gradients"][name], gradient)
    for name, parameter in parameters.items():
        assert torch.equal(single["state"]["model"][name], parameter)


@pytest.mark.parametrize("precision", list(TOLERANCES))
@pytest.mark.parametrize("name", GROUPED)
def test_first_steps_give_singles_losses_and_gradients(
    name: str, precision: str, ranks: list[dict[str, Any]], alone: dict[Any, dict[str, Any]]
) -> None:
    if ("plain", precision) not in ranks[0][name]:
        pytest.skip(f"{name} does not run at {precision}")
    tolerance = TOLERANCES[precision]
    expected = alone["plain", precision]
    mine = [rank[name]["plain", precision] for rank in ranks]
    losses = [sum(rank["losses"][step] for rank in mine) / len(mine) for step in range(STEPS)]
    assert losses == pytest.approx(expected["losses"], rel=tolerance)
    for rank in mine:
        assert rank["gradients"].keys() == expected["gradients"].keys()
        for parameter, gradient in expected["gradients"].items():
            scale = float(gradient.abs().max())
            torch.testing.assert_close(rank["gradients"][parameter], gradient, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", GROUPED)
def test_all_replicas_hold_the_same_parameters(name: str, ranks: list[dict[str, Any]]) -> None:
    runs = [key for key in ranks[0][name] if isinstance(key, tuple)]
    assert runs
    for key in runs:
        assert ranks[0][name][key]["hash"] == ranks[1][name][key]["hash"], key


@pytest.mark.parametrize("name", FP32)
def test_accumulated_micro_batches_give_the_same_step(
    name: str, ranks: list[dict[str, Any]], alone: dict[Any, dict[str, Any]]
) -> None:
    expected = alone["plain", "fp32"]["gradients"]
    for rank in ranks:
        for parameter, gradient in expected.items():
            torch.testing.assert_close(
                rank[name]["accumulated"]["gradients"][parameter], gradient, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("name", GROUPED)
def test_accumulation_exchanges_gradients_once_a_step(name: str, ranks: list[dict[str, Any]]) -> None:
    """A silent no-op in `sync` leaves the losses equal and only costs time, so the collectives are counted."""
    for count in (rank[name]["collectives"] for rank in ranks):
        assert count[1] > 0
        assert count[1] == count[2] == count[4]


@pytest.mark.parametrize("case", truth_ranks.TRAFFIC)
@pytest.mark.parametrize("name", GROUPED)
def test_traffic_is_what_gloo_was_given(name: str, case: str, ranks: list[dict[str, Any]]) -> None:
    for said, counted in (rank[name]["traffic"][case] for rank in ranks):
        assert counted["all_reduce"] > 0
        assert said == counted


@pytest.mark.parametrize("name", GROUPED)
def test_a_checkpoint_has_the_same_buffers_from_every_rank(name: str, ranks: list[dict[str, Any]]) -> None:
    """Each rank's statistics are of its own samples unless they are synchronised; rank 0's are what counts."""
    key = next(key for key in ranks[0][name] if isinstance(key, tuple) and key[0] == "normed")
    first, second = (rank[name][key] for rank in ranks)
    own = torch.equal(first["buffers"]["1.running_mean"], second["buffers"]["1.running_mean"])
    assert own == (name == "ddp_syncbn")
    for buffer, value in first["buffers"].items():
        assert torch.equal(first["state"]["model"][buffer], value)
        assert torch.equal(second["state"]["model"][buffer], value)


@pytest.mark.parametrize("name", GROUPED)
def test_gradients_are_zeroed_by_apply(name: str, ranks: list[dict[str, Any]]) -> None:
    assert all(rank[name]["accumulated"]["zeroed"] for rank in ranks)


def test_synchronised_statistics_are_those_of_the_global_batch(
    ranks: list[dict[str, Any]], alone: dict[Any, dict[str, Any]]
) -> None:
    expected = alone["normed", "fp32"]
    for rank in ranks:
        found = rank["ddp_syncbn"]["normed", "fp32"]
        for name, buffer in expected["buffers"].items():
            torch.testing.assert_close(found["buffers"][name], buffer, rtol=1e-5, atol=1e-6)
        for name, gradient in expected["gradients"].items():
            torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-4, atol=1e-6)


def test_plain_ddps_statistics_are_not(ranks: list[dict[str, Any]], alone: dict[Any, dict[str, Any]]) -> None:
    expected = alone["normed", "fp32"]["buffers"]["1.running_var"]
    found = ranks[0]["ddp"]["normed", "fp32"]["buffers"]["1.running_var"]
    assert float((found - expected).abs().max() / expected.abs().max()) > 0.01


@pytest.mark.parametrize("name", GROUPED)
def test_a_checkpoint_loads_strictly_into_the_bare_model(name: str, ranks: list[dict[str, Any]]) -> None:
    for model, make in truth_ranks.MODELS.items():
        for key, result in ranks[0][name].items():
            if isinstance(key, tuple) and key[0] == model:
                bare = make()
                bare.load_state_dict(result["state"]["model"], strict=True)
                assert not [k for k in result["state"]["model"] if k.startswith(("module.", "model.", "_orig_mod."))]


@pytest.mark.parametrize("name", GROUPED)
def test_a_checkpoint_loads_into_any_other_strategy(name: str, ranks: list[dict[str, Any]]) -> None:
    """Into `single` here, parameters and momentum, and on from there with the losses of the strategy that goes on."""
    usual = next(key for key in ranks[0][name] if isinstance(key, tuple) and key[0] == "plain")
    state = ranks[0][name][usual]["state"]
    plan = one_process()
    strategy = built("single", plan, 0, model="plain", precision="fp32")
    strategy.load_bare_state(state)
    for key, value in strategy.bare_state()["model"].items():
        assert torch.equal(value, state["model"][key])
    momenta = [entry["momentum_buffer"] for entry in strategy.optimizer.state_dict()["state"].values()]
    wanted = [entry["momentum_buffer"] for entry in state["optimizer"]["state"].values()]
    assert len(momenta) == len(wanted) > 0
    for found, expected in zip(momenta, wanted, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name: str) -> None:
    """What every registered strategy promises without a run: a pure plan that adds up, or a reason."""
    strategy = Registry.collect().load(name)()
    assert isinstance(strategy, Strategy)
    supported, reasons = 0, []
    for kind in ("cpu", "cuda"):
        assert runs_at(name, strategy.default_precision[kind])
        for devices in range(1, 9):
            try:
                plan = strategy.plan(Asked(devices, kind, strategy.default_options))
            except Unsupported as error:
                reasons.append(str(error))
                continue
            supported += 1
            assert isinstance(plan, Plan)
            assert plan == strategy.plan(Asked(devices, kind, strategy.default_options))
            assert sum(place.devices for place in plan.places) == devices
            assert plan.replicas >= 1
            assert sorted(rank for part in range(plan.read_parts) for rank in plan.readers(part)) == plan.trainers
    assert supported
    assert all(len(reason) > 10 for reason in reasons)


@pytest.mark.parametrize("name", [name for name in NAMES if plan_for(Registry.collect().load(name)(), 1)])
def test_restore_goes_back_to_the_snapshot(name: str, group_of_one: None) -> None:
    """Warm-up leaves nothing behind: the timed steps are the first steps of training."""
    strategy = Registry.collect().load(name)()
    found = plan_for(strategy, 1)
    assert found is not None
    plan = found[1]
    strategy = built(name, plan, 0, model="normed", precision=strategy.default_precision["cpu"])
    start = strategy.snapshot()
    first = train(strategy, plan, 0)
    strategy.restore(start)
    again = train(strategy, plan, 0)
    assert again["losses"] == first["losses"]
    assert again["hash"] == first["hash"]
    for key, value in first["buffers"].items():
        assert torch.equal(again["buffers"][key], value)


def test_the_halves_of_a_split_resnet_are_near_equal() -> None:
    from bench import workloads
    from strategies.layers import sequence_of
    from strategies.model_parallel import layer_costs, split_point

    costs = layer_costs(sequence_of(workloads.load("resnet50-cifar10").make_model()), (3, 32, 32))
    cut = split_point(costs)
    assert 0.45 < sum(costs[:cut]) / sum(costs) < 0.55


def test_unequal_parts_are_refused() -> None:
    """A batch that does not divide never reaches a strategy: its parts would be of unequal weight."""
    from bench.worker.batches import Samples, TrainingBatches
    from bench.workloads import load

    samples = Samples(torch.zeros(30, 10), torch.zeros(30, 5))
    batches = TrainingBatches(samples, load("toy"), 15, 0, 2, 0)
    with pytest.raises(RuntimeError, match="invalid for input"):
        batches.positions(1, 2)
    with pytest.raises(ValueError, match="15 samples do not divide into 2 micro-batches"):
        truth_ranks.split((torch.zeros(15, 10), torch.zeros(15)), 2)


def test_data_parallel_on_one_cpu_is_single(alone: dict[Any, dict[str, Any]], tmp_path: Path) -> None:
    plan = one_process()
    found = train(built("dp", plan, 0, model="plain", precision="fp32"), plan, 0)
    assert found["losses"] == alone["plain", "fp32"]["losses"]
    assert found["hash"] == alone["plain", "fp32"]["hash"]
