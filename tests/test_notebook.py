"""The notebook is stored without outputs and runs from start to end on a generated campaign."""

import itertools
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from synthetic_campaign import Options, write_campaign

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "compare_strategies.ipynb"


def run(monkeypatch: pytest.MonkeyPatch, results: Path | None) -> nbformat.NotebookNode:
    if results is None:
        monkeypatch.delenv("STRATEGYBENCH_RESULTS", raising=False)
    else:
        monkeypatch.setenv("STRATEGYBENCH_RESULTS", str(results))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=120, startup_timeout=180, resources=resources).execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(notebook: nbformat.NotebookNode) -> int:
    return sum("image/svg+xml" in output.get("data", {}) for output in outputs(notebook))


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


def test_it_is_stored_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_each_chart_is_explained_in_two_sentences() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    for text, code in itertools.pairwise(cells):
        if code.cell_type == "code" and code.source.startswith("show("):
            explanation = text.source.split("\n\n", 1)[1]
            assert explanation.count(". ") + explanation.rstrip().endswith(".") == 2, explanation


def test_it_runs_on_a_small_cpu_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, write_campaign(tmp_path / "campaign", Options(blocks=3)))
    assert pictures(done) == 7
    assert "device memory is not measured on CPU" in printed(done)


def test_it_runs_on_a_gpu_campaign_with_weak_scaling_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(
        strategies=6, devices=(1, 2, 4), blocks=2, epochs=2, scalings=("weak",), device_kind="cuda", failures=()
    )
    assert pictures(run(monkeypatch, write_campaign(tmp_path / "campaign", options))) == 9


def test_it_shows_the_first_reference_campaign_out_of_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, None)
    assert "resnet50-cifar10 on cifar10" in printed(done)
    assert pictures(done) >= 4


def test_a_wrong_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CellExecutionError, match=r"holds no runs\.csv"):
        run(monkeypatch, tmp_path)
