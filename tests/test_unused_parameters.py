"""A parameter that gets no gradient in the first step, of DDP in a group of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from truth_ranks import make_optimizer

from strategies.base import Context
from strategies.ddp import DDP
from strategies.places import data_parallel


class Gated(nn.Module):
    """Two weights; the second is used where `used` says so."""

    def __init__(self, used: Callable[[], bool]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.first(x) + (self.second(x) if self.used() else 0)
        return outputs


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def built(used: Callable[[], bool], **options: Any) -> DDP:
    strategy = DDP()
    devices = (torch.device("cpu"),)
    context = Context(0, data_parallel(1), devices, nn.functional.mse_loss, (2,), options=options)
    strategy.build(context, lambda: Gated(used), make_optimizer)
    return strategy


def step(strategy: DDP, micro: int = 1) -> None:
    strategy.forward_backward([(torch.ones(1, 2), torch.zeros(1, 1))] * micro)
    strategy.apply()


def test_the_first_step_names_them_and_the_option() -> None:
    words = r"1 of 2 parameters had no gradient in the first step on rank 0 \(second.weight\).*find_unused_parameters"
    with pytest.raises(RuntimeError, match=words):
        step(built(lambda: False))


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_where_torch_copes_nothing_is_said(options: dict[str, Any]) -> None:
    strategy = built(lambda: False, **options)
    step(strategy)
    step(strategy)


def test_a_frozen_parameter_is_not_waited_for() -> None:
    strategy = DDP()
    context = Context(0, data_parallel(1), (torch.device("cpu"),), nn.functional.mse_loss, (2,))

    def make_model() -> nn.Module:
        model = Gated(lambda: False)
        model.second.requires_grad_(False)
        return model

    strategy.build(context, make_model, make_optimizer)
    step(strategy)
    step(strategy)


def test_of_several_micro_batches_one_is_enough() -> None:
    """The second weight takes part in the last one alone."""
    turn = iter([False, True])
    step(built(lambda: next(turn)), micro=2)


def test_later_steps_are_left_to_torch() -> None:
    turn = iter([True, False, True])
    strategy = built(lambda: next(turn))
    step(strategy)
    step(strategy)
    with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior iteration"):
        step(strategy)


def test_few_names_stand_for_many() -> None:
    strategy = DDP()
    context = Context(0, data_parallel(1), (torch.device("cpu"),), nn.functional.mse_loss, (2,))

    class Many(Gated):
        def __init__(self) -> None:
            super().__init__(lambda: False)
            self.more = nn.ParameterList(torch.ones(1) for _ in range(3))

    strategy.build(context, Many, make_optimizer)
    with pytest.raises(RuntimeError, match=r"4 of 5 .*\(second.weight, more.0, more.1, ...\)"):
        step(strategy)
