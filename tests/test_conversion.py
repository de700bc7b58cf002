"""BatchNorm layers replaced by those over all replicas: the same parameters, buffers and places, or a reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from strategies.layers import replace_batch_norm, sequence_of
from strategies.places import Unsupported
from strategies.sync_batch_norm import SyncBatchNorm

KINDS = [SyncBatchNorm, nn.SyncBatchNorm]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Twice(nn.Module):
    """One layer under two names here, and once more in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(3)
        self.second = self.first
        self.branch = nn.Sequential(nn.Linear(3, 3), self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(self.second(self.first(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_in_several_places_stays_one(kind: type) -> None:
    model = Twice()
    before = dict(model.named_parameters())
    assert replace_batch_norm(model, kind) is model
    assert type(model.first) is kind
    assert model.first is model.second is model.branch[1]
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_stays_frozen_and_buffers_are_the_same(kind: type) -> None:
    layer = nn.BatchNorm2d(4, eps=0.1, momentum=None)
    layer.weight.requires_grad_(False)
    layer.running_mean.fill_(3.0)
    model = replace_batch_norm(nn.Sequential(layer).eval(), kind)
    made = model[0]
    assert (made.eps, made.momentum, made.training) == (0.1, None, False)
    assert not made.weight.requires_grad
    assert made.bias.requires_grad
    assert made.running_mean is layer.running_mean
    assert made.state_dict().keys() == layer.state_dict().keys()


def test_a_model_that_is_one_layer() -> None:
    assert type(replace_batch_norm(nn.BatchNorm1d(2), SyncBatchNorm)) is SyncBatchNorm


class Own(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Gated(nn.BatchNorm1d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gate = nn.Parameter(torch.ones(channels))


class Renamed(nn.BatchNorm1d):
    """Nothing of its own."""


def hooked() -> nn.Module:
    layer = nn.BatchNorm1d(2)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (Own(2), "Own has a forward of its own"),
        (Gated(2), "Gated has parameters, buffers or layers of its own"),
        (hooked(), "BatchNorm1d has hooks"),
    ],
)
def test_a_layer_that_does_more_is_not_replaced(kind: type, layer: nn.Module, what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        replace_batch_norm(nn.Sequential(layer), kind)


def test_a_subclass_that_does_no_more_is_replaced() -> None:
    assert type(replace_batch_norm(nn.Sequential(Renamed(2)), SyncBatchNorm)[0]) is SyncBatchNorm


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_alone_it_computes_what_batch_norm_does(affine: bool, tracks: bool, training: bool) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, affine=affine, track_running_stats=tracks).double().float()
    made = replace_batch_norm(
        nn.Sequential(nn.BatchNorm2d(3, affine=affine, track_running_stats=tracks)), SyncBatchNorm
    )
    plain.train(training)
    made.train(training)
    found = []
    for layer in (plain, made):
        x = torch.linspace(-2, 5, 2 * 3 * 4 * 4).sin().view(2, 3, 4, 4).requires_grad_()
        y = layer(x)
        (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum().backward()
        found.append((y.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    if affine:
        torch.testing.assert_close(plain.weight.grad, made[0].weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(plain.named_buffers()), dict(made[0].named_buffers()))


class Shortcut(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


def test_a_sequence_with_a_forward_of_its_own_is_not_taken_apart() -> None:
    with pytest.raises(Unsupported, match=r"Shortcut has no sequence\(\) of layers"):
        sequence_of(Shortcut(nn.Linear(2, 2)))
    shared = nn.Linear(2, 2)
    # A layer that runs twice is there twice.
    assert sequence_of(nn.Sequential(shared, nn.ReLU(), shared))[2] is shared
