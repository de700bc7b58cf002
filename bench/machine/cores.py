"""Which cores each rank of a run is bound to."""

from __future__ import annotations

from collections.abc import Sequence

from bench.machine.detect import Machine
from strategies.places import Place


def shares(machine: Machine, places: Sequence[Place], threads_per_device: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each rank, by rank; empty where ranks are not bound.

    On CPU a device is that many cores, and a rank has those of its devices, one rank's after the other's. A rank on
    GPUs has the cores that lie nearest to them. Ranks are not bound where a quota stands for a number of cores without
    saying which, or where the driver does not say what is near.
    """
    if machine.device_kind == "cuda":
        return _near_gpus(machine, places)
    needed = sum(place.devices for place in places) * threads_per_device
    if needed > len(machine.core_ids):
        return ()
    found, first = [], 0
    for place in places:
        count = place.devices * threads_per_device
        found.append(machine.core_ids[first : first + count])
        first += count
    return tuple(found)


def _near_gpus(machine: Machine, places: Sequence[Place]) -> tuple[tuple[int, ...], ...]:
    found, first = [], 0
    for place in places:
        near = {core for gpu in machine.gpus[first : first + place.devices] for core in gpu.cores}
        found.append(tuple(core for core in machine.core_ids if core in near))
        first += place.devices
    return tuple(found) if all(found) else ()
