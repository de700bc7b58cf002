"""Exports, the first of them read by pytest-benchmark's own command line."""

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from generated import failed, noisy_campaign, row, write_campaign

from bench.errors import UserError
from bench.view.export import EXPORT_FORMATS, export

IDENTITY = {"cpu": "A Processor", "cores": 2, "torch": "2.14.0", "python": "3.12.1", "architecture": "x86_64"}


@pytest.fixture
def folder(tmp_path):
    rows = [*noisy_campaign(seed=0), failed("fsdp", 2, 0, reason="100 % out of luck_here & there")]
    return write_campaign(tmp_path / "campaign", rows, identity=IDENTITY)


def run_pytest_benchmark(*arguments, cwd):
    command = shutil.which("pytest-benchmark", path=sysconfig.get_path("scripts"))
    if command is None:
        pytest.skip("the command pytest-benchmark is not installed beside this interpreter")
    return subprocess.run([command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_pytest_benchmark_compares_the_export(folder, tmp_path):
    path = tmp_path / "export.json"
    path.write_text(export(folder, "pytest-benchmark"), encoding="utf-8")
    done = run_pytest_benchmark("compare", str(path), "--csv=out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ddp[2-measure]" in done.stdout
    assert "single[1-control]" in done.stdout
    lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 6


def test_a_benchmark_holds_the_epoch_seconds_of_the_runs(tmp_path):
    """Epochs of 2, 4 and 9 s: mean 5, median 4, sample deviation √13, quartiles 3 and 6.5."""
    rows = [row("ddp", 2, b, seconds=s) for b, s in enumerate((2.0, 4.0, 9.0))]
    document = json.loads(export(write_campaign(tmp_path / "c", rows), "pytest-benchmark"))
    (benchmark,) = document["benchmarks"]
    stats = benchmark["stats"]
    assert stats["data"] == [pytest.approx(2), pytest.approx(4), pytest.approx(9)]
    assert (stats["rounds"], stats["mean"], stats["median"]) == (3, pytest.approx(5), pytest.approx(4))
    assert stats["stddev"] == pytest.approx(13**0.5)
    assert (stats["q1"], stats["q3"], stats["iqr"]) == (pytest.approx(3), pytest.approx(6.5), pytest.approx(3.5))
    assert stats["ops"] == pytest.approx(0.2)
    assert benchmark["params"]["strategy"] == "ddp"


def test_json_holds_the_summary_and_the_environment(folder):
    document = json.loads(export(folder, "json"))
    assert document["environment"]["identity"] == IDENTITY
    cells = {(cell["strategy"], cell["devices"], cell["role"]): cell for cell in document["cells"]}
    assert cells[("single", 1, "measure")]["speedup"] == 1.0
    assert cells[("fsdp", 2, "measure")]["speedup"] is None
    assert cells[("fsdp", 2, "measure")]["status"] == "crashed"


def test_markdown_is_a_table_with_every_cell(folder):
    lines = export(folder, "markdown").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 7
    assert len({line.count("|") for line in table}) == 1
    assert "speedup [95 %]" in table[0]
    assert "memory" not in table[0]
    work = "global batch 100; whole epochs; speedup over single@1 fp32; 2026-01-01"
    assert lines[-1] == f"A Processor; torch 2.14.0; {work}"


def test_latex_escapes_what_latex_reads(folder):
    text = export(folder, "latex")
    assert r"speedup [95 \%]" in text
    assert r"ddp\_syncbn" in text
    assert text.count(r"\\") == 1 + 7
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    assert len(columns) == text.split(r"\hline")[1].count("&") + 1


def test_latex_is_accepted_by_latex(folder, tmp_path):
    latex = shutil.which("pdflatex")
    if latex is None:
        pytest.skip("pdflatex is not installed")
    source = "\\documentclass{article}\\begin{document}" + export(folder, "latex") + "\\end{document}"
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    subprocess.run([latex, "-interaction=nonstopmode", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_nothing_to_export_is_said(tmp_path):
    folder = write_campaign(tmp_path / "c", [failed("single", 1, 0)])
    with pytest.raises(UserError, match="no ok run"):
        export(folder, "pytest-benchmark")
    for format in ("json", "markdown", "latex"):
        assert "crashed" in export(folder, format)


def test_an_unknown_format_lists_the_known(tmp_path):
    with pytest.raises(UserError, match=", ".join(EXPORT_FORMATS)):
        export(Path(tmp_path), "xml")


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ((False, False), "part of an epoch, scaled to one"),
        ((True, True), "whole epochs"),
        ((True, False), "whole epochs, and parts scaled to one"),
    ],
)
def test_the_caption_says_how_much_was_run(measured, words, tmp_path):
    rows = [row("single", 1, block, epoch_measured=whole) for block, whole in enumerate(measured)]
    assert f"; {words}; " in export(write_campaign(tmp_path / "c", rows), "markdown").splitlines()[-1]
