"""Logs without end: bounded while a rank writes, the beginning and the end kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from campaigns import save_arrays, spec

from bench.run.launch import launch
from bench.run.logs import HEAD_BYTES, MOST_BYTES, TAIL_BYTES, cut, give_back_middle
from bench.run.node import LocalNode
from strategies.places import one_process


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank0.stderr.log"
    path.write_bytes(b"x" * MOST_BYTES)
    give_back_middle(path)
    cut(path)
    assert path.read_bytes() == b"x" * MOST_BYTES
    cut(tmp_path / "none")
    give_back_middle(tmp_path / "none")


def test_a_long_log_keeps_its_ends_and_all_that_is_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "rank0.stderr.log"
    head, tail = os.urandom(HEAD_BYTES), os.urandom(TAIL_BYTES)
    with path.open("wb", buffering=0) as rank:
        rank.write(head + b"m" * MOST_BYTES)
        give_back_middle(path)
        if sys.platform.startswith("linux"):
            assert path.stat().st_blocks * 512 <= HEAD_BYTES + TAIL_BYTES + (1 << 17)
        # Who writes it goes on where it was.
        rank.write(b"n" * MOST_BYTES + tail)
        give_back_middle(path)
    assert path.stat().st_size == len(head) + 2 * MOST_BYTES + len(tail)
    cut(path)
    found = path.read_bytes()
    assert found == head + b"\n[... %d bytes were cut here ...]\n" % (2 * MOST_BYTES) + tail
    cut(path)
    assert path.read_bytes() == found


TALKING = """
import os, sys
from strategies.single import Single

class Talking(Single):
    def apply(self):
        super().apply()
        sys.stderr.write("the beginning\\n")
        for _ in range(8):
            sys.stderr.write("x" * (1 << 20))
        sys.stderr.write("\\nthe end\\n")

STRATEGIES = {"talking": Talking}
"""


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_a_rank_that_fills_its_log(tmp_path: Path, node: LocalNode, how: str) -> None:
    """32 MB in four steps: its row is as any other's, and its log is small as soon as it has ended."""
    (tmp_path / "s.py").write_text(TALKING)
    made = spec(
        tmp_path / "run", save_arrays(tmp_path / "data"), plan=one_process(), backend="", strategy="talking",
        strategy_files=(str(tmp_path / "s.py"),), start=how,
    )  # fmt: skip
    outcome = launch(made, node=node)
    assert outcome.status == "ok", outcome.reason
    log = (tmp_path / "run" / "rank0.stderr.log").read_bytes()
    assert log.startswith(b"the beginning\n")
    assert log.endswith(b"\nthe end\n")
    assert b" bytes were cut here ...]" in log
    assert len(log) <= MOST_BYTES
    assert len(log) > HEAD_BYTES
