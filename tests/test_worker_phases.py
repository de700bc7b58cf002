"""What a rank does around its loop, with doubles that have the hooks and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaigns import save_arrays, spec
from double import HOOKS, Script, Silent, live_together, make_double, use
from torch import nn

from bench.checkpoint import read_checkpoint
from bench.floor import Floor
from bench.run.gates import PASSED, run_gate
from bench.wire import RunSpec, measurement_path
from bench.worker import evaluate as evaluation
from bench.worker.account import gather_run, write_checkpoint
from bench.worker.build import Makers, build_run
from bench.worker.epoch import gather_epoch, timed_epoch, warm_up
from bench.worker.evaluate import evaluate
from bench.worker.exchange import communication
from bench.worker.rank import Rank
from bench.worker.tally import Tally
from strategies.base import Strategy
from strategies.places import SERVE, Place, Plan, data_parallel, one_process

CPU = (torch.device("cpu"),)
STEP = ["place", "place", "forward_backward", "apply"]
"""Two micro-batches a step."""


@pytest.fixture
def arrays(tmp_path: Path) -> dict[str, Path]:
    """64 training images and 32 test images: four steps of 16 are an epoch."""
    return save_arrays(tmp_path / "data", workload="cnn-cifar100")


def epoch_spec(folder: Path, arrays: dict[str, Path], plan: Plan | None = None, **changes: Any) -> RunSpec:
    folder.mkdir(exist_ok=True)
    work = {"workload": "cnn-cifar100", "steps": 4, "whole_epoch": True, "accumulate": 2, "backend": ""}
    return spec(folder, arrays, plan=plan or one_process(), **work | changes)


def threes(arrays: dict[str, Path]) -> int:
    """Test samples of the class that doubles answer."""
    return int((np.load(arrays["test_targets"]) == 3).sum())


# -- the double -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "optimizer", "scaler", "exchange", "share_buffers", "wrapper"])
def test_the_double_shows_who_looks_inside(name: str) -> None:
    double = make_double(Script())
    with pytest.raises(AssertionError, match=f"the harness reached for {name}"):
        getattr(double, name)
    with pytest.raises(AssertionError, match=f"the harness set {name}"):
        setattr(double, name, True)


def test_the_double_has_no_hook_that_strategies_lack() -> None:
    assert set(dir(Strategy)) >= HOOKS


# -- one rank, phase by phase -----------------------------------------------------------------------------------------


def test_the_phases_of_one_rank(tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    script, path = Script(), tmp_path / "end.pt"
    use(monkeypatch, lambda: make_double(script))
    told = epoch_spec(tmp_path / "run", arrays, checkpoint=str(path), compile="default")

    def called() -> list[str]:
        found, script.calls[:] = list(script.calls), []
        return found

    run = build_run(told, Rank(told, 0, 1, CPU))
    assert called() == ["build", "snapshot"]
    first_step_seconds = warm_up(run, Silent())
    assert called() == [
        "parameter_sample",
        "epoch",
        *STEP[:3],
        "gradient_names",
        "apply",
        "epoch is left",
        "restore",
        "parameter_sample",
    ]
    assert first_step_seconds is not None
    assert (script.steps, run.start) == (0, {})

    timed = timed_epoch(run, 1, Silent(), Floor("r", 0))
    assert called() == ["parameter_sample", "epoch", *STEP * 4, "epoch is left"]
    assert (timed.samples, [float(loss) for loss in timed.losses]) == ([16] * 4, [10.0, 9.0, 8.0, 7.0])
    measured = gather_epoch(run, 1, timed)
    assert called() == [
        "parameter_sample",
        "settle",
        "fingerprint",
        "update_norm",
        "changed_tensors",
        "trainable_count",
        "skipped_steps",
        "parameter_sample",
    ]
    assert (measured.loss_first, measured.loss_last, measured.skipped_steps) == (10.0, 7.0, 1)
    assert (measured.parameter_hashes, measured.samples) == (["4 steps"], [[16] * 4])

    measured = evaluate(run, measured)
    assert called() == ["evaluating", "place", "predict", "evaluating is left"]
    assert (measured.evaluated, measured.correct) == (32, threes(arrays))
    write_checkpoint(run)
    assert called() == ["settle", "bare_state"]
    assert read_checkpoint(path, workload="cnn-cifar100")["model"] == {"steps": torch.tensor(4)}
    seconds = {f"{name}_seconds": 0.25 for name in ("launch", "init", "build", "warmup", "compile")}
    result = gather_run(run, [measured], **seconds)
    assert called() == ["details", "warnings"]
    assert (result.details, result.warnings, result.gradient_bytes) == ({"double": "yes"}, ["a double"], 0)
    assert (result.launch_seconds, result.compile_seconds) == (0.25, 0.25)
    assert run_gate(measured, told.cell.plan, expected_samples=64, test_count=32) == PASSED
    # One of training, in two micro-batches, and the test set in one batch.
    assert script.sizes == [8, 8] * 5 + [32]


def test_a_run_starts_from_a_checkpoint(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, path = Script(steps=5), tmp_path / "end.pt"
    use(monkeypatch, lambda: make_double(script))
    told = epoch_spec(tmp_path / "run", arrays, checkpoint=str(path))
    write_checkpoint(build_run(told, Rank(told, 0, 1, CPU)))
    script.steps, script.calls[:] = 0, []
    told = epoch_spec(tmp_path / "run", arrays, initial_state=str(path))
    assert build_run(told, Rank(told, 0, 1, CPU)).start == {"steps": 5}
    assert script.calls == ["build", "load_bare_state", "snapshot"]


@pytest.mark.parametrize("silent", [True, False])
def test_a_breakdown_goes_back_to_where_the_epoch_ended(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    script = Script(cannot_be_silent=not silent)
    use(monkeypatch, lambda: make_double(script))
    told = epoch_spec(tmp_path / "run", arrays, role="breakdown", steps=2)
    run = build_run(told, Rank(told, 0, 1, CPU))
    timed = timed_epoch(run, 1, Silent(), Floor("r", 0))
    script.calls.clear()
    found = communication(run, 1, timed.timing)
    stretch = ["epoch", *STEP * 2, "epoch is left"]
    if silent:
        without = ["without_exchange", *stretch, "without_exchange is left"]
        assert script.calls == ["snapshot", *without, "restore", *stretch, "restore"]
        assert (found["comm_trace"], found["exposed_comm_trace"]) == (0.0, 0.0)
        assert found["exposed_comm"] >= 0
    else:
        assert script.calls == ["snapshot", "without_exchange", "epoch", *STEP[:3], "restore"]
        assert found == {}
    assert script.steps == 2


# -- what the makers note ---------------------------------------------------------------------------------------------


def test_the_bare_model_s_parameters_are_noted_as_it_is_made(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(makes_model=True)
    use(monkeypatch, lambda: make_double(script))
    told = epoch_spec(tmp_path / "run", arrays)
    run = build_run(told, Rank(told, 0, 1, CPU))
    found = {parameter.name: parameter.count for parameter in run.parameters}
    assert found["0.weight"] == 64 * 3 * 3 * 3
    assert found["9.bias"] == 100
    assert len(found) == 8
    result = gather_run(
        run, [], launch_seconds=0, init_seconds=0, build_seconds=0, warmup_seconds=0, compile_seconds=None
    )
    # Convolutions 3-64-128 of 3 x 3, linear 8192-256-100, each with its bias: four bytes a value.
    assert result.gradient_bytes == 4 * (1728 + 64 + 73728 + 128 + 2097152 + 256 + 25600 + 100)


class Greedy:
    """A workload that reads the parameters twice, and whose first layer is frozen."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).double())
        model[0].requires_grad_(False)
        return model.eval()

    def make_optimizer(self, parameters: Any, *, fused: bool = False) -> tuple[int, int, bool]:
        return len(list(parameters)), len(list(parameters)), fused


def test_an_optimizer_is_made_over_a_list_and_a_model_from_the_seed() -> None:
    makers = Makers(Greedy(), 7, Tally())
    first, second = makers.make_model(), makers.make_model()
    assert makers.make_optimizer((value for value in first.parameters()), fused=True) == (4, 4, True)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
    assert first.training
    noted = [(p.name, p.count, p.element_bytes, p.trains) for p in makers.parameters]
    assert noted == [
        ("0.weight", 6, 4, False),
        ("0.bias", 3, 4, False),
        ("1.weight", 3, 8, True),
        ("1.bias", 1, 8, True),
    ]


# -- several ranks ----------------------------------------------------------------------------------------------------


def test_a_rank_that_serves_has_no_batches_no_losses_and_no_part(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan((Place(role=SERVE), Place(part=0)))
    told = epoch_spec(tmp_path / "run", arrays, plan, compile="default")
    server, trainer = Script(), Script(makes_model=True)
    measured = live_together(monkeypatch, told, [server, trainer])
    assert server.calls == [
        *("build", "snapshot", "parameter_sample", "serve", "restore", "parameter_sample"),
        *("parameter_sample", "serve", "parameter_sample", "settle"),
        *("fingerprint", "update_norm", "changed_tensors", "trainable_count", "skipped_steps"),
        *("parameter_sample", "evaluating", "evaluating is left", "details", "warnings", "close"),
    ]
    assert "serve" not in trainer.calls
    (epoch,) = measured.epochs
    assert epoch.samples == [[], [16] * 4]
    assert [len(steps) for steps in epoch.step_seconds] == [0, 4]
    assert all(seconds > 0 for seconds in epoch.timed_seconds)
    assert (epoch.loss_first, epoch.loss_last, epoch.finite) == (10.0, 7.0, True)
    assert (epoch.evaluated, epoch.correct) == (32, threes(arrays))
    assert epoch.parameter_hashes == ["0 steps", "4 steps"]
    assert run_gate(epoch, plan, expected_samples=64, test_count=32) == PASSED
    # What rank 0 has no part in is told by the one that has.
    assert measured.gradient_bytes > 0
    assert measured.compile_seconds is not None
    assert measured.compile_seconds > 0
    assert measurement_path(tmp_path / "run").exists()


def test_no_loss_on_any_rank_is_an_error(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan((Place(role=SERVE), Place(part=0)))
    told = epoch_spec(tmp_path / "run", arrays, plan)
    with pytest.raises(TypeError, match=r"forward_backward\(\) returned None on every rank"):
        live_together(monkeypatch, told, [Script(), Script(loss=False)])


PIPELINE = Plan((Place(part=0, piece=0), Place(part=0, piece=1)))


@pytest.mark.parametrize(
    ("plan", "outputs", "evaluated"),
    [
        (data_parallel(2), [True, True], 32),
        (PIPELINE, [False, True], 32),
        (PIPELINE, [True, False], 32),
        # Counted once, though both could answer.
        (PIPELINE, [True, True], 32),
    ],
)
def test_each_test_sample_is_counted_once(
    tmp_path: Path,
    arrays: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    outputs: list[bool],
    evaluated: int,
) -> None:
    told = epoch_spec(tmp_path / "run", arrays, plan)
    scripts = [Script(outputs=lambda batch, has=has: has) for has in outputs]
    (epoch,) = live_together(monkeypatch, told, scripts).epochs
    assert (epoch.evaluated, epoch.correct) == (evaluated, threes(arrays))
    assert run_gate(epoch, plan, expected_samples=64, test_count=32) == PASSED


def test_a_rank_that_has_some_of_the_outputs_does_not_answer_for_its_part(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 10)
    told = epoch_spec(tmp_path / "run", arrays, PIPELINE)
    scripts = [Script(outputs=lambda batch: batch != 3), Script()]
    (epoch,) = live_together(monkeypatch, told, scripts).epochs
    assert [script.predicted for script in scripts] == [4, 4]
    assert (epoch.evaluated, epoch.correct) == (32, threes(arrays))


def test_outputs_that_no_rank_of_a_part_has_are_an_error(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = epoch_spec(tmp_path / "run", arrays, data_parallel(2))
    words = r"predict\(\) returned None on every rank that reads part 1 of the test set; one must return the outputs"
    with pytest.raises(TypeError, match=words):
        live_together(monkeypatch, told, [Script(), Script(outputs=lambda batch: False)])
