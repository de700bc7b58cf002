"""Exposed communication by interval arithmetic, with answers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.worker.trace import communication_seconds, is_communication, uncovered, union

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


@settings(deadline=None)
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


def test_annotations_on_the_device_are_no_computation() -> None:
    """A collective of 10 us and its own label over the same time: all of it is exposed, 6 us beside a gemm of 4."""
    kernel = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 0, 10)
    label = event("nccl:all_reduce", 0, 10, annotation=True)
    gemm = event("sm80_xmma_gemm_f32f32", 0, 4)
    assert communication_seconds(Profiled([kernel, label])) == pytest.approx((10e-6, 10e-6))
    assert communication_seconds(Profiled([kernel, label, gemm])) == pytest.approx((10e-6, 6e-6))


def event(name: str, begin: float, end: float, *, annotation: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name="CUDA"),
        is_user_annotation=annotation,
        time_range=SimpleNamespace(start=begin, end=end),
    )


class Profiled:
    """What the profiler gives, as far as it is read."""

    def __init__(self, events: list[SimpleNamespace]) -> None:
        self._events = events

    def events(self) -> list[SimpleNamespace]:
        return self._events
