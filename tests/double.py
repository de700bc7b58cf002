"""A strategy of hooks alone, and ranks that meet in one process: the worker's phases without a model or a group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from bench.floor import Floor
from bench.wire import Measurement, RunSpec
from bench.worker import build
from bench.worker.life import live
from bench.worker.rank import Rank
from strategies.base import Unsupported

HOOKS = {
    *("build", "place", "forward_backward", "apply", "without_exchange", "epoch", "serve", "skipped_steps"),
    *("evaluating", "predict", "settle", "snapshot", "restore", "bare_state", "load_bare_state", "fingerprint"),
    *(
        "details",
        "warnings",
        "close",
        "gradient_names",
        "parameter_sample",
        "update_norm",
        "changed_tensors",
        "trainable_count",
    ),
}


@dataclass
class Script:
    """What one rank's double answers, and the hooks that were called, in order.

    steps: how many it has applied, which is all that its training changes; its loss is 10 less those.
    """

    loss: bool = True
    outputs: Callable[[int], bool] = lambda batch: True
    makes_model: bool = False
    cannot_be_silent: bool = False
    calls: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: int = 0
    predicted: int = 0
    values: int = 0
    context: Any = None
    optimizer: Any = None


def make_double(script: Script) -> Any:
    """An object that has the hooks and nothing else: whatever else is read or set raises."""

    class Double:
        def __getattribute__(self, name: str) -> Any:
            if name not in HOOKS and not name.startswith("__"):
                raise AssertionError(f"the harness reached for {name}")
            if name in HOOKS:
                script.calls.append(name)
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: object) -> None:
            raise AssertionError(f"the harness set {name}")

        def build(self, context, make_model, make_optimizer) -> None:
            script.context = context
            weights = [torch.nn.Parameter(torch.zeros(1))]
            if script.makes_model:
                weights = list(make_model().parameters())
            script.values = sum(weight.numel() for weight in weights)
            script.optimizer = make_optimizer(weights)

        def place(self, inputs, targets):
            script.sizes.append(len(inputs))
            return inputs, targets

        def forward_backward(self, micro):
            if script.cannot_be_silent and "without_exchange" in script.calls:
                raise Unsupported("it always exchanges")
            if script.loss:
                for _, targets in micro:
                    script.context.loss(torch.zeros(len(targets), 100, requires_grad=True), targets).backward()
            return torch.tensor(10.0 - script.steps) if script.loss else None

        def apply(self) -> None:
            script.steps += 1
            script.optimizer.step()

        def predict(self, inputs):
            script.predicted += 1
            if not script.outputs(script.predicted):
                return None
            return torch.nn.functional.one_hot(torch.full((len(inputs),), 3), 100).float()

        def snapshot(self):
            return {"steps": script.steps}

        def restore(self, state) -> None:
            script.steps = state["steps"]

        def load_bare_state(self, state) -> None:
            script.steps = int(state["model"]["steps"])

        def bare_state(self):
            return {"model": {"steps": torch.tensor(script.steps)}, "optimizer": {}}

        def gradient_names(self):
            return ("w",)

        def parameter_sample(self):
            return {"steps": torch.tensor([float(script.steps)])}

        def update_norm(self, start) -> float:
            return float(script.steps - start["steps"])

        def changed_tensors(self, start) -> int:
            return int(script.steps > start["steps"])

        def trainable_count(self) -> int:
            return script.values

        def fingerprint(self) -> str:
            return f"{script.steps} steps"

        def skipped_steps(self) -> int:
            return 1

        def serve(self) -> None:
            pass

        settle = close = serve

        def details(self):
            return {"double": "yes"}

        def warnings(self):
            return ["a double"]

        def without_exchange(self):
            return region(script.calls, "without_exchange")

        def epoch(self):
            return region(script.calls, "epoch")

        def evaluating(self):
            return region(script.calls, "evaluating")

    return Double()


@contextmanager
def region(calls: list[str], name: str) -> Iterator[None]:
    yield
    calls.append(f"{name} is left")


class Silent:
    """A heartbeat that nobody reads."""

    def phase(self, name: str) -> None: ...
    def step(self, number: int) -> None: ...


class Meeting:
    """Where the ranks of one process meet: each waits for all, then sees what each has brought."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._brought: list[Any] = [None] * ranks

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._brought[rank] = value
        self._barrier.wait()
        found = list(self._brought)
        self._barrier.wait()
        return found


class Met(Rank):
    """A rank that meets the others in one process."""

    meeting: Meeting

    def start_group(self) -> None:
        self.barrier()

    stop_group = start_group

    def barrier(self) -> None:
        self.gather(None)

    def gather(self, value: Any) -> list[Any]:
        return self.meeting.gather(self.rank, value)


def use(monkeypatch: pytest.MonkeyPatch, strategy: Callable[[], Any]) -> None:
    """Have the harness find this strategy whatever the cell names."""

    class Registry:
        @classmethod
        def collect(cls, files: object) -> type[Registry]:
            return cls

        @classmethod
        def load(cls, name: str) -> Callable[[], Any]:
            return strategy

    monkeypatch.setattr(build, "Registry", Registry)


def live_together(monkeypatch: pytest.MonkeyPatch, spec: RunSpec, scripts: list[Script]) -> Measurement:
    """The whole lives of all ranks of a plan, one thread each; rank 0's measurement. Raises the first one's error."""
    meeting = Meeting(len(scripts))
    here = threading.local()
    use(monkeypatch, lambda: make_double(here.script))

    def life(number: int) -> Measurement | None:
        here.script = scripts[number]
        rank = Met(spec, number, len(scripts), (torch.device("cpu"),))
        rank.meeting = meeting
        return live(spec, rank, Silent(), 0.5, Floor(spec.run_id, number))  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(scripts)) as pool:
        found = [pool.submit(life, number) for number in range(len(scripts))]
    measured = [future.result() for future in found]
    assert measured[0] is not None
    assert measured[1:] == [None] * (len(scripts) - 1)
    return measured[0]
