"""How a strategy spreads over devices: one place a rank. Without torch, so that both sides of a run can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TRAIN, SERVE = "train", "serve"
"""Roles of a rank: it trains on a part of the batch, or it serves those that do, such as a parameter server."""


class Unsupported(Exception):
    """This strategy has no meaning here; the message is the reason that stands in the table."""


@dataclass(frozen=True)
class Asked:
    """What a strategy is asked to spread over: so many devices of type `cpu` or `cuda`, on so many nodes.

    `options` holds every option of the strategy, at its default where the matrix does not say.
    """

    devices: int
    device_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True)
class Place:
    """One rank's place.

    devices: how many are the rank's own.
    part: which part of the global batch it reads, from 0; None for a rank that trains on none. Ranks that hold pieces
        of one copy for a part all read it.
    piece: which piece of a copy of the model it holds, from 0; ranks of the same piece must hold equal parameters.
    role: `train` or `serve`.
    copies: full copies (or pieces) that its devices hold, each for an equal share of what the rank reads.
    """

    devices: int = 1
    part: int | None = None
    piece: int = 0
    role: str = TRAIN
    copies: int = 1


@dataclass(frozen=True)
class Plan:
    """The places of all ranks, by rank: everything else follows from them.

    A plan that exists can be started. Raises ValueError for one that cannot: no rank, a rank without a device, parts or
    pieces that are not numbered from 0 without a gap, pieces that are not held equally often, an unknown role.
    """

    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        if not self.places or not all(isinstance(place, Place) for place in self.places):
            raise ValueError("a plan has one Place for each rank, and at least one")
        if min(min(place.devices, place.copies) for place in self.places) < 1:
            raise ValueError("every rank has at least one device and one copy or piece of the model")
        for rank, place in enumerate(self.places):
            if place.role not in (TRAIN, SERVE) or (place.part is None) != (place.role == SERVE):
                raise ValueError(
                    f"rank {rank}: role {place.role!r} with part {place.part}; a rank that trains reads one"
                )
        trains = self._trains
        if not trains:
            raise ValueError("no rank trains")
        for what, numbers in (("parts", {p.part for p in trains}), ("pieces", {p.piece for p in trains})):
            if numbers != set(range(len(numbers))):
                raise ValueError(f"{what} {sorted(map(str, numbers))} are not numbered from 0 without a gap")
        held = {piece: sum(p.copies for p in trains if p.piece == piece) for piece in range(self.pieces)}
        if len(set(held.values())) > 1:
            raise ValueError(f"the pieces of the model are held {list(held.values())} times, not equally often")

    @property
    def _trains(self) -> list[Place]:
        return [self.places[rank] for rank in self.trainers]

    @property
    def processes(self) -> int:
        return len(self.places)

    @property
    def devices(self) -> int:
        return sum(place.devices for place in self.places)

    @property
    def pieces(self) -> int:
        """Pieces that one copy of the model is held in: 1 where each rank holds a whole one."""
        return 1 + max(place.piece for place in self._trains)

    @property
    def replicas(self) -> int:
        """Full copies of the model."""
        return sum(place.copies for place in self._trains if place.piece == 0)

    @property
    def read_parts(self) -> int:
        """Parts of the global batch that are read, each by one rank or by the ranks of one copy."""
        return 1 + max(place.part for place in self._trains if place.part is not None)

    @property
    def parts(self) -> int:
        """Equal parts that the global batch is cut into in all: what is read, cut further where a rank has copies."""
        copies = {place.part: place.copies for place in self._trains}
        return sum(copies.values())

    @property
    def trainers(self) -> list[int]:
        """The ranks that train."""
        return [rank for rank, place in enumerate(self.places) if place.role == TRAIN]

    def readers(self, part: int) -> list[int]:
        """The ranks that read a part."""
        return [rank for rank, place in enumerate(self.places) if place.part == part]

    def equals(self) -> list[list[int]]:
        """Groups of ranks that must hold the same parameters, those of a piece; a group of one has no other."""
        ranks = self.trainers
        return [[rank for rank in ranks if self.places[rank].piece == piece] for piece in range(self.pieces)]


def one_process(devices: int = 1, *, copies: int = 1) -> Plan:
    """The plan of a single rank that reads the whole batch."""
    return Plan((Place(devices=devices, part=0, copies=copies),))


def data_parallel(ranks: int, *, devices: int = 1) -> Plan:
    """The plan of ranks that hold a whole copy each, over `devices` devices, and read a part each."""
    return Plan(tuple(Place(devices=devices, part=rank) for rank in range(ranks)))


def one_device_only(asked: Asked, name: str) -> Plan:
    """The plan of a strategy that takes exactly one device. Raises Unsupported for more."""
    if asked.devices != 1:
        raise Unsupported(f"{name} uses one device; {asked.devices} were asked for")
    return one_process()
