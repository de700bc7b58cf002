"""The harness asks a strategy and does not look inside it: no file of the worker reads a model, optimizer or scaler."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bench.worker

WORKER = Path(bench.worker.__file__).parent
INSIDE = {"model", "optimizer", "scaler"}
READS = {"getattr", "setattr", "hasattr", "delattr", "attrgetter"}


def looks_inside(source: str) -> list[str]:
    """The expressions that reach for what is inside a strategy, whatever they reach from."""
    found = []
    for node in ast.walk(ast.parse(source)):
        named = isinstance(node, ast.Attribute) and node.attr in INSIDE
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = [part for value in node.args for part in _text(value).split(".")]
            named = called in READS and bool(INSIDE & set(words))
        if named:
            found.append(ast.unparse(node))
    return found


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize(
    "planted",
    [
        "run.strategy.model.eval()",
        "strategy.optimizer.step()",
        "getattr(strategy, 'scaler')",
        "def late():\n    if run.strategy.scaler.is_enabled():\n        pass",
        "inside = strategy\nx = inside.model",
        "self.strategy.model = None",
        "built(spec)[0].optimizer",
        "hasattr(run.strategy, 'model')",
        "operator.attrgetter('strategy.model')(run)",
    ],
)
def test_the_checker_sees_a_planted_fault(planted: str) -> None:
    assert looks_inside(planted)


@pytest.mark.parametrize(
    "right",
    [
        '"""Neither strategy.model nor strategy.optimizer is read."""',
        "state['model'], state['optimizer']",
        "makers.make_model(); workload.make_optimizer(parameters)",
        "EpochMeasurement(optimizer=None)",
        "model = workload.make_model()\nmodel.named_parameters()",
        "getattr(owner, 'peak_wset', 0)",
    ],
)
def test_the_checker_passes_over_what_is_right(right: str) -> None:
    assert looks_inside(right) == []


@pytest.mark.parametrize("path", sorted(WORKER.glob("*.py")), ids=lambda path: path.name)
def test_no_file_of_the_worker_looks_inside(path: Path) -> None:
    assert looks_inside(path.read_text(encoding="utf-8")) == []


def test_the_worker_s_files_are_found() -> None:
    assert {"build.py", "epoch.py", "evaluate.py", "account.py", "exchange.py"} <= {
        path.name for path in WORKER.glob("*.py")
    }
