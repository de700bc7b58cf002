"""The chaos run at a small size: `tests/chaos.py` says what it does and checks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chaos
import pytest
from fault_strategies import PHASES, Fault


@pytest.mark.timeout(420)
def test_every_kind_of_fault_keeps_its_row() -> None:
    script = Path(chaos.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--runs", "10", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["wrong"] == 0
    assert sum(counts["kinds"].values()) == counts["runs"] == 10
    assert set(counts["kinds"]) == set(chaos.WEIGHTS)
    # One campaign, and one more for each time that it was ended from within.
    ended = counts["kinds"]["interrupt_parent"] + counts["kinds"]["kill_parent"]
    assert sum(counts["exit_codes"].values()) == 1 + ended
    assert sum(counts["statuses"].values()) == 10 + counts["kinds"]["interrupt_parent"]


def test_faults_are_seeded_and_cover_ranks_and_phases(tmp_path: Path) -> None:
    faults = chaos.draw_faults(200, seed=0, folder=tmp_path)
    assert faults == chaos.draw_faults(200, seed=0, folder=tmp_path)
    assert faults != chaos.draw_faults(200, seed=1, folder=tmp_path)
    seen = Counter((fault.kind, fault.rank) for fault in faults.values())
    assert len(faults) == 200
    assert {kind for kind, _ in seen} == set(chaos.WEIGHTS)
    assert {(fault.rank, fault.phase) for fault in faults.values()} == {(r, p) for r in (0, 1) for p in PHASES}


def test_the_check_finds_lost_doubled_and_wrong_rows(tmp_path: Path) -> None:
    """The checks above hold only if they can fail."""
    from bench.columns import RUN_COLUMNS, STEP_COLUMNS
    from bench.csvfile import write_rows

    faults = {"a": Fault("raise", 1, "build"), "b": Fault("none"), "c": Fault("kill", 0, "close")}

    def problems(*rows: tuple[str, str, str, str], steps: dict[str, int]) -> list[str]:
        table = [dict(zip(("run_id", "strategy", "status", "reason"), row, strict=True)) for row in rows]
        write_rows(tmp_path / "runs.csv", RUN_COLUMNS, table)
        write_rows(
            tmp_path / "steps.csv", STEP_COLUMNS, [{"run_id": n} for n, count in steps.items() for _ in range(count)]
        )
        return chaos.check(tmp_path, faults)

    a, b, c = ("1", "a", "crashed", "rank 1 in build: X"), ("2", "b", "ok", ""), ("3", "c", "ok", "")
    full = {"2": 6, "3": 6}
    assert problems(a, b, c, steps=full) == []
    assert any("expected ['crashed']" in text for text in problems(b, c, steps=full))
    assert any("has 2 rows" in text for text in problems(a, a, b, c, steps=full))
    assert any("does not name the rank" in text for text in problems(("1", "a", "crashed", "rank 0"), b, c, steps=full))
    assert any("expected ['ok']" in text for text in problems(a, ("2", "b", "crashed", "x"), c, steps={"3": 6}))
    assert any("steps.csv and runs.csv differ" in text for text in problems(a, b, c, steps={"2": 6, "3": 12}))
    (tmp_path / "running.json").touch()
    assert any("left behind" in text for text in problems(a, b, c, steps=full))
