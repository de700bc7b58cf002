"""Exposed communication by interval arithmetic, with answers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.exposed import is_communication, uncovered, union

interval = st.tuples(st.integers(0, 60), st.integers(0, 60))


def test_union_merges_what_touches_and_drops_what_is_empty() -> None:
    assert union([(5, 7), (1, 3), (3, 4), (9, 9), (6, 8)]) == [(1, 4), (5, 8)]


@pytest.mark.parametrize(
    ("communication", "compute", "expected"),
    [
        ([(0, 10)], [], 10),
        ([(0, 10)], [(0, 10)], 0),
        ([(0, 10)], [(2, 4), (3, 6)], 6),
        ([(0, 4), (2, 8)], [(7, 20)], 7),
        ([(5, 6)], [(0, 1), (8, 9)], 1),
    ],
)
def test_what_compute_does_not_cover(communication: list, compute: list, expected: float) -> None:
    assert uncovered(communication, compute) == expected


@given(st.lists(interval, max_size=6), st.lists(interval, max_size=6))
def test_it_equals_counting_unit_cells(communication: list, compute: list) -> None:
    cells = {cell for begin, end in communication for cell in range(begin, end)}
    covered = {cell for begin, end in compute for cell in range(begin, end)}
    assert uncovered(communication, compute) == len(cells - covered)


def test_collectives_are_known_by_name() -> None:
    assert is_communication("gloo:all_reduce")
    assert is_communication("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert not is_communication("aten::addmm")
    assert not is_communication("nccl:all_reduce")
