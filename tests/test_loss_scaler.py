"""float16's loss scaler: a step that it skips changes nothing and is counted."""

from __future__ import annotations

import torch
from truth_ranks import built, data

from strategies.places import one_process


def test_a_skipped_step_changes_nothing_and_is_counted() -> None:
    strategy = built("single", one_process(), 0, model="plain", precision="amp-fp16")
    inputs, targets = data()
    hashes = [strategy.fingerprint()]
    for step in range(3):
        strategy.forward_backward([(inputs[step], targets[step])])
        if step == 1:
            next(strategy.model.parameters()).grad[0] = torch.inf
        strategy.apply()
        hashes.append(strategy.fingerprint())
    assert strategy.skipped_steps() == 1
    assert strategy.skipped_steps() == 0, "it is counted since it was last asked"
    assert hashes[1] != hashes[0]
    assert hashes[2] == hashes[1]
    assert hashes[3] != hashes[2]


def test_a_fused_optimizer_skips_in_its_own_kernel_and_is_counted() -> None:
    strategy = built("single_tuned", one_process(), 0, model="plain", precision="amp-fp16")
    inputs, targets = data()
    for step in range(3):
        strategy.forward_backward([strategy.place(inputs[step], targets[step])])
        if step == 1:
            next(strategy.model.parameters()).grad[0] = torch.inf
        before = strategy.fingerprint()
        strategy.apply()
        assert (strategy.fingerprint() == before) == (step == 1)
    assert strategy.skipped_steps() == 1


def test_what_warm_up_skipped_is_forgotten_by_restore() -> None:
    strategy = built("single", one_process(), 0, model="plain", precision="amp-fp16")
    inputs, targets = data()
    start = strategy.snapshot()
    strategy.forward_backward([(inputs[0], targets[0])])
    next(strategy.model.parameters()).grad[0] = torch.inf
    strategy.apply()
    strategy.restore(start)
    assert strategy.skipped_steps() == 0


def test_a_snapshot_can_be_restored_twice() -> None:
    strategy = built("single", one_process(), 0, model="plain", precision="fp32")
    inputs, targets = data()

    def step() -> str:
        strategy.forward_backward([(inputs[0], targets[0])])
        strategy.apply()
        return strategy.fingerprint()

    step()
    middle = strategy.snapshot()
    wanted = step()
    for _ in range(2):
        strategy.restore(middle)
        assert step() == wanted


def test_loaded_momentum_takes_the_layout_of_its_parameter() -> None:
    contiguous = built("single", one_process(), 0, model="plain", precision="fp32")
    inputs, targets = data()
    contiguous.forward_backward([(inputs[0], targets[0])])
    contiguous.apply()
    tuned = built("single_tuned", one_process(), 0, model="plain", precision="fp32")
    tuned.load_bare_state(contiguous.bare_state())
    for parameter, kept in tuned.optimizer.state.items():
        assert kept["momentum_buffer"].stride() == parameter.stride()
    assert tuned.fingerprint() == contiguous.fingerprint()


def test_without_a_scaler_nothing_is_counted() -> None:
    strategy = built("single", one_process(), 0, model="plain", precision="fp32")
    inputs, targets = data()
    strategy.forward_backward([(inputs[0], targets[0])])
    strategy.apply()
    assert strategy.skipped_steps() == 0
    assert not strategy.optimizer._optimizer_step_post_hooks
