"""What warm-up changes and must put back, and what a checkpoint of another strategy must not bring along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from campaigns import save_arrays, spec
from test_hooks import alone
from torch import Tensor, nn

from bench.run.launch import launch
from bench.run.node import LocalNode
from bench.run.rows import names_hash
from strategies.single import Single
from strategies.state import load_optimizer


class Stateful(nn.Module):
    """A buffer that state_dict leaves out, one that grows, and a count that is part of it by torch's own hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("shown", torch.zeros(2))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.register_buffer("growing", torch.zeros(1), persistent=False)
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += 1
        self.hidden += 1
        self.growing = torch.cat([self.growing, self.growing])
        self.count += 1
        return self.layer(x) + self.hidden

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


class Scheduled(Single):
    """A strategy with a counter of its own."""

    ticks = 0

    def apply(self) -> None:
        super().apply()
        self.ticks += 1

    def further_state(self) -> Any:
        return {"ticks": self.ticks}

    def load_further_state(self, state: Any) -> None:
        self.ticks = state["ticks"]


def values(strategy: Any) -> list[Any]:
    model = strategy.model
    return [*(t.clone() for t in (model.shown, model.hidden, model.growing, model.layer.weight.detach())), model.count]


def test_everything_goes_back_whether_or_not_state_dict_holds_it() -> None:
    strategy = alone("single", Stateful)
    start, before = strategy.snapshot(), values(strategy)
    for _ in range(2):
        for _ in range(3):
            strategy.module(torch.ones(5, 4)).sum().backward()
            strategy.apply()
        assert len(strategy.model.growing) == 8
        strategy.restore(start)
        after = values(strategy)
        assert all(torch.equal(a, b) for a, b in zip(before[:4], after[:4], strict=True))
        assert after[4] == before[4] == 0


def test_a_strategy_s_own_state_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = alone("single", Stateful)
    strategy.__class__ = Scheduled
    start = strategy.snapshot()
    strategy.apply()
    assert strategy.ticks == 1
    strategy.restore(start)
    assert strategy.ticks == 0


LEAKING = """
import torch
from strategies.single import Single

class Leaking(Single):
    '''Scales its loss by a number that warm-up changes and nothing puts back.'''
    factor = 1.0

    def forward_backward(self, micro):
        loss = super().forward_backward(micro) * self.factor
        self.factor *= 1.01
        return loss

class Sound(Leaking):
    def further_state(self):
        return self.factor

    def load_further_state(self, state):
        self.factor = state

STRATEGIES = {"leaking": Leaking, "sound": Sound}
"""


@pytest.mark.parametrize(("name", "leaks"), [("leaking", True), ("sound", False)])
def test_a_leak_is_seen_by_the_first_loss(tmp_path: Path, node: LocalNode, name: str, leaks: bool) -> None:
    from bench.run.gates import leak
    from strategies.places import one_process

    (tmp_path / "s.py").write_text(LEAKING)
    made = spec(
        tmp_path / "run",
        save_arrays(tmp_path / "data"),
        plan=one_process(),
        backend="",
        strategy=name,
        strategy_files=(str(tmp_path / "s.py"),),
        warmup_steps=3,
    )
    measurement = launch(made, node=node).measurement
    assert measurement is not None
    assert bool(leak(measurement.epochs[0], "fp32")) is leaks


@pytest.mark.parametrize("saved", [{"fused": True}, {"foreach": True}, {}])
@pytest.mark.parametrize("own", [{"fused": True}, {"foreach": False}, {}])
def test_an_optimizer_keeps_its_own_kernels(saved: dict[str, bool], own: dict[str, bool]) -> None:
    def made(options: dict[str, bool]) -> torch.optim.Optimizer:
        parameter = nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        return torch.optim.SGD([parameter], lr=0.1, momentum=0.9, **options)

    before, after = made(saved), made(own)
    before.param_groups[0]["lr"] = 0.01
    before.step()
    expected = {name: after.param_groups[0][name] for name in ("fused", "foreach")}
    load_optimizer(after, before.state_dict())
    assert {name: after.param_groups[0][name] for name in ("fused", "foreach")} == expected
    # What says what is computed is the state's.
    assert after.param_groups[0]["lr"] == 0.01
    after.step()


def test_names_have_one_hash_in_any_order() -> None:
    assert names_hash(["a", "b"]) == names_hash(["b", "a"]) != names_hash(["a"])
