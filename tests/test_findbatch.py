"""The search for the largest batch: against a memory of known size, and once with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import command, run
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.csvfile import read_rows
from bench.run.findbatch import SEARCH_COLUMNS, search
from bench.run.launch import Outcome

STRATEGY = """
import torch
from strategies.ddp import DDP


class Small(DDP):
    def forward_backward(self, micro):
        if len(micro[0][0]) > 100:
            raise torch.OutOfMemoryError("Tried to allocate more than there is")
        return super().forward_backward(micro)


STRATEGIES = {"small": Small}
"""


def memory_of(capacity: int, asked: list[int]):
    def try_batch(batch: int) -> Outcome:
        asked.append(batch)
        return Outcome("ok" if batch <= capacity else "oom", "" if batch <= capacity else "no")

    return try_batch


@settings(deadline=None)
@given(
    capacity=st.integers(0, 5000),
    start=st.integers(1, 600),
    limit=st.integers(1, 4000),
    multiple=st.sampled_from([1, 2, 8]),
)
def test_it_finds_the_largest_that_fits_within_a_sixteenth(
    capacity: int, start: int, limit: int, multiple: int
) -> None:
    asked: list[int] = []
    found = search(memory_of(capacity, asked), start=start, limit=limit, multiple=multiple)
    truth = min(capacity, limit) // multiple * multiple
    largest = found.largest or 0
    assert largest <= truth
    assert truth - largest <= max(multiple, largest // 16)
    assert all(batch % multiple == 0 and 0 < batch <= limit for batch in asked)
    assert len(asked) == len(set(asked)) <= 30


def test_another_failure_ends_the_search() -> None:
    found = search(lambda batch: Outcome("crashed", "boom"), start=8, limit=100)
    assert (found.largest, len(found.tries)) == (None, 1)
    assert "another reason" in found.bounded_by


def test_a_rank_that_the_kernel_ended_did_not_fit_and_the_search_says_so() -> None:
    def try_batch(batch: int) -> Outcome:
        return Outcome("ok") if batch <= 40 else Outcome("crashed", "rank 1 was ended by SIGKILL", -9)

    found = search(try_batch, start=8, limit=1000)
    assert 38 <= (found.largest or 0) <= 40
    assert found.bounded_by == "memory (a rank ended by SIGKILL counts as out of memory)"
    # Another signal is another reason.
    assert "another reason" in search(lambda batch: Outcome("crashed", "", -11), start=8, limit=100).bounded_by


@pytest.mark.timeout(200)
def test_the_command_reports_every_try_and_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(STRATEGY, encoding="utf-8")
    options = ["--workload", "toy", "--batch", "64", "--strategies", "small", "--devices", "1", "--find-batch"]
    done = run(command("smoke", *options, "--strategy-file", "small.py", "--out", "out"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "out" / "batch_search.csv", SEARCH_COLUMNS)
    (largest,) = [row for row in rows if row["largest"]]
    assert 94 <= largest["batch_per_part"] <= 100
    assert {row["status"] for row in rows} == {"ok", "oom"}
    assert "more than there is" in next(row["reason"] for row in rows if row["status"] == "oom")
    assert not (tmp_path / "out" / "runs.csv").exists()
    assert f"small@1 fp32: {largest['batch_per_part']} samples per part" in done.stdout
