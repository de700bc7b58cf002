"""float16's loss scaler: a step that it skips changes nothing and is counted."""

from __future__ import annotations

import torch
from truth_ranks import built, data

from bench.worker.account import parameter_hash
from bench.worker.build import _count_steps
from strategies.base import Plan


def test_a_skipped_step_changes_nothing_and_is_counted() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    strategy = built("single", plan, 0, model="plain", precision="amp-fp16")
    taken = _count_steps(strategy)
    inputs, targets = data()
    hashes = [parameter_hash(strategy)]
    for step in range(3):
        strategy.forward_backward([(inputs[step], targets[step])])
        if step == 1:
            next(strategy.model.parameters()).grad[0] = torch.inf
        strategy.apply()
        hashes.append(parameter_hash(strategy))
    assert taken == [2]
    assert hashes[1] != hashes[0]
    assert hashes[2] == hashes[1]
    assert hashes[3] != hashes[2]


def test_a_fused_optimizer_skips_in_its_own_kernel_and_is_counted() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    strategy = built("single_tuned", plan, 0, model="plain", precision="amp-fp16")
    taken = _count_steps(strategy)
    inputs, targets = data()
    for step in range(3):
        strategy.forward_backward([strategy.place(inputs[step], targets[step])])
        if step == 1:
            next(strategy.model.parameters()).grad[0] = torch.inf
        before = parameter_hash(strategy)
        strategy.apply()
        assert (parameter_hash(strategy) == before) == (step == 1)
    assert int(taken[0]) == 2


def test_a_snapshot_can_be_restored_twice() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    strategy = built("single", plan, 0, model="plain", precision="fp32")
    inputs, targets = data()

    def step() -> str:
        strategy.forward_backward([(inputs[0], targets[0])])
        strategy.apply()
        return parameter_hash(strategy)

    step()
    middle = strategy.snapshot()
    wanted = step()
    for _ in range(2):
        strategy.restore(middle)
        assert step() == wanted


def test_loaded_momentum_takes_the_layout_of_its_parameter() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    contiguous = built("single", plan, 0, model="plain", precision="fp32")
    inputs, targets = data()
    contiguous.forward_backward([(inputs[0], targets[0])])
    contiguous.apply()
    tuned = built("single_tuned", plan, 0, model="plain", precision="fp32")
    tuned.load_bare_state(contiguous.bare_state())
    for parameter, kept in tuned.optimizer.state.items():
        assert kept["momentum_buffer"].stride() == parameter.stride()
    assert parameter_hash(tuned) == parameter_hash(contiguous)


def test_without_a_scaler_nothing_is_counted() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    strategy = built("single", plan, 0, model="plain", precision="fp32")
    taken = _count_steps(strategy)
    inputs, targets = data()
    strategy.forward_backward([(inputs[0], targets[0])])
    strategy.apply()
    assert taken == [0]
