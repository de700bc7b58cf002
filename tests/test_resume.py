"""What a resumed campaign takes as done, and what it refuses to mix. The real campaigns are in test_faults_outside."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from planned import planned

from bench.data import prepare
from bench.errors import UserError
from bench.factors import CELL_FACTORS
from bench.plan.matrix import Group, Matrix
from bench.plan.planned import PlannedCell
from bench.results.columns import RUN_COLUMNS, SCHEMA_VERSION
from bench.results.csvfile import write_rows
from bench.results.folder import read_runs
from bench.run.prepare import _check_same_data
from bench.run.request import Request
from bench.run.resolve import _as_begun
from bench.run.resume import Done, check_same_environment, check_same_matrix, check_same_strategy_files
from bench.run.store import Store

CELL = planned("ddp", 2, options={"bucket_cap_mb": 5}, batch_global=16)


def row_of(cell: PlannedCell, *, block: int, status: str, attempt: int = 1) -> dict[str, object]:
    factors = {factor.name: cell[factor.name] for factor in CELL_FACTORS}
    known = {"schema_version": SCHEMA_VERSION, "block": block, "status": status, "attempt": attempt, "cohort": 0}
    return factors | known


def done(folder: Path, *rows: dict[str, object]) -> Done:
    write_rows(folder / "runs.csv", RUN_COLUMNS, rows)
    return Done(read_runs(folder / "runs.csv"))


@pytest.mark.parametrize("status", ["ok", "unsupported", "invalid", "oom", "timeout", "crashed"])
def test_every_run_with_an_end_of_its_own_is_finished(tmp_path: Path, status: str) -> None:
    found = done(tmp_path, row_of(CELL, block=1, status=status))
    assert found.finished(CELL, 1)
    assert not found.finished(CELL, 0)
    assert not found.finished(CELL, 2)


def test_an_interrupted_run_is_missing_and_its_next_attempt_is_counted(tmp_path: Path) -> None:
    found = done(tmp_path, row_of(CELL, block=0, status="interrupted"))
    assert not found.finished(CELL, 0)
    assert (found.next_attempt(CELL, 0), found.next_attempt(CELL, 1)) == (2, 1)
    found = done(
        tmp_path,
        row_of(CELL, block=0, status="interrupted"),
        row_of(CELL, block=0, status="interrupted", attempt=2),
        row_of(CELL, block=0, status="ok", attempt=3),
    )
    assert found.finished(CELL, 0)


def test_the_last_attempt_says_whether_a_run_is_finished(tmp_path: Path) -> None:
    """A run that was being repeated when the campaign was interrupted is measured again."""
    first, second = row_of(CELL, block=0, status="ok"), row_of(CELL, block=0, status="interrupted", attempt=2)
    for rows in ((first, second), (second, first)):
        found = done(tmp_path, *rows)
        assert not found.finished(CELL, 0)
        assert found.next_attempt(CELL, 0) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "single"},
        {"devices": 1},
        {"scaling": "weak"},
        {"precision": "amp-bf16"},
        {"memory_format": "channels_last"},
        {"compile": "default"},
        {"variant": "bucket_cap_mb=6"},
        {"accumulate": 2},
        {"role": "control"},
        {"batch_global": 32},
        {"data_pipeline": "loader"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_cell_is_not_finished(tmp_path: Path, changes: dict[str, object]) -> None:
    found = done(tmp_path, row_of(CELL, block=0, status="ok"))
    assert found.finished(CELL, 0)
    assert not found.finished(CELL.changed(**changes), 0)


def test_every_factor_of_a_cell_tells_it_apart() -> None:
    """A further factor needs a line in the table above."""
    marks = [mark for mark in test_another_cell_is_not_finished.pytestmark if mark.name == "parametrize"]
    assert {name for changes in marks[0].args[1] for name in changes} == {factor.name for factor in CELL_FACTORS}


def test_what_is_added_counts_as_what_was_read(tmp_path: Path) -> None:
    found = Done()
    found.add([row_of(CELL, block=0, status="ok") | {"repeated_for": "load from other processes"}])
    assert not found.finished(CELL, 0)
    found.add([row_of(CELL, block=0, status="ok", attempt=2) | {"repeated_for": ""}])
    assert found.finished(CELL, 0)
    assert len(found.rows) == 2


def test_nothing_is_finished_without_rows() -> None:
    found = Done()
    assert found.rows == []
    assert not found.finished(CELL, 0)
    assert found.next_attempt(CELL, 0) == 1


def test_rows_of_another_schema_version_are_not_judged(tmp_path: Path) -> None:
    row = row_of(CELL, block=0, status="ok")
    with pytest.raises(UserError, match=r"runs\.csv, line 3: schema version '2', this version of the suite reads '1'"):
        done(tmp_path, row, row | {"schema_version": "2"})


# -- the same machine, version and options -----------------------------------------------------------------------------

FACTS = {"identity": {"cpu": "A", "torch": "2.14"}, "volatile": {"git_commit": "abc"}}


def recorded(folder: Path, **identity: str) -> Path:
    facts = {**FACTS, "identity": {**FACTS["identity"], **identity}}
    (folder / "environment.json").write_text(json.dumps(facts))
    return folder


def test_the_same_environment_goes_on(tmp_path: Path) -> None:
    assert check_same_environment(recorded(tmp_path), FACTS, force=False) == []


def test_another_machine_is_refused_unless_forced(tmp_path: Path) -> None:
    recorded(tmp_path, cpu="B")
    with pytest.raises(UserError, match=r"other conditions \(cpu: B -> A\).*--force"):
        check_same_environment(tmp_path, FACTS, force=False)
    assert check_same_environment(tmp_path, FACTS, force=True) == ["cpu: B -> A"]


def test_another_commit_of_the_suite_is_refused(tmp_path: Path) -> None:
    newer = {**FACTS, "volatile": {"git_commit": "def"}}
    with pytest.raises(UserError, match="commit of the suite: abc -> def"):
        check_same_environment(recorded(tmp_path), newer, force=False)


def test_changed_files_of_the_suite_are_refused(tmp_path: Path) -> None:
    clean = {**FACTS, "volatile": {"git_commit": "abc", "git_dirty": False}}
    dirty = {**FACTS, "volatile": {"git_commit": "abc", "git_dirty": True}}
    (tmp_path / "environment.json").write_text(json.dumps(clean))
    assert check_same_environment(tmp_path, clean, force=False) == []
    with pytest.raises(UserError, match="files of the suite: as committed -> changed since that commit"):
        check_same_environment(tmp_path, dirty, force=False)


@pytest.mark.parametrize("text", [None, "{", ""])
def test_a_folder_without_its_facts_cannot_be_judged(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "environment.json").write_text(text)
    with pytest.raises(UserError, match=r"could not read .*environment\.json"):
        check_same_environment(tmp_path, FACTS, force=False)


# -- the same matrix ---------------------------------------------------------------------------------------------------

MATRIX = Matrix("m", (Group(strategies=("ddp",)),))
OTHER_WORK = {
    "device": "cpu",
    "workload": "toy",
    "dataset": "synthetic",
    "steps": 5,
    "warmup_steps": 3,
    "epochs": 2,
    "seed": 1,
    "threads_per_device": 2,
    "loader_workers": 1,
}
SAME_WORK = {
    "name": "n",
    "groups": (Group(strategies=("single",)),),
    "description": "d",
    "blocks": 0,
    "timeout": 9.0,
    "start": "cold",
    "baseline": "ddp@1",
    "control": False,
    "breakdown": True,
    "trace": True,
    "precision_target": 0.1,
    "max_blocks": 7,
    "time_limit": 5.0,
    "time_target": 60.0,
    "turns": "off",
    "race": True,
    "repeat_disturbed": 1,
    "options": {"ddp": {"bucket_cap_mb": 5}},
}


def test_every_key_of_a_matrix_is_judged() -> None:
    """Whether runs of two values can be told apart: by the cell's key, or since the value changes no single run."""
    assert {*OTHER_WORK, *SAME_WORK} == {item.name for item in fields(Matrix)}
    assert not {*OTHER_WORK} & {*SAME_WORK}


@pytest.mark.parametrize("name", OTHER_WORK)
def test_runs_of_other_work_are_not_mixed_even_when_forced(tmp_path: Path, name: str) -> None:
    asked = replace(MATRIX, **{name: OTHER_WORK[name]}, blocks=3)
    for force in (False, True):
        with pytest.raises(UserError, match=rf"another matrix .*\({name}: .* -> {OTHER_WORK[name]}\).*told apart"):
            check_same_matrix(tmp_path, MATRIX, asked, recorded={}, force=force)


@pytest.mark.parametrize("name", SAME_WORK)
def test_another_plan_is_refused_unless_forced(tmp_path: Path, name: str) -> None:
    asked = replace(MATRIX, **{name: SAME_WORK[name]})
    check_same_matrix(tmp_path, MATRIX, MATRIX, recorded={}, force=False)
    with pytest.raises(UserError, match=r"another matrix .*(other|->).*; leave them out .*, or add --force$"):
        check_same_matrix(tmp_path, MATRIX, asked, recorded={}, force=False)
    check_same_matrix(tmp_path, MATRIX, asked, recorded={}, force=True)


def test_naming_what_auto_came_to_is_no_difference(tmp_path: Path) -> None:
    recorded = {"device_kind": "cpu", "threads_per_device": 1, "dataset_used": "cifar10"}
    asked = replace(MATRIX, device="cpu", threads_per_device=1, dataset="cifar10")
    check_same_matrix(tmp_path, MATRIX, asked, recorded=recorded, force=False)
    with pytest.raises(UserError, match=r"\(threads_per_device: None -> 2\)"):
        check_same_matrix(tmp_path, MATRIX, replace(asked, threads_per_device=2), recorded=recorded, force=True)


@pytest.mark.parametrize("text", ["[1]", "null", '{"identity": 3}', '{"volatile": null}'])
def test_facts_of_another_shape_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"environment\.json holds no facts of a machine"):
        check_same_environment(tmp_path, {"identity": {}, "volatile": {}}, force=False)


def test_keys_are_shown_as_a_matrix_file_has_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\(steps: epoch -> 5\)"):
        check_same_matrix(tmp_path, MATRIX, replace(MATRIX, steps=5), recorded={}, force=True)
    with pytest.raises(UserError, match=r"\(blocks: 1 -> auto\)"):
        check_same_matrix(tmp_path, MATRIX, replace(MATRIX, blocks=0), recorded={}, force=False)


# -- the same data and strategy files ----------------------------------------------------------------------------------


def test_rows_of_other_data_are_refused_unless_forced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        data = prepare("synthetic", kind="toy", data_root=tmp_path, seed=0)
        _check_same_data(store, data, force=False)
        for fingerprint in (data.fingerprint, "0" * 16):
            store.add([row_of(CELL, block=0, status="ok") | {"dataset_fingerprint": fingerprint}], [])
            if fingerprint == data.fingerprint:
                _check_same_data(store, data, force=False)
        with pytest.raises(UserError, match=rf"fingerprint 0{{16}}, .*, this is {data.fingerprint};.*--force"):
            _check_same_data(store, data, force=False)
        _check_same_data(store, data, force=True)
    finally:
        store.close()


def test_other_contents_of_a_strategy_file_are_refused_unless_forced(tmp_path: Path) -> None:
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text(f"# {file.name}")
    begun = {
        "strategy_files_sha256": [hashlib.sha256(b"# one.py").hexdigest(), hashlib.sha256(b"# two.py").hexdigest()]
    }
    assert check_same_strategy_files(tmp_path, files, begun, force=False) == []
    # The same contents elsewhere are the same strategies.
    assert check_same_strategy_files(tmp_path, [files[1].rename(tmp_path / "moved.py")], begun, force=False) == []
    files[0].write_text("# mended")
    with pytest.raises(
        UserError, match=r"other contents of the strategy file \S*one\.py; put them back, or add --force"
    ):
        check_same_strategy_files(tmp_path, files[:1], begun, force=False)
    assert check_same_strategy_files(tmp_path, files[:1], begun, force=True) == [
        f"contents of the strategy file {files[0]}"
    ]
    assert check_same_strategy_files(tmp_path, files[:1], {}, force=False) == []


BEGUN = {
    "strategy_files": ["/s/mine.py"],
    "checkpoint": "/c",
    "initial_state": "/i.pt",
    "command": "bench run first",
    "anonymous": True,
}


def test_a_resumed_campaign_keeps_what_it_was_begun_with(tmp_path: Path) -> None:
    request = _as_begun(Request(resume=tmp_path, command="bench run --resume"), BEGUN)
    assert request.strategy_files == (Path("/s/mine.py"),)
    assert (request.checkpoint, request.initial_state) == (Path("/c"), Path("/i.pt"))
    assert (request.command, request.anonymous) == ("bench run first", True)
    other = Request(resume=tmp_path, checkpoint=Path("/d"), strategy_files=(Path("/t.py"),))
    assert _as_begun(other, BEGUN).checkpoint == Path("/d")
    assert _as_begun(other, BEGUN).strategy_files == (Path("/t.py"),)


def test_another_initial_state_is_refused_unless_forced(tmp_path: Path) -> None:
    asked = Request(resume=tmp_path, initial_state=Path("/j.pt"))
    with pytest.raises(UserError, match=r"was begun with --init-from /i\.pt"):
        _as_begun(asked, BEGUN)
    with pytest.raises(UserError, match="was begun with no --init-from"):
        _as_begun(asked, {})
    assert _as_begun(replace(asked, force=True), BEGUN).initial_state == Path("/j.pt")
    assert _as_begun(replace(asked, initial_state=Path("/i.pt")), BEGUN).initial_state == Path("/i.pt")


def test_a_new_campaign_takes_nothing_over() -> None:
    request = Request(command="bench run")
    assert _as_begun(request, BEGUN) is request
