"""The vocabulary: what each derived name is for real cells, and that a further factor needs one entry and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from generated import row, write_campaign
from planned import planned

from bench.errors import UserError
from bench.factors import (
    CELL_FACTORS,
    DATA_PIPELINES,
    FACTOR_NAMES,
    FACTORS,
    PREFERRED,
    SAME_SETTING,
    Baseline,
    cell_key,
    cell_name,
    is_baseline_row,
    run_tag,
    varying,
)

TUNED = {"precision": "amp-bf16", "memory_format": "channels_last", "compile": "default", "scaling": "weak"}


@pytest.mark.parametrize(
    ("cell", "name", "tag"),
    [
        (planned("ddp", 2), "ddp@2 fp32", "ddp-2d-fp32-g16"),
        (planned("single", 1, role="control"), "single@1 fp32 control", "single-1d-fp32-control-g16"),
        (
            planned("ddp", 4, options={"bucket_cap_mb": 5}, accumulate=2, data_pipeline="loader", batch_global=64),
            "ddp@4 fp32 bucket_cap_mb=5 loader accumulate 2",
            "ddp-4d-fp32-loader-bucket_cap_mb_5-g64-a2",
        ),
        (
            planned("ddp_tuned", 2, **TUNED),
            "ddp_tuned@2 amp-bf16 weak channels_last compile default",
            "ddp_tuned-2d-weak-amp-bf16-channels_last-compile-default-g16",
        ),
        (planned("bad", 2, places=(), precision="", batch_global=None), "bad@2", "bad-2d"),
    ],
)
def test_names_say_what_does_not_go_without_saying(cell, name, tag):
    assert (cell_name(cell), run_tag(cell)) == (name, tag)


@pytest.mark.parametrize("factor", CELL_FACTORS, ids=lambda factor: factor.name)
def test_cells_that_differ_in_a_factor_have_other_keys_and_run_ids(factor):
    cell = planned("ddp", 2)
    value = 3 if factor.kind == "int" else "other"
    other = cell.changed(**{factor.name: value})
    assert cell_key(cell) != cell_key(other)
    assert run_tag(cell) != run_tag(other)


def test_how_cells_match():
    """Worked out by hand: what must agree, and what is preferred before what."""
    assert SAME_SETTING == (
        "workload",
        "dataset",
        "data_pipeline",
        "device_kind",
        "threads_per_device",
        "environment_id",
    )
    assert PREFERRED == ("scaling", "precision", "memory_format", "compile", "accumulate", "variant")
    assert {factor.name for factor in FACTORS if factor.matching in ("named", "batch")} == {
        "strategy",
        "devices",
        "role",
        "batch_global",
    }


def test_what_varies_between_cells():
    cells = [planned("ddp", 2), planned("ddp", 4), planned("ddp", 2, precision="tf32")]
    assert varying(cells, [factor.name for factor in CELL_FACTORS]) == ["devices", "precision"]
    assert varying(cells[:1], [factor.name for factor in CELL_FACTORS]) == []


def test_the_spelling_of_a_baseline():
    assert Baseline.parse(None) == Baseline.parse("single") == Baseline("single", 1)
    assert str(Baseline.parse("ddp@16")) == "ddp@16"
    for wrong in ("@2", "ddp@", "ddp@0", "ddp@01", "ddp@²", "a b", "ddp@1@2"):
        with pytest.raises(UserError, match="NAME"):
            Baseline.parse(wrong)


def test_the_baseline_is_the_headline_cell_and_not_its_twin():
    spec = Baseline.parse("ddp@2")
    assert spec.matches(planned("ddp", 2))
    assert not spec.matches(planned("ddp", 2, role="control"))
    assert not spec.matches(planned("ddp", 4))
    cell = {"strategy": "ddp", "devices": 2, "precision": "fp32", "role": "measure", "baseline": "ddp@2 fp32"}
    assert is_baseline_row(cell)
    for change in ({"role": "control"}, {"precision": "tf32"}, {"baseline": ""}, {"devices": 4}):
        assert not is_baseline_row(cell | change)


def test_every_vocabulary_stands_in_its_factor():
    values = {factor.name: factor.values for factor in FACTORS if factor.values}
    assert set(values) == {
        "scaling",
        "precision",
        "role",
        "data_pipeline",
        "memory_format",
        "compile",
        "device_kind",
    }
    assert values["data_pipeline"] == DATA_PIPELINES
    assert all(factor.default is None or factor.default in factor.values for factor in FACTORS if factor.values)


# -- a further factor -------------------------------------------------------------------------------------------------

PROGRAM = r"""
import importlib.util, json, sys
from pathlib import Path

# bench.factors with one entry more in its table, in place before any other module reads it.
spec = importlib.util.find_spec("bench.factors")
text = Path(spec.origin).read_text(encoding="utf-8")
entry = '''    Factor("interconnect", "str", "which link the ranks use", key="interconnect", many=True,
           values=("auto", "tcp", "shm"), default="auto", words="over {}", help="auto, tcp or shm."),
)'''
head, table, tail = text.partition("FACTORS: tuple[Factor, ...] = (")
end = tail.index("\n)")
module = importlib.util.module_from_spec(spec)
sys.modules["bench.factors"] = module
exec(compile(head + table + tail[: end + 1] + entry + tail[end + 2 :], spec.origin, "exec"), module.__dict__)

from bench import workloads
from bench.cli import RUN_OPTIONS
from bench.factors import cell_name, run_tag
from bench.machine.detect import Machine
from bench.plan.cells import plan_cells
from bench.plan.matrix import override, parse_matrix, to_toml
from bench.results.columns import RUN_COLUMNS, SUMMARY_COLUMNS
from bench.results.compare import compare
from bench.results.csvfile import read_rows, write_rows
from bench.results.folder import Campaign
from bench.results.summary import campaign_summary
from bench.run.resume import Done
from strategies import Registry

matrix = parse_matrix('strategies = ["single"]\ndevices = [1]\ninterconnect = ["tcp", "auto"]\n', name="m", source="m")
plain = parse_matrix('strategies = ["single"]\ndevices = [1]\n', name="m", source="m")
asked = override(plain, {"interconnect": ["shm"]})
cells = plan_cells(matrix, machine=Machine("cpu", "c", 2, 2), registry=Registry.collect(),
                   workload=workloads.find("toy"))
found = {
    "names": [cell_name(cell) for cell in cells],
    "tags": [run_tag(cell) for cell in cells],
    "keys": len({cell.key for cell in cells}),
    "toml": parse_matrix(to_toml(matrix, {}), name="m", source="m").groups == matrix.groups,
    "overridden": list(asked.groups[0]["interconnect"]),
    "options": [option.spelling for option in RUN_OPTIONS if option.name == "interconnect"],
    "run_columns": [c.meaning for c in RUN_COLUMNS if c.name == "interconnect"],
    "summary_columns": [c.name for c in SUMMARY_COLUMNS if c.name == "interconnect"],
}
try:
    parse_matrix('interconnect = ["smoke signals"]', name="m", source="m")
except Exception as error:
    found["refused"] = str(error)
folder, old = Path(sys.argv[1]), Path(sys.argv[2])
rows = read_rows(folder / "runs.csv", RUN_COLUMNS)
found["older_rows"] = sorted({row["interconnect"] for row in rows})
for row in rows:
    # Every second block of ddp ran over another link.
    row["interconnect"] = "tcp" if row["strategy"] == "ddp" and row["block"] % 2 else "auto"
write_rows(folder / "runs.csv", RUN_COLUMNS, rows)
done = Done(rows)
found["resume"] = [done.finished(cells[0], 0), done.finished(cells[1], 0)]
summary = campaign_summary(folder)
found["summary"] = sorted({*zip(summary["strategy"], summary["interconnect"])})
found["baseline_of_tcp"] = sorted({*summary[summary["interconnect"] == "tcp"]["baseline"]})
verdicts = compare(old, folder, force=True)
found["compared"] = sorted((row.name, row.factors["interconnect"], row.verdict == "MISSING") for row in verdicts.rows)
print("@@" + json.dumps(found))
"""


def test_a_made_up_factor_reaches_everything_with_one_entry(tmp_path: Path) -> None:
    rows = [row(name, 1, block) for block in range(4) for name in ("single", "ddp")]
    folders = [write_campaign(tmp_path / name, rows) for name in ("new", "old")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, folders)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("@@")[2])
    assert found["names"] == ["single@1 fp32 over tcp", "single@1 fp32", "single@1 fp32 control over tcp"]
    assert found["tags"][:2] == ["single-1d-fp32-g64-tcp", "single-1d-fp32-g64"]
    assert found["keys"] == 3
    assert found["toml"] is True
    assert found["overridden"] == ["shm"]
    assert found["options"] == ["--interconnect"]
    assert found["run_columns"] == ["which link the ranks use"]
    assert found["summary_columns"] == ["interconnect"]
    assert "interconnect = ['smoke signals'] is not right; it takes one of auto, tcp, shm" in found["refused"]
    # Files from before the factor hold what goes without saying.
    assert found["older_rows"] == ["auto"]
    assert found["resume"] == [False, False]
    assert found["summary"] == [["ddp", "auto"], ["ddp", "tcp"], ["single", "auto"]]
    # Another link is another setting: it has no baseline here.
    assert found["baseline_of_tcp"] == [""]
    assert found["compared"] == [["ddp@1", "auto", False], ["ddp@1", "tcp", True], ["single@1", "auto", False]]


def test_no_other_factor_was_left_in_the_table() -> None:
    assert "interconnect" not in FACTOR_NAMES
