"""Which part may import which. Every checker here is shown something wrong first, so that it is known to see it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from generated import noisy_campaign, write_campaign
from imports import imported

import bench
import strategies
from strategies import BUILT_IN

BENCH, STRATEGIES = Path(bench.__file__).parent, Path(strategies.__file__).parent
STARTS_AT_ONCE = (
    "bench",
    "bench.cli",
    "bench.view.listing",
    "bench.plan.matrix",
    "bench.results.folder",
    "bench.results.csvfile",
    "bench.results.summary",
    "bench.results.statistics",
    "bench.results.compare",
    "bench.view.charts",
    "bench.view.report",
    "bench.view.export",
    "bench.view.table",
    "bench.view.finish",
    "bench.run.store",
    "bench.view.doctor",
    "bench.data",
    "bench.results.published",
    "bench.workloads",
    "strategies",
)
"""Modules of the commands that list, prepare, or only read results."""


def run_python(program, *arguments, cwd=None):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=cwd).stdout


# -- torch at start-up ------------------------------------------------------------------------------------------------

IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name}")
"""


def first_that_imports_torch(*modules):
    """The first module by whose import torch comes in, "" where none does; in a process of its own."""
    command = [sys.executable, "-c", IMPORT_EACH, *modules]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stderr.strip()


def test_the_checker_sees_a_module_that_imports_torch():
    assert first_that_imports_torch("bench.errors", "bench.worker.rank", "bench.cli") == "bench.worker.rank"


def test_what_lists_or_reads_results_does_not_import_torch():
    assert first_that_imports_torch(*STARTS_AT_ONCE) == ""


RUN_EACH = """
import sys
from bench.cli import main
for line in sys.argv[1:]:
    sys.argv = ["bench", *line.split("|")]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    print(f"@@ {line} -> exit {code}, torch {'torch' in sys.modules}")
"""


def commands_with_torch(*lines, cwd):
    """Whether each command ended well and whether torch was imported by then, in one process."""
    output = run_python(RUN_EACH, *lines, cwd=cwd)
    found = [line.removeprefix("@@ ") for line in output.splitlines() if line.startswith("@@ ")]
    assert len(found) == len(lines)
    return found


def test_the_commands_that_only_read_run_without_torch(tmp_path):
    write_campaign(tmp_path / "A", noisy_campaign(seed=1))
    lines = ("--help", "run|--help", "list", "list|workloads", "list|presets", "list|columns")
    lines += ("compare|A|A", "compare|A|A|--format|json", "export|A", "export|A|--format|latex")
    found = commands_with_torch(*lines, cwd=tmp_path)
    assert found == [f"{line} -> exit 0, torch False" for line in lines]


def test_the_checker_sees_a_command_that_imports_torch(tmp_path):
    run = "run|smoke|--workload|toy|--dataset|synthetic|--data-root|D|--batch|63|--out|O"
    (found,) = commands_with_torch(run, cwd=tmp_path)
    assert found.endswith("exit 2, torch True")


# -- strategies know nothing of the harness ---------------------------------------------------------------------------


def imports_bench(source):
    return sorted(name for name in imported(source) if name.split(".")[0] == "bench")


@pytest.mark.parametrize(
    "planted",
    [
        "import bench",
        "import os, bench.wire",
        "from bench import timing",
        "from bench.wire import RunSpec",
        "def f():\n    if True:\n        import bench.worker.rank as r",
        "importlib.import_module('bench.worker.rank')",
    ],
)
def test_the_checker_sees_a_planted_import(planted):
    assert imports_bench(planted)


def test_the_checker_passes_over_names_that_only_look_like_it():
    assert not imports_bench("import benchmark\nfrom strategies.base import bench\nbench = 'import bench'")


@pytest.mark.parametrize("path", sorted(STRATEGIES.rglob("*.py")), ids=lambda path: path.name)
def test_strategies_never_import_the_harness(path):
    assert imports_bench(path.read_text(encoding="utf-8")) == []


def outside(source, allowed):
    return sorted(name for name in imported(source) if name.split(".")[0] not in allowed)


@pytest.mark.parametrize("path", sorted(STRATEGIES.glob("*.py")), ids=lambda path: path.name)
def test_strategies_import_torch_themselves_and_the_standard_library_alone(path):
    allowed = {"torch", "strategies", *sys.stdlib_module_names}
    assert outside("import numpy", allowed) == ["numpy"]
    assert outside(path.read_text(encoding="utf-8"), allowed) == []


def implementations(source):
    """Strategy modules that a source imports other than the contract, the plans and the table of names."""
    modules = {name.split(".")[1] for name in imported(source) if name.startswith("strategies.")}
    return sorted(name for name in modules - {"base", "places"} if (STRATEGIES / f"{name}.py").exists())


def test_the_harness_imports_no_implementation_of_a_strategy():
    assert implementations("from strategies.ddp import DDP") == ["ddp"]
    found = {path.name: implementations(path.read_text(encoding="utf-8")) for path in BENCH.rglob("*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}


# -- one loop for all strategies --------------------------------------------------------------------------------------

NAMES = {entry.name for entry in BUILT_IN} | {entry.attribute for entry in BUILT_IN}


def strategies_named(source):
    """Names of strategies or their classes in a module's code, docstrings and comments aside."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found |= {node.value} & NAMES
        elif isinstance(node, ast.Name):
            found |= {node.id} & NAMES
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & NAMES
        elif isinstance(node, ast.alias):
            found |= {node.name.split(".")[-1]} & NAMES
    return sorted(found)


def strategy_kinds_asked(source):
    """Tests of what a strategy is: isinstance, type or a comparison with a strategy's name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "type", "issubclass"):
            found += [ast.unparse(node)] if "strategy" in ast.unparse(node.args[0]) else []
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(("spec.strategy", "strategy.name")):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "planted",
    ["if spec.strategy == 'ddp_mp': pass", "x = DDP()", "from strategies.ddp import DDPAmp", "ddp.DataParallel()"],
)
def test_the_checker_sees_a_planted_name(planted):
    assert strategies_named(f'"""About ddp."""\n{planted}')
    assert not strategies_named('"""About ddp."""\nx = 1  # single')


@pytest.mark.parametrize(
    "planted", ["isinstance(run.strategy, Thing)", "type(strategy)", "if run.spec.strategy == name: pass"]
)
def test_the_checker_sees_a_planted_test_of_the_kind(planted):
    assert strategy_kinds_asked(planted)


@pytest.mark.parametrize(
    "module", ["run/launch.py", *sorted(f"worker/{path.name}" for path in (BENCH / "worker").glob("*.py"))]
)
def test_no_strategy_is_named_or_told_apart_where_runs_are_measured(module):
    source = (BENCH / module).read_text(encoding="utf-8")
    assert strategies_named(source) == []
    assert strategy_kinds_asked(source) == []


def test_the_parts_of_a_run_wait_with_torch_until_they_need_it():
    assert (
        first_that_imports_torch("bench.run.launch", "bench.run.campaign", "bench.run.prepare", "bench.run.resume")
        == ""
    )
