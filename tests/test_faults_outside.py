"""Campaigns that are ended from outside: signals to the parent, in real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import Started, assert_none_left, await_ranks, await_true, here, rows, run, start, toy, workers
from fault_strategies import Fault, write_table

from bench.run.node import LocalNode


@pytest.fixture(scope="module", autouse=True)
def _nobody_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    assert workers(tmp_path_factory.getbasetemp()) == []


def hanging(folder: Path, *others: str, turns: str = "off", phase: str = "first_step") -> list[str]:
    """A campaign whose last run hangs; seed 0 puts ddp before it."""
    table = write_table(folder / "faults.py", {"hanging": Fault("hang", 1, phase)})
    return toy(folder / "out", "--strategy-file", str(table), "--turns", turns, strategies=[*others, "hanging"])


def await_hang(out: Path) -> None:
    await_ranks(out, "b00-hanging-*", phase="warmup")


def end(process: Started) -> tuple[int, str]:
    """The exit code and what it said on stderr."""
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, errors


@pytest.mark.parametrize(
    ("signals", "others"),
    [
        ((signal.SIGINT,), ["ddp"]),
        ((signal.SIGINT, signal.SIGINT), []),
        ((signal.SIGTERM,), []),
        ((signal.SIGHUP,), []),
    ],
    ids=["SIGINT", "SIGINT-twice", "SIGTERM", "SIGHUP"],
)
def test_a_campaign_that_is_ended_leaves_its_rows_and_no_rank(
    tmp_path: Path, signals: tuple[signal.Signals, ...], others: list[str]
) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path, *others))
    await_hang(out)
    for one in signals:
        process.send_signal(one)
    assert_none_left(out, seconds=10)
    code, errors = end(process)
    assert code == 130, errors
    assert "Traceback" not in errors
    assert [(row["strategy"], row["status"], row["reason"]) for row in rows(out)] == [
        *((name, "ok", "") for name in others),
        ("hanging", "interrupted", f"ended by {signals[0].name}"),
    ]
    assert not (out / "running.json").exists()
    assert json.loads((out / "stop.json").read_text()) == {"stop_reason": f"interrupted by {signals[0].name}"}


def test_a_killed_campaign_leaves_no_rank_and_resumes_where_it_was(tmp_path: Path, node: LocalNode) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path, "ddp"))
    await_hang(out)
    process.send_signal(signal.SIGKILL)
    code, _ = end(process)
    assert code == -signal.SIGKILL
    assert_none_left(out, seconds=10)
    before = rows(out)
    assert [(row["strategy"], row["status"]) for row in before] == [("ddp", "ok")]
    assert json.loads((out / "running.json").read_text())["runs"].keys() == {"b00-hanging-2d-fp32-g16"}
    # What a kill in the middle of an append leaves: half a row, and steps whose run has no row.
    with (out / "runs.csv").open("a") as file:
        file.write("1,out,b00-hang")
    with (out / "steps.csv").open("a") as file:
        file.write("b00-hanging-2d-fp32-strong-g16,0,1,0,0.5,0.0\n")
    # The user mends the strategy and goes on, once told what that mixes.
    write_table(tmp_path / "faults.py", {"hanging": Fault("none")})
    done = here([*RUN, "--resume", str(out)], node)
    assert done.returncode == 2, done.stderr
    assert f"other contents of the strategy file {tmp_path / 'faults.py'}; put them back, or add --force" in done.stderr
    assert rows(out)[:1] == before
    done = here([*RUN, "--resume", str(out), "--force", "--quiet"], node)
    assert done.returncode == 0, done.stderr
    assert "runs.csv: the last line was half written; it is kept in runs.csv.half-line-" in done.stderr
    assert "steps.csv: 1 step(s) of a run that has no row; they are kept in steps.csv.without-run-" in done.stderr
    assert [path.read_text() for path in out.glob("runs.csv.half-line-*")] == ["1,out,b00-hang"]
    after = rows(out)
    assert after[0] == before[0]
    assert [(row["strategy"], row["status"], row["attempt"]) for row in after] == [
        ("ddp", "ok", "1"),
        ("hanging", "ok", "1"),
    ]
    steps = rows(out, "steps.csv")
    places = [(row["run_id"], row["rank"], row["epoch"], row["step"]) for row in steps]
    assert len(places) == len(set(places)) == 2 * 2 * 3
    assert not (out / "running.json").exists()
    _resumes_only_what_is_the_same(out, node)
    _resumes_no_file_that_another_hand_changed(out, node)


def _resumes_only_what_is_the_same(out: Path, node: LocalNode) -> None:
    """A complete campaign measures nothing again, though saved with CRLF, and refuses what would mix two campaigns."""
    rows_before = (out / "runs.csv").read_bytes().replace(b"\n", b"\r\n")
    (out / "runs.csv").write_bytes(rows_before)
    environment = (out / "environment.json").read_text()
    # No cell names its steps: what is there would pass for what was asked for.
    done = here([*RUN, "--resume", str(out), "--steps", "2", "--force"], node)
    assert done.returncode == 2
    assert "was begun with another matrix than these options give (steps: 3 -> 2)" in done.stderr
    facts = json.loads(environment)
    facts["identity"]["cpu"] = "Another CPU"
    facts["identity"]["torch"] = "1.0"
    (out / "environment.json").write_text(json.dumps(facts))
    done = here([*RUN, "--resume", str(out)], node)
    assert done.returncode == 2
    assert "was measured under other conditions (cpu: Another CPU -> " in done.stderr
    assert "torch: 1.0 -> " in done.stderr
    assert (out / "runs.csv").read_bytes() == rows_before
    done = here([*RUN, "--resume", str(out), "--force"], node)
    assert done.returncode == 0, done.stderr
    assert "resumed although this differs: cpu: Another CPU -> " in done.stderr
    assert (out / "runs.csv").read_bytes() == rows_before


def _resumes_no_file_that_another_hand_changed(out: Path, node: LocalNode) -> None:
    """Another header and columns of one's own are refused as they are; an empty file is begun anew."""
    runs = out / "runs.csv"
    header, *lines = runs.read_text().splitlines()
    changed = "\n".join([header.replace(",gate,", ",verdict,") + ",note", *(line + ",mine" for line in lines)]) + "\n"
    runs.write_text(changed)
    done = here([*RUN, "--resume", str(out), "--quiet"], node)
    assert done.returncode == 2
    assert "another header than this version writes (missing gate; unknown verdict, note); use a new" in done.stderr
    assert runs.read_text() == changed
    runs.write_bytes(b"")
    done = here([*RUN, "--resume", str(out), "--quiet"], node)
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert first == "runs.csv: the file was empty"
    assert second.startswith("steps.csv: 12 step(s) of a run that has no row; they are kept in steps.csv.without-run-")
    assert [(row["strategy"], row["status"]) for row in rows(out)] == [("ddp", "ok"), ("hanging", "ok")]
    assert len(rows(out, "steps.csv")) == 12


@pytest.mark.parametrize(
    ("phase", "where"), [("first_step", "warmup"), ("later_step", "timed")], ids=["starting", "in-turns"]
)
def test_a_campaign_that_is_ended_while_runs_wait_for_their_turn_gives_each_its_row(
    tmp_path: Path, phase: str, where: str, node: LocalNode
) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path, "ddp", turns="auto", phase=phase))
    await_ranks(out, "b00-hanging-*", number=4, phase=where)
    process.send_signal(signal.SIGTERM)
    assert_none_left(out, seconds=10)
    code, errors = end(process)
    assert code == 130, errors
    assert sorted((row["strategy"], row["status"], row["reason"]) for row in rows(out)) == [
        (name, "interrupted", "ended by SIGTERM") for name in ("ddp", "hanging")
    ]
    assert not (out / "running.json").exists()
    assert not [path for path in out.glob("logs/*/*") if path.name in ("heartbeat", "rendezvous")]
    write_table(tmp_path / "faults.py", {"hanging": Fault("none")})
    done = here([*RUN, "--resume", str(out), "--force", "--quiet"], node)
    assert done.returncode == 0, done.stderr
    again = rows(out)[2:]
    assert sorted((row["strategy"], row["status"], row["cohort"], row["attempt"]) for row in again) == [
        ("ddp", "ok", "1", "2"),
        ("hanging", "ok", "1", "2"),
    ]


def test_a_campaign_that_is_killed_while_runs_wait_for_their_turn_leaves_nobody(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path, "ddp", turns="auto", phase="later_step"))
    await_ranks(out, "b00-hanging-*", number=4, phase="timed")
    process.send_signal(signal.SIGKILL)
    end(process)
    assert_none_left(out, seconds=10)
    assert len(json.loads((out / "running.json").read_text())["runs"]) == 2
    assert rows(out) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_that_is_ended_or_stopped_while_it_waits_is_judged_alone(tmp_path: Path, number: signal.Signals) -> None:
    """ddp waits while the other hangs with the floor; a stopped rank does not come back from its own next turn."""
    out = tmp_path / "out"
    process = start([*hanging(tmp_path, "ddp", turns="auto"), "--timeout", "8"])
    await_ranks(out, "b00-hanging-*", number=4, phase="warmup")
    waiting = json.loads((out / "running.json").read_text())["runs"]["b00-ddp-2d-fp32-g16"]
    os.kill(waiting[0], number)
    code, errors = end(process)
    assert code == 1, errors
    found = {row["strategy"]: row for row in rows(out)}
    assert found["hanging"]["status"] == "timeout"
    killed = number == signal.SIGKILL
    status, words = ("crashed", "was ended by SIGKILL") if killed else ("timeout", "no result after 8 s")
    assert (found["ddp"]["status"], words in found["ddp"]["reason"]) == (status, True)
    assert_none_left(out, seconds=10)


RUN = toy(Path())[:4]


def test_a_second_campaign_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path))
    try:
        await_hang(out)
        done = run(toy(out), timeout=60)
        assert done.returncode == 2
        assert f"another campaign is writing to {out}" in done.stderr
        assert len(workers(out)) == 2
    finally:
        process.send_signal(signal.SIGTERM)
        code, _ = end(process)
    assert code == 130


def test_a_search_for_the_largest_batch_is_ended_like_a_campaign(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start([*hanging(tmp_path), "--find-batch"])
    try:
        ranks = await_ranks(out, "find-*", phase="warmup")
        (noted,) = json.loads((out / "running.json").read_text())["runs"].values()
        assert sorted(noted) == sorted(rank.pid for rank in ranks)
    finally:
        process.send_signal(signal.SIGINT)
    assert_none_left(out, seconds=10)
    code, errors = end(process)
    assert (code, errors) == (130, "bench: interrupted\n")
    assert not (out / "running.json").exists()
    assert rows(out) == []


def test_loader_workers_end_with_the_campaign_that_is_killed(tmp_path: Path) -> None:
    """Stopped ones cannot look after their parent themselves, as those busy with a sample cannot."""
    out = tmp_path / "out"
    process = start([*hanging(tmp_path), "--data-pipeline", "loader", "--loader-workers", "2"], TMPDIR=str(tmp_path))
    # A loader worker is a copy of its rank.
    found = await_ranks(out, number=2 * (1 + 2), phase="warmup")
    try:
        for worker in found:
            if worker.ppid() != process.pid:
                worker.suspend()
        process.send_signal(signal.SIGKILL)
        assert_none_left(out, seconds=10)
    finally:
        for worker in found:
            if worker.is_running():
                worker.kill()
        end(process)


def test_an_interruption_before_the_first_run_is_quiet(tmp_path: Path) -> None:
    """While strategies are being planned no run has begun: the answer is the exit code and no traceback."""
    slow = tmp_path / "slow.py"
    mark = tmp_path / "planning"
    slow.write_text(
        "import pathlib, time\n"
        "from strategies.ddp import DDP\n"
        "class Slow(DDP):\n"
        "    def plan(self, asked):\n"
        f"        pathlib.Path({str(mark)!r}).touch()\n"
        "        time.sleep(60)\n"
        "STRATEGIES = {'slow': Slow}\n"
    )
    process = start(toy(tmp_path / "out", "--strategy-file", str(slow), strategies=["slow"]))
    await_true(mark.exists, seconds=60, what="the plan of the slow strategy")
    process.send_signal(signal.SIGINT)
    code, errors = end(process)
    assert (code, "Traceback" in errors) == (130, False), errors
    assert rows(tmp_path / "out") == []
