"""Communication that compute does not hide, read from the profiler's trace.

Exposed is the time in which a collective runs and no computation does: the length of the union of the collectives'
intervals less its overlap with the union of the computations'. On CUDA both are kernels; on CPU collectives are what
gloo records, and computations are torch's operators on any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.profiler import profile

Span = tuple[float, float]

_MICROSECONDS = 1e-6


def union(intervals: Iterable[Span]) -> list[Span]:
    """The same points as disjoint intervals in ascending order; empty ones fall away."""
    merged: list[Span] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def uncovered(intervals: Iterable[Span], cover: Iterable[Span]) -> float:
    """Length of the union of `intervals` that the union of `cover` leaves bare, in the intervals' unit."""
    covers = union(cover)
    bare = 0.0
    for begin, end in union(intervals):
        bare += end - begin
        bare -= sum(max(0.0, min(end, high) - max(begin, low)) for low, high in covers if low < end and high > begin)
    return bare


def is_communication(name: str) -> bool:
    """Whether an event of the profiler is a collective: `gloo:all_reduce`, `ncclDevKernel_AllReduce_...`."""
    return name.startswith("gloo:") or (name.startswith("nccl") and "Kernel" in name)


def communication_seconds(profiled: profile) -> tuple[float, float]:
    """All communication in everything that was profiled, and the exposed part of it, in seconds."""
    events: list[Any] = list(profiled.events() or [])
    # Annotations are projected on the device's timeline too: `nccl:all_reduce` would hide the kernel that it names.
    on_device = [event for event in events if event.device_type.name == "CUDA" and not _is_annotation(event)]
    seen = on_device or events
    communication = [_span(event) for event in seen if is_communication(event.name)]
    compute = [_span(event) for event in seen if _computes(event.name, on_device=bool(on_device))]
    return uncovered(communication, ()) * _MICROSECONDS, uncovered(communication, compute) * _MICROSECONDS


def _computes(name: str, *, on_device: bool) -> bool:
    return not is_communication(name) if on_device else name.startswith("aten::")


def _is_annotation(event: Any) -> bool:
    return bool(getattr(event, "is_user_annotation", False))


def _span(event: Any) -> Span:
    return event.time_range.start, event.time_range.end
