"""The chaos run at a small size: `tests/chaos.py` says what it does and checks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chaos
import psutil
import pytest
from fault_strategies import PHASES, Fault


@pytest.mark.timeout(420)
def test_every_kind_of_fault_keeps_its_row() -> None:
    script = Path(chaos.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--runs", "12", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["wrong"] == 0
    assert sum(counts["kinds"].values()) == counts["runs"] == 12
    assert set(counts["kinds"]) == set(chaos.WEIGHTS)
    # One campaign, and one more for each time that it was ended from within, or from outside unless both fell together.
    ended = counts["kinds"]["interrupt_parent"] + counts["kinds"]["kill_parent"]
    outside = sum(counts["signals_from_outside"].values())
    assert outside == counts["kinds"]["outside"] == 1
    assert ended <= sum(counts["exit_codes"].values()) - 1 <= ended + outside


def test_faults_are_seeded_and_cover_ranks_and_phases(tmp_path: Path) -> None:
    faults = chaos.draw_faults(200, seed=0, folder=tmp_path)
    assert faults == chaos.draw_faults(200, seed=0, folder=tmp_path)
    assert faults != chaos.draw_faults(200, seed=1, folder=tmp_path)
    seen = Counter((fault.kind, fault.rank) for fault in faults.values())
    assert len(faults) == 200
    assert {kind for kind, _ in seen} == set(chaos.WEIGHTS)
    assert {(fault.rank, fault.phase) for fault in faults.values()} == {(r, p) for r in (0, 1) for p in PHASES}


def test_signals_are_seeded_and_come_at_every_moment(tmp_path: Path) -> None:
    faults = chaos.draw_faults(200, seed=0, folder=tmp_path)
    signals = chaos.draw_signals(faults, seed=0)
    assert signals == chaos.draw_signals(faults, seed=0)
    assert len(signals) == sum(fault.kind == "outside" for fault in faults.values()) >= len(chaos.MOMENTS)
    assert {one.moment for one in signals} == set(chaos.MOMENTS)
    assert {one.number for one in signals} == {signal.SIGINT, signal.SIGTERM}
    assert chaos.draw_signals({"a": Fault("raise")}, seed=0) == []


def test_a_session_that_ends_wrongly_leaves_no_process(tmp_path: Path) -> None:
    """Nor does one that takes too long, whatever it does with signals."""
    pid = tmp_path / "pid"
    program = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        chaos.run_session([sys.executable, "-c", program], tmp_path, None, seconds=3)
    assert not psutil.pid_exists(int(pid.read_text()))


def test_the_check_finds_lost_doubled_and_wrong_rows(tmp_path: Path) -> None:
    """The checks above hold only if they can fail."""
    from bench.results.columns import RUN_COLUMNS, STEP_COLUMNS
    from bench.results.csvfile import write_rows

    faults = {"a": Fault("raise", 1, "build"), "b": Fault("none"), "c": Fault("kill", 0, "close")}

    def problems(*rows: tuple[str, ...], steps: dict[str, int], ended: int = 0) -> list[str]:
        names = ("run_id", "strategy", "status", "reason", "repeated_for")
        table = [dict(zip(names, row, strict=False)) for row in rows]
        write_rows(tmp_path / "runs.csv", RUN_COLUMNS, table)
        write_rows(
            tmp_path / "steps.csv", STEP_COLUMNS, [{"run_id": n} for n, count in steps.items() for _ in range(count)]
        )
        return chaos.check(tmp_path, faults, ended=ended)

    a, b, c = ("1", "a", "crashed", "rank 1 in build: X"), ("2", "b", "ok", ""), ("3", "c", "ok", "")
    full = {"2": 6, "3": 6}
    assert problems(a, b, c, steps=full) == []
    assert any("expected ['crashed']" in text for text in problems(b, c, steps=full))
    assert any("has 2 rows" in text for text in problems(a, a, b, c, steps=full))
    assert any("does not name the rank" in text for text in problems(("1", "a", "crashed", "rank 0"), b, c, steps=full))
    assert any("expected ['ok']" in text for text in problems(a, ("2", "b", "crashed", "x"), c, steps={"3": 6}))
    assert any("steps.csv and runs.csv differ" in text for text in problems(a, b, c, steps={"2": 6, "3": 12}))
    # A session that is ended may interrupt any number of runs, each once.
    cut_b, cut_c = ("4", "b", "interrupted", "ended by SIGINT"), ("5", "c", "interrupted", "ended by SIGINT")
    assert any("expected ['ok']" in text for text in problems(a, cut_b, b, c, steps=full))
    assert problems(a, cut_b, b, cut_c, c, steps=full, ended=1) == []
    assert any("expected ['ok']" in text for text in problems(a, b, cut_b, c, steps=full, ended=1))
    twice = ("6", "b", "interrupted", "ended by SIGINT")
    assert any("expected ['ok']" in text for text in problems(a, cut_b, twice, b, c, steps=full, ended=1))
    # A server that is lost may cost any run an attempt, which is marked.
    faults["d"] = Fault("kill_server", 0, "build")
    lost_b, lost_d = (("7", "b", "crashed", "x", chaos.LOST), ("8", "d", "crashed", "x", chaos.LOST))
    d, more = ("9", "d", "ok", ""), full | {"9": 6}
    assert problems(a, lost_b, b, c, lost_d, d, steps=more) == []
    assert problems(a, lost_b, cut_b, b, c, lost_d, d, steps=more, ended=1) == []
    again = ("10", "b", "crashed", "x", chaos.LOST)
    assert any("expected ['ok']" in text for text in problems(a, lost_b, again, b, c, lost_d, d, steps=more))
    assert any("expected ['ok']" in text for text in problems(a, lost_b[:4], b, c, lost_d, d, steps=more))
    (tmp_path / "running.json").touch()
    assert any("left behind" in text for text in problems(a, b, c, lost_d, d, steps=more))


def test_the_reason_of_a_hang_names_nobody_else() -> None:
    fault = Fault("hang", 1, "build")
    reason = "no result after 40 s; behind the others: rank 1 in build, 39 s without progress"
    assert chaos._check_reason("a", fault, reason) == []
    assert chaos._check_reason("a", fault, f"{reason}; rank 0 in build") != []
    assert chaos._check_reason("a", fault, "no result after 40 s") != []
