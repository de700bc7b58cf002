"""The table that ends a campaign: a row for every cell, blanks and never nan, text shown as it is."""

import io
import json
import re

import pytest
from generated import failed, noisy_campaign, row, write_campaign
from rich.console import Console

from bench.results.summary import write_summary
from bench.view.maintable import four_digits
from bench.view.table import document, print_table


def rendered(folder, rows, *, terminal=False, width=200, matrix=""):
    write_campaign(folder, rows, matrix=matrix)
    write_summary(folder)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    print_table(folder, console=console)
    return console.file.getvalue()


def cells_of(text):
    """The table's rows as lists of cells, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def header_of(text):
    line = next(line for line in text.splitlines() if line.startswith("┃"))
    return [cell.strip() for cell in line.strip("┃").split("┃")]


STATUSES = ("unsupported", "invalid", "oom", "timeout", "crashed", "interrupted")


def test_every_cell_has_a_row_whatever_became_of_it(tmp_path):
    rows = [row("single", 1, 0), row("ddp", 2, 0, seconds=5.0)]
    rows += [failed(f"plug_{status}", 2, 0, status=status) for status in STATUSES]
    found = {tuple(cells[:2]): cells[-1] for cells in cells_of(rendered(tmp_path, rows))}
    assert found[("single", "1")] == found[("ddp", "2")] == "ok"
    for status in STATUSES:
        assert found[(f"plug_{status}", "2")] == f"{status}: {status}"
    assert len(found) == 2 + len(STATUSES)


def test_figures_by_hand(tmp_path):
    """1,000 samples in 10 s and in 5 s: 100 and 200 samples/s, speedup 2 on 2 devices."""
    text = rendered(tmp_path, [row("single", 1, 0), row("ddp", 2, 0, seconds=5.0, host_peak_rss_bytes=3 << 29)])
    assert header_of(text) == [
        "strategy",
        "devices",
        "epoch s",
        "samples/s",
        "speedup",
        "n",
        "efficiency",
        "memory",
        "status",
    ]
    found = {cells[0]: cells for cells in cells_of(text)}
    assert found["single"] == ["single", "1", "10", "100", "1.00x baseline", "1", "100%", "", "ok"]
    assert found["ddp"] == ["ddp", "2", "5", "200", "2.00x", "1", "100%", "1.50 GiB", "ok"]
    assert "One block has no spread" in text


def test_several_blocks_give_intervals_and_the_noise_floor(tmp_path):
    text = rendered(tmp_path, noisy_campaign(seed=3))
    found = {(cells[0], cells[1]): cells for cells in cells_of(text)}
    assert ("single (A/A)", "1") in found
    assert re.fullmatch(r"\d\.\d\dx \[\d\.\d\d, \d\.\d\d\]", found[("ddp", "2")][4])
    assert found[("ddp", "2")][5] == "5"
    assert "Noise floor: the same cell measured twice a block (A/A) differs by" in text
    assert "One block has no spread" not in text


@pytest.mark.parametrize("seed", range(3))
def test_no_figure_is_nan_or_infinite(tmp_path, seed):
    rows = noisy_campaign(seed=seed, blocks=1 + seed)
    rows += [failed("dp", 2, block) for block in range(1 + seed)]
    rows.append(failed("single_tuned", 1, 0, status="oom", batch_global=None, precision=""))
    text = rendered(tmp_path, rows)
    assert not re.search(r"\b(nan|inf|none|<na>)\b", text, re.IGNORECASE)


def test_a_campaign_in_which_everything_failed_has_its_rows(tmp_path):
    text = rendered(tmp_path, [failed("single", 1, 0), failed("ddp", 2, 0, status="timeout")])
    assert [cells[-1] for cells in cells_of(text)] == ["crashed: crashed", "timeout: timeout"]
    assert "nan" not in text.lower()


@pytest.mark.parametrize(
    "reason",
    [
        "shape [2, 3] is not [/2, 3]",
        "[bold red]boom[/bold red]",
        "[/]",
        r"C:\[temp]\[/x]",
        "key :warning: is :x: missing",
        "a tuple[int] and list[str]",
    ],
)
def test_a_reason_is_shown_as_it_is(tmp_path, reason):
    text = rendered(tmp_path, [row("single", 1, 0), failed("ddp", 2, 0, reason=reason)])
    assert f"crashed: {reason}" in text


def test_title_and_caption_are_shown_as_they_are(tmp_path):
    matrix = '[campaign]\nnotice = "Synthetic images [a] in place of :x: [/b]."\nthreads_per_device = 3\n'
    rows = [row("single", 1, 0, device_name="Processor [x] :y: [/z]")]
    text = rendered(tmp_path, rows, matrix=matrix)
    assert "toy on synthetic, Processor [x] :y: [/z] (cpu), epoch" in text
    assert "Synthetic images [a] in place of :x: [/b]." in text
    assert "3 CPU thread(s) a device." in text


def test_a_part_of_an_epoch_is_named_in_the_title(tmp_path):
    text = rendered(tmp_path, [row("single", 1, 0, epoch_measured=False)])
    assert "part of an epoch, scaled to one" in text


def test_only_factors_that_vary_have_a_column(tmp_path):
    rows = [row("ddp", 2, 0, precision="fp32"), row("ddp", 2, 0, precision="amp-bf16", batch_global=200)]
    header = header_of(rendered(tmp_path, rows))
    assert {"precision", "batch"} <= set(header)
    assert not {"scaling", "memory format", "compile", "variant"} & set(header)


def test_accuracy_has_a_column_where_it_was_measured(tmp_path):
    text = rendered(tmp_path, [row("single", 1, 0, test_accuracy=0.243)])
    assert cells_of(text)[0][header_of(text).index("accuracy")] == "24.3%"


def test_a_log_is_not_cut_to_a_narrow_width(tmp_path):
    rows = noisy_campaign(seed=1)
    assert max(map(len, rendered(tmp_path / "a", rows, width=40).splitlines())) > 80
    assert max(map(len, rendered(tmp_path / "b", rows, width=100, terminal=True).splitlines())) <= 100


def test_the_document_is_one_line_with_all_cells(tmp_path):
    rows = [row("single", 1, 0), failed("ddp", 2, 0, reason="boom\nline")]
    rendered(tmp_path, rows, matrix='[campaign]\ncommand = "bench run"\nnotice = "N."\n')
    text = document(tmp_path, exit_code=1)
    assert len(text.splitlines()) == 1
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert (found["exit_code"], found["command"], found["notice"]) == (1, "bench run", "N.")
    assert [(cell["strategy"], cell["status"]) for cell in found["cells"]] == [("single", "ok"), ("ddp", "crashed")]
    assert found["cells"][1]["speedup"] is None


def test_figures_are_written_without_powers_of_ten() -> None:
    assert [four_digits(value) for value in (0.0899912, 501.44, 45514.7, None)] == ["0.08999", "501.4", "45,515", ""]
