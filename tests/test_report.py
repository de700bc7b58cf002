"""The report: the answer's rules, nothing loaded from outside, hostile text harmless, equal bytes for equal files."""

import html.parser
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_campaign import Options, write_campaign

from bench.errors import UserError
from bench.results.columns import RUN_COLUMNS, SUMMARY_COLUMNS
from bench.results.csvfile import read_rows, write_rows
from bench.results.folder import frame
from bench.results.recommend import Answer, answer
from bench.view.report import build_report, markdown_code, markdown_text

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> | [x](javascript:alert(3)) `a` **b** {{ 7*7 }} \"'&"


def cell(strategy: str, devices: int, speedup: float | None, half: float | None = 0.02, **more: Any) -> dict[str, Any]:
    row = {column.name: "" if column.kind == "str" else None for column in SUMMARY_COLUMNS}
    row.update(
        strategy=strategy, devices=devices, scaling="strong", precision="fp32", role="measure", status="ok",
        device_kind="cpu", runs_ok=5, runs_failed=0, baseline="single@1 fp32", pairs=5, speedup=speedup,
        efficiency=None if speedup is None else speedup / devices, batch_global=256, accumulate=1,
    )  # fmt: skip
    if speedup is not None and half is not None:
        row.update(speedup_low=speedup - half, speedup_high=speedup + half)
    return {**row, **more}


def judge(*rows: dict[str, Any]) -> Answer:
    base = cell("single", 1, 1.0, 0.0, peak_memory_bytes=2**30, test_accuracy=0.5)
    return answer(frame([base, *rows], SUMMARY_COLUMNS))


def test_the_fastest_that_stands_apart_is_recommended() -> None:
    found = judge(cell("ddp", 2, 1.6), cell("ddp_amp", 2, 1.83, precision="amp-bf16", test_accuracy=0.49))
    assert found.verdict == "use"
    assert (
        found.headline == "On this machine use ddp_amp on 2 devices: 1.83x [1.81, 1.85] over single, 92 % efficiency."
    )
    assert "No other cell's interval overlaps with this one." in found.details
    assert "Test accuracy 49.0 %, baseline 50.0 %." in found.details
    assert "It computes in amp-bf16, the baseline in fp32." in found.details


def test_overlapping_intervals_are_unclear_and_the_cheapest_is_named() -> None:
    found = judge(cell("ddp", 4, 2.0), cell("fsdp2", 2, 1.97), cell("dp", 2, 1.2))
    assert found.headline.startswith("On this machine use ddp on 4 devices")
    [unclear] = [text for text in found.details if text.startswith("Unclear")]
    assert "fsdp2 on 2 devices 1.97x [1.95, 1.99]" in unclear
    assert "dp on 2 devices 1.20x" not in unclear.replace("fsdp2 on", "")
    assert "Of these, fsdp2 on 2 devices needs the fewest devices." in found.details


def test_an_interval_that_contains_one_is_unclear() -> None:
    found = judge(cell("ddp", 2, 1.01))
    assert found.verdict == "unclear"
    assert found.headline.startswith("Unclear: ddp on 2 devices is the fastest seen, 1.01x [0.99, 1.03]")


def test_many_cells_are_adjusted_for() -> None:
    assert judge(cell("ddp", 2, 1.03, p_value_holm=0.2)).verdict == "unclear"
    assert judge(cell("ddp", 2, 1.03, p_value_holm=0.01)).verdict == "use"


def test_a_gain_within_the_noise_floor_is_unclear() -> None:
    control = cell("single", 1, 1.03, 0.02, role="control")
    found = judge(cell("ddp", 2, 1.04), control)
    assert found.verdict == "unclear"
    assert "A/A control" in found.headline


def test_nothing_beats_the_baseline() -> None:
    found = judge(cell("ddp", 2, 0.8), cell("dp", 2, 0.5))
    assert found.verdict == "stay"
    assert (
        found.headline == "Stay with single: nothing beats it. The best other is ddp on 2 devices, 0.80x [0.78, 0.82]."
    )


def test_one_run_has_no_interval_and_says_so() -> None:
    found = judge(cell("ddp", 2, 1.9, None, pairs=1))
    assert found.verdict == "no_interval"
    assert "there is no interval" in found.headline
    assert "[" not in found.headline
    assert "Nothing was faster" in judge(cell("ddp", 2, 0.9, None, pairs=1)).headline


def test_nothing_to_compare() -> None:
    failed = cell("ddp", 2, None, status="crashed", reason="boom", runs_ok=0, runs_failed=1)
    assert judge(failed).verdict == "nothing"
    assert "1 cell failed; the table gives the reasons." in judge(failed).details
    assert answer(frame([failed], SUMMARY_COLUMNS)).verdict == "nothing"
    assert answer(frame([], SUMMARY_COLUMNS)).verdict == "nothing"


def test_invalid_and_control_cells_are_never_recommended() -> None:
    found = judge(cell("ddp", 2, 5.0, status="invalid"), cell("fsdp2", 2, 1.5), cell("single", 1, 1.0, role="control"))
    assert "use fsdp2 on 2 devices" in found.headline


def test_weak_scaling_is_judged_only_without_strong() -> None:
    weak = cell("ddp", 4, 3.5, scaling="weak")
    assert "fsdp2" in judge(weak, cell("fsdp2", 2, 1.5)).headline
    only = answer(frame([cell("single", 1, 1.0, 0.0, scaling="weak"), weak], SUMMARY_COLUMNS))
    assert "use ddp on 4 devices" in only.headline
    assert any("fewer updates" in text for text in only.details)


class Page(html.parser.HTMLParser):
    """What the page would load, and its ids and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster") or (tag == "link" and name == "href"):
                self.loads.append(str(value))
            if name == "id":
                self.ids.append(str(value))
            if tag == "a" and name == "href":
                self.links.append(str(value))
            if name.startswith("on"):
                self.handlers.append(name)


def texts(folder: Path, out: Path) -> tuple[str, str]:
    html_path, md_path = build_report([folder], out)
    return html_path.read_text(encoding="utf-8"), md_path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("campaign")
    return texts(write_campaign(folder), folder / "report")


def test_the_page_is_self_contained(pages: tuple[str, str]) -> None:
    page = Page(pages[0])
    assert page.tags.count("img") == 7
    assert all(load.startswith("data:") for load in page.loads)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert not page.handlers
    assert not re.search(r"url\(|@import", pages[0])
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)


def test_the_page_holds_all_parts(pages: tuple[str, str]) -> None:
    for text in pages:
        assert "On this machine use ddp_amp on 2 devices" in text
        assert "DataParallel needs GPUs" in text
        assert "differs from itself by" in text
        assert "13.2" in text
        assert "2.99.0" in text
        assert "bench run cpu --blocks 5" in text
        assert "no cells with weak scaling" in text
    assert pages[0].index('class="head"') < pages[0].index("All cells") < pages[0].index("<img")


def test_every_cell_is_in_the_table(pages: tuple[str, str]) -> None:
    rows = re.findall(r'<tr(?: class="top")?><td class="name', pages[0])
    assert len(rows) == 8
    assert pages[0].count('class="tag unsupported"') == 1


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    options = Options(reason=HOSTILE, workload="<b>net</b>", blocks=2)
    folder = write_campaign(tmp_path / "campaign", options)
    document = {"environment_id": "env-0001", "identity": {HOSTILE: HOSTILE, "torch": "<i>2</i>"}, "volatile": HOSTILE}
    (folder / "environment.json").write_text(json.dumps(document))
    (folder / "matrix.toml").write_text(f"[campaign]\ncommand = {json.dumps('bench ' + HOSTILE + ' ```')}\n")
    text, markdown = texts(folder, tmp_path / "out")
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "i" not in page.tags
    assert page.tags.count("img") == len([load for load in page.loads if load.startswith("data:image")])
    assert not page.handlers
    assert "{{ 7*7 }}" in text
    assert "<script>" not in re.sub(r"(`+).*?\1", "", markdown)
    for line in markdown.splitlines():
        if line.startswith("| dp | 2"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 15


def test_hostile_strategy_names_are_only_text(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=2))
    rows = read_rows(folder / "runs.csv", RUN_COLUMNS)
    renamed = [{**row, "strategy": HOSTILE if row["strategy"] == "ddp" else row["strategy"]} for row in rows]
    write_rows(folder / "runs.csv", RUN_COLUMNS, renamed)
    page = Page(texts(folder, tmp_path / "out")[0])
    assert "script" not in page.tags
    assert not page.handlers


def test_host_and_user_are_not_told(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=2))
    document = json.loads((folder / "environment.json").read_text())
    document["volatile"].update(host="secret-host", user="secret-user")
    (folder / "environment.json").write_text(json.dumps(document))
    for text in texts(folder, tmp_path / "out"):
        assert "secret-" not in text


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=2))
    assert texts(folder, tmp_path / "a") == texts(folder, tmp_path / "b")


def test_markdown_names_charts_that_exist(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=2))
    _, markdown = texts(folder, tmp_path / "out")
    files = re.findall(r"!\[.*?\]\((.*?)\)", markdown)
    assert files
    assert all((tmp_path / "out" / name).is_file() for name in files)


def test_several_machines_stand_side_by_side(tmp_path: Path) -> None:
    cpu = write_campaign(tmp_path / "cpu", Options(blocks=2))
    other = Options(blocks=2, device_kind="cuda", environment_id="env-2", campaign_id="campaign-2")
    text = build_report([cpu, write_campaign(tmp_path / "gpu", other)], tmp_path / "out")[0].read_text()
    page = Page(text)
    assert text.count('class="head"') == 2
    assert len(page.ids) == len(set(page.ids))


def test_a_campaign_without_success_has_a_report(tmp_path: Path) -> None:
    failing = tuple((name, count, "crashed", "boom") for name in ("single", "ddp", "ddp_amp", "dp") for count in (1, 2))
    options = Options(failures=failing, control=False, breakdown=False)
    text, _ = texts(write_campaign(tmp_path / "campaign", options), tmp_path / "out")
    assert "Nothing can be compared" in text
    assert "boom" in text
    assert "No chart could be drawn." in text


def test_a_campaign_without_side_files_has_a_report(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign", Options(blocks=1))
    for name in ("environment.json", "matrix.toml", "steps.csv"):
        (folder / name).unlink()
    text, _ = texts(folder, tmp_path / "out")
    assert "environment.json is missing" in text
    assert "states no command" in text


def test_flags_come_with_advice(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "campaign")
    rows = read_rows(folder / "runs.csv", RUN_COLUMNS)
    busy = [{**row, "foreign_cpu_fraction": 0.4} if row["strategy"] == "ddp" else row for row in rows]
    write_rows(folder / "runs.csv", RUN_COLUMNS, busy)
    for text in texts(folder, tmp_path / "out"):
        assert "load from other processes" in text
        assert "Stop other programs" in text


def test_a_wrong_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        build_report([tmp_path / "nothing"], tmp_path / "out")


def test_markdown_escapes() -> None:
    assert markdown_text("a|b <c> *d*\n# e") == r"a\|b &lt;c&gt; \*d\* \# e"
    assert markdown_code("a `b` ``c``") == "``` a `b` ``c`` ```"


def test_blank_numbers_are_blank(pages: tuple[str, str]) -> None:
    for text in pages:
        assert not re.search(r"\b(nan|NaN|<NA>|None|inf)\b", re.sub(r"base64,[^\"]*", "", text))


def test_ten_thousand_runs_in_time(tmp_path: Path) -> None:
    options = Options(strategies=12, devices=(1, 2, 4, 8), blocks=210, device_kind="cuda", breakdown=False)
    folder = write_campaign(tmp_path / "campaign", replace(options, failures=()))
    begin = time.perf_counter()
    build_report([folder], tmp_path / "out")
    # 15 s is the aim on two idle cores; the bound leaves room for a busy machine.
    assert time.perf_counter() - begin < 60
