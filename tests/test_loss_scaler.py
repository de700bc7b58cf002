"""float16's loss scaler: a step that it skips changes nothing and is counted."""

from __future__ import annotations

import torch
from truth_ranks import built, data

from bench.phases import _count_steps, parameter_hash
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


def test_without_a_scaler_nothing_is_counted() -> None:
    plan = Plan(processes=1, devices_per_process=1, replicas=1)
    strategy = built("single", plan, 0, model="plain", precision="fp32")
    taken = _count_steps(strategy)
    inputs, targets = data()
    strategy.forward_backward([(inputs[0], targets[0])])
    strategy.apply()
    assert taken == [0]
