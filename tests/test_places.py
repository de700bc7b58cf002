"""Plans by rank: what follows from the places of each kind of strategy, worked out by hand, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strategies import Registry
from strategies.places import SERVE, Asked, Place, Plan, Unsupported, data_parallel, one_device_only, one_process


@dataclass(frozen=True)
class Expected:
    """`readers` by part; `equals` are the groups of ranks that must hold the same parameters."""

    processes: int
    devices: int
    parts: int
    read_parts: int
    pieces: int
    replicas: int
    readers: list[list[int]]
    equals: list[list[int]]


PLANS = {
    "ddp over 4": (
        data_parallel(4),
        Expected(4, 4, 4, 4, pieces=1, replicas=4, readers=[[0], [1], [2], [3]], equals=[[0, 1, 2, 3]]),
    ),
    "fsdp over 4": (
        Plan(tuple(Place(part=rank, piece=rank) for rank in range(4))),
        Expected(4, 4, 4, 4, pieces=4, replicas=1, readers=[[0], [1], [2], [3]], equals=[[0], [1], [2], [3]]),
    ),
    "hsdp over 6, a copy over 3": (
        Plan(tuple(Place(part=rank, piece=rank % 3) for rank in range(6))),
        Expected(
            6, 6, 6, 6, pieces=3, replicas=2, readers=[[0], [1], [2], [3], [4], [5]], equals=[[0, 3], [1, 4], [2, 5]]
        ),
    ),
    "tensor parallel of degree 2 over 4": (
        Plan(tuple(Place(part=rank // 2, piece=rank % 2) for rank in range(4))),
        Expected(4, 4, 2, 2, pieces=2, replicas=2, readers=[[0, 1], [2, 3]], equals=[[0, 2], [1, 3]]),
    ),
    "pipelines of 3 stages over 6": (
        Plan(tuple(Place(part=rank // 3, piece=rank % 3) for rank in range(6))),
        Expected(6, 6, 2, 2, pieces=3, replicas=2, readers=[[0, 1, 2], [3, 4, 5]], equals=[[0, 3], [1, 4], [2, 5]]),
    ),
    "one pipeline of 2 stages": (
        Plan((Place(part=0, piece=0), Place(part=0, piece=1))),
        Expected(2, 2, 1, 1, pieces=2, replicas=1, readers=[[0, 1]], equals=[[0], [1]]),
    ),
    "parameter server and 2 that train": (
        Plan((Place(role=SERVE), Place(part=0), Place(part=1))),
        Expected(3, 3, 2, 2, pieces=1, replicas=2, readers=[[1], [2]], equals=[[1, 2]]),
    ),
    "dp over 4": (
        one_process(4, copies=4),
        Expected(1, 4, 4, 1, pieces=1, replicas=4, readers=[[0]], equals=[[0]]),
    ),
    "ddp_mp over 4": (
        data_parallel(2, devices=2),
        Expected(2, 4, 2, 2, pieces=1, replicas=2, readers=[[0], [1]], equals=[[0, 1]]),
    ),
    "single": (one_process(), Expected(1, 1, 1, 1, pieces=1, replicas=1, readers=[[0]], equals=[[0]])),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_follows_from_the_places(name: str) -> None:
    plan, expected = PLANS[name]
    assert expected == Expected(
        plan.processes,
        plan.devices,
        plan.parts,
        plan.read_parts,
        plan.pieces,
        plan.replicas,
        [plan.readers(part) for part in range(plan.read_parts)],
        plan.equals(),
    )


def test_a_rank_that_serves_is_the_only_one_that_does_not_train() -> None:
    assert PLANS["parameter server and 2 that train"][0].trainers == [1, 2]
    assert PLANS["tensor parallel of degree 2 over 4"][0].trainers == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((), "one Place for each rank, and at least one"),
        ((1,), "one Place for each rank"),
        ((Place(part=0, devices=0),), "at least one device and one copy"),
        ((Place(part=0, copies=0),), "at least one device and one copy"),
        ((Place(part=0), Place(part=1, role="watch")), "rank 1: role 'watch' with part 1"),
        ((Place(part=0), Place()), "rank 1: role 'train' with part None; a rank that trains reads one"),
        ((Place(part=0, role=SERVE),), "rank 0: role 'serve' with part 0"),
        ((Place(role=SERVE),), "no rank trains"),
        ((Place(part=0), Place(part=2)), r"parts \['0', '2'\] are not numbered from 0 without a gap"),
        ((Place(part=1),), r"parts \['1'\] are not numbered"),
        ((Place(part=0, piece=0), Place(part=1, piece=2)), r"pieces \['0', '2'\] are not numbered from 0"),
        (
            (Place(part=0, piece=0), Place(part=1, piece=1), Place(part=2, piece=0)),
            r"the pieces of the model are held \[2, 1\] times, not equally often",
        ),
        ((Place(part=0, piece=0, copies=2), Place(part=1, piece=1)), r"held \[2, 1\] times"),
    ],
)
def test_a_plan_that_cannot_be_started_is_refused(places: tuple[Place, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan(places)


@pytest.mark.parametrize(
    ("name", "asked", "plan"),
    [
        ("single", Asked(1, "cpu"), "single"),
        ("single_tuned", Asked(1, "cuda"), "single"),
        ("dp", Asked(4, "cuda"), "dp over 4"),
        *((name, Asked(4, "cpu"), "ddp over 4") for name in ("ddp", "ddp_amp", "ddp_syncbn", "ddp_tuned")),
        ("ddp_mp", Asked(4, "cpu"), "ddp_mp over 4"),
    ],
)
def test_the_built_ins_plan_as_the_table_says(name: str, asked: Asked, plan: str) -> None:
    assert Registry.collect().load(name)().plan(asked) == PLANS[plan][0]


def test_one_device_is_not_spread() -> None:
    with pytest.raises(Unsupported, match="single uses one device; 2 were asked for"):
        one_device_only(Asked(2, "cpu"), "single")
