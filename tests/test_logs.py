"""Logs without end: bounded while a rank writes, the beginning and the end kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from campaigns import save_arrays, spec

from bench.run import logs
from bench.run.launch import launch
from bench.run.logs import HEAD_BYTES, MOST_BYTES, TAIL_BYTES, bound
from bench.run.node import LocalNode
from strategies.places import one_process


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank0.stderr.log"
    path.write_bytes(b"x" * MOST_BYTES)
    assert bound(path) == 0
    assert path.stat().st_size == MOST_BYTES
    assert bound(tmp_path / "none") == 0


def test_a_long_log_keeps_its_ends_however_often_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank0.stderr.log"
    head, tail = os.urandom(HEAD_BYTES), os.urandom(TAIL_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, head + b"m" * MOST_BYTES)
    cut = bound(path)
    # Who writes it goes on, as a rank does.
    os.write(descriptor, b"n" * MOST_BYTES + tail)
    os.close(descriptor)
    cut = bound(path, cut)
    found = path.read_bytes()
    assert found.startswith(head)
    assert found.endswith(tail)
    assert len(found) < MOST_BYTES
    assert 2 * MOST_BYTES - TAIL_BYTES <= cut <= 2 * MOST_BYTES + 200
    assert found[HEAD_BYTES : HEAD_BYTES + 60].startswith(b"\n[... about %d bytes were cut here ...]\n" % cut)


TALKING = """
import os, sys
from strategies.single import Single

class Talking(Single):
    def apply(self):
        super().apply()
        sys.stderr.write("the beginning\\n")
        for _ in range(60):
            sys.stderr.write("x" * (1 << 20))
        sys.stderr.write("\\nthe end\\n")

STRATEGIES = {"talking": Talking}
"""


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_a_rank_that_fills_its_log(tmp_path: Path, node: LocalNode, how: str) -> None:
    """240 MB in four steps: its row is as any other's, and its log is small as soon as it has ended."""
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
    assert len(log) > logs.HEAD_BYTES
