"""What a campaign that was cut off left half written: set aside, never lost, and measured again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from stored import a_run, a_step

from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS
from bench.results.csvfile import append_rows, encode_rows, read_rows
from bench.run.store import RUNNING, Store

# -- what a crash leaves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_half_written_last_line_is_set_aside(store: Store, cut: int) -> None:
    store.add([a_run("one"), a_run("two")], [])
    whole = store.runs.read_bytes()
    store.runs.write_bytes(whole[:-cut])
    [message] = store.tidy(epochs=1)
    [aside] = store.folder.glob("runs.csv.half-line-*")
    assert message == f"runs.csv: the last line was half written; it is kept in {aside.name}"
    assert store.runs.read_bytes() + aside.read_bytes() == whole[:-cut]
    assert [row["run_id"] for row in read_rows(store.runs, RUN_COLUMNS)] == ["one"]
    assert store.tidy(epochs=1) == []


def test_a_half_written_header_is_set_aside(store: Store) -> None:
    store.runs.write_text("schema_version,campai")
    [message] = store.tidy(epochs=1)
    assert message.startswith("runs.csv: the last line was half written")
    assert not store.runs.exists()
    store.check()


def test_two_half_lines_in_one_second_are_both_kept(store: Store) -> None:
    for text in ("first", "second"):
        store.runs.write_text(text)
        store.tidy(epochs=1)
    assert {path.read_text() for path in store.folder.glob("runs.csv.half-line-*")} == {"first", "second"}


def an_epoch(run_id: str, epoch: int, **values: object) -> dict[str, object]:
    return a_run(run_id, epoch=epoch, timed_steps=3, **values)


@pytest.mark.parametrize("cut", [0, 1, 30], ids=["at the line's end", "in its last value", "in its middle"])
@pytest.mark.parametrize("status", ["ok", "invalid"])
def test_a_run_of_several_epochs_that_was_cut_is_no_finished_run(store: Store, cut: int, status: str) -> None:
    """Its rows are one write: where the last is missing or half, the others must not speak for the run."""
    store.add([an_epoch("one", 1), an_epoch("one", 2)], [])
    whole = store.runs.read_bytes()
    store.add([an_epoch("two", epoch, status=status) for epoch in (1, 2)], [a_step("two", 0)])
    lines = store.runs.read_bytes().splitlines(keepends=True)
    store.runs.write_bytes(b"".join(lines[:4]) + (lines[4][:-cut] if cut else b""))
    *half, part, steps = store.tidy(epochs=2)
    assert len(half) == (1 if cut else 0)
    [aside] = store.folder.glob("runs.csv.part-of-a-run-*")
    told = f"1 of the 2 rows of two were written; they are kept in {aside.name} and it is measured again"
    assert part == f"runs.csv: {told}"
    assert steps.startswith("steps.csv: 1 step(s) of a run that has no row")
    assert (store.runs.read_bytes(), aside.read_bytes()) == (whole, lines[3])
    assert store.tidy(epochs=2) == []


def test_a_whole_run_whose_rows_lie_apart_is_left_alone(store: Store) -> None:
    """In a file that was sorted by hand."""
    store.add([an_epoch("one", 1), an_epoch("two", 1), an_epoch("one", 2), an_epoch("two", 2)], [])
    before = store.runs.read_bytes()
    assert store.tidy(epochs=2) == []
    assert store.runs.read_bytes() == before


def test_two_of_three_epochs_are_set_aside_together(store: Store) -> None:
    store.add([an_epoch("one", epoch) for epoch in (1, 2, 3)], [])
    header, first, second, _ = store.runs.read_bytes().splitlines(keepends=True)
    # A blank line, as some editors leave it, is no row.
    store.runs.write_bytes(header + first + b"\n" + second)
    assert len(store.tidy(epochs=3)) == 1
    assert store.runs.read_bytes() == header


@pytest.mark.parametrize("status", ["crashed", "unsupported", "interrupted"])
def test_a_run_without_a_measurement_has_one_row_whatever_its_epochs(store: Store, status: str) -> None:
    store.add([an_epoch("one", 1), an_epoch("one", 2)], [])
    store.add([a_run("two", epoch=1, status=status)], [])
    before = store.runs.read_bytes()
    assert store.tidy(epochs=2) == []
    assert store.runs.read_bytes() == before


def test_steps_whose_run_has_no_row_are_set_aside(store: Store) -> None:
    store.add([a_run("one")], [a_step("one", 0), a_step("one", 1)])
    append_rows(store.steps, STEP_COLUMNS, [a_step("two", 0), a_step("two", 1)])
    store.add([a_run("three")], [a_step("three", 0)])
    [message] = store.tidy(epochs=1)
    assert message.startswith("steps.csv: 2 step(s) of a run that has no row; they are kept in steps.csv.without-run-")
    assert [(row["run_id"], row["step"]) for row in read_rows(store.steps, STEP_COLUMNS)] == [
        ("one", 0),
        ("one", 1),
        ("three", 0),
    ]
    [aside] = store.folder.glob("steps.csv.without-run-*")
    assert aside.read_text() == encode_rows(STEP_COLUMNS, [a_step("two", 0), a_step("two", 1)])
    assert store.tidy(epochs=1) == []


def test_orphans_are_ended_and_others_are_not(store: Store, tmp_path: Path) -> None:
    """What a process was started with says whose it is, and not its number: numbers are used again."""
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    places = (str(store.folder / "logs" / "b00"), str(store.folder / "logs"), str(tmp_path / "other" / "logs"), "")
    started = [
        subprocess.Popen(wait, stdin=subprocess.PIPE, env={**os.environ, "STRATEGYBENCH_RUN_FOLDER": place})
        for place in places
    ]
    try:
        assert store.end_orphans() == []
        store.note_running("b00", [process.pid for process in started])
        with pytest.MonkeyPatch.context() as windows:
            # That system has no such signal, and psutil does not need it there.
            windows.delattr(signal, "SIGKILL")
            windows.setattr(psutil.Process, "kill", lambda process: os.kill(process.pid, 9))
            assert sorted(store.end_orphans()) == sorted(process.pid for process in started[:2])
        assert [process.wait(10) for process in started[:2]] == [-9, -9]
        assert [process.poll() for process in started[2:]] == [None, None]
        assert not (store.folder / RUNNING).exists()
        assert store.end_orphans() == []
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert not any(psutil.pid_exists(process.pid) for process in started)


def test_what_an_orphan_started_is_ended_too(store: Store, tmp_path: Path) -> None:
    """The rank itself is gone: the variable of its run tells whose its children are."""
    parent = (
        "import os, subprocess, sys\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "others = {**os.environ, 'STRATEGYBENCH_RUN_FOLDER': sys.argv[1]}\n"
        "pids = [subprocess.Popen(child, env=env, stdout=subprocess.DEVNULL).pid for env in (os.environ, others)]\n"
        "print(*pids)\n"
    )
    words = [sys.executable, "-c", parent, str(tmp_path / "other" / "logs" / "b00")]
    own = {**os.environ, "STRATEGYBENCH_RUN_FOLDER": str(store.folder / "logs" / "b00")}
    with subprocess.Popen(words, env=own, start_new_session=True, stdout=subprocess.PIPE, text=True) as rank:
        ours, theirs = (psutil.Process(int(word)) for word in rank.communicate(timeout=60)[0].split())
    try:
        store.note_running("b00", [rank.pid])
        assert store.end_orphans() == [ours.pid]
        ours.wait(10)
        assert theirs.is_running()
    finally:
        theirs.kill()


def test_a_broken_note_of_what_ran_ends_nobody_else(store: Store) -> None:
    (store.folder / RUNNING).write_text('{"pids": [1')
    assert store.end_orphans() == []
