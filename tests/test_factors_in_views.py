"""A factor that is one entry more in `bench.factors` reaches every view, with no other edit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("made_up_factor.py")
CELLS = ("single@1", "ddp@1", "ddp@2")


@pytest.mark.parametrize("matching", ["same", "prefer"])
def test_a_made_up_factor_reaches_every_view(tmp_path: Path, matching: str) -> None:
    """Each cell is paired with the baseline of its own link: 10 s / 5 s over `auto`, 10 s / 4 s over `ring`."""
    command = [sys.executable, str(PROGRAM), matching, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all("interconnect" in columns for columns in found["columns"])
    assert found["speedups"]["ddp@2 auto"] == pytest.approx(2.0)
    assert found["speedups"]["ddp@2 ring"] == pytest.approx(2.5)
    assert found["series"] == ["single", "single interconnect ring", "ddp", "ddp interconnect ring"]
    assert {"ddp", "ddp interconnect ring"} <= set(found["lines"])
    assert "| ddp interconnect ring | 2 |" in found["report"]
    header = next(line for line in found["table"].splitlines() if line.startswith("┃"))
    assert "interconnect" in [cell.strip() for cell in header.strip("┃").split("┃")]
    assert [line.split("│")[3].strip() for line in found["table"].splitlines() if "│ ddp " in line] == [
        "auto",
        "ring",
    ] * 2
    assert found["verdicts"] == {
        **{f"{cell} auto": "SAME" for cell in CELLS},
        **{f"{cell} ring": "SLOWER" for cell in CELLS},
    }
    rings = [line for line in found["verdicts_text"].splitlines() if line.startswith("SLOWER")]
    assert len(rings) == len(CELLS)
    assert all("interconnect ring" in line for line in rings)
    assert {"ddp[2-auto]", "ddp[2-ring]"} <= set(found["benchmarks"])
    assert "| interconnect |" in found["markdown"]
    assert {"ddp-2-auto", "ddp-2-ring"} <= set(found["trackers"])
    assert "use ddp on 2 devices (interconnect ring)" in found["answer"]
