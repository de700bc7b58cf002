"""The harness's own collectives run on a group of their own: a strategy's group sees none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from campaigns import save_arrays, spec

from bench.run.launch import launch
from bench.run.node import LocalNode
from bench.worker import rank as rank_module
from bench.worker.rank import Rank
from strategies.places import one_process

NO_DATA = dict.fromkeys(("train_inputs", "train_targets", "test_inputs", "test_targets"), "")


def collectives(group: dist.ProcessGroup) -> int:
    """How many collectives a group has run: gloo numbers them."""
    return int(group._get_backend(torch.device("cpu"))._get_sequence_number_for_group())


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """The only rank of a run, in its groups."""
    made = Rank(spec(tmp_path, NO_DATA, plan=one_process()), 0, 1, (torch.device("cpu"),))
    made.start_group()
    yield made
    made.stop_group()


def test_the_count_sees_a_collective_on_the_default_group(rank: Rank) -> None:
    assert collectives(dist.group.WORLD) == 0
    dist.all_reduce(torch.zeros(1))
    assert collectives(dist.group.WORLD) == 1


def test_barrier_and_gather_are_not_on_the_default_group(rank: Rank) -> None:
    before = collectives(rank.own_group)
    rank.barrier()
    assert rank.gather({"a": 1}) == [{"a": 1}]
    assert collectives(rank.own_group) > before
    assert collectives(dist.group.WORLD) == 0


def test_groups_are_left_after_a_barrier_the_harness_s_own_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(spec(tmp_path, NO_DATA, plan=one_process()), 0, 1, (torch.device("cpu"),))
    rank.start_group()
    own, calls = rank.own_group, []
    reduce, destroy = dist.all_reduce, dist.destroy_process_group

    def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        calls.append(("all_reduce", group is own))
        reduce(tensor, group=group)

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        calls.append(("destroy", group is own))
        destroy(group)

    monkeypatch.setattr(rank_module.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(rank_module.dist, "destroy_process_group", destroy_process_group)
    rank.stop_group()
    assert calls == [("all_reduce", True), ("destroy", True), ("destroy", False)]
    assert not dist.is_initialized()
    rank.stop_group()
    assert len(calls) == 3


def test_without_a_group_a_rank_is_alone(tmp_path: Path) -> None:
    alone = Rank(spec(tmp_path, NO_DATA, plan=one_process(), backend=""), 0, 1, (torch.device("cpu"),))
    alone.start_group()
    alone.barrier()
    assert alone.gather(3) == [3]
    alone.stop_group()
    assert not dist.is_initialized()


PLUGIN = """
import torch
import torch.distributed as dist
from strategies.base import Strategy
from strategies.places import data_parallel

class Lonely(Strategy):
    '''Never talks to the other rank; says how many collectives its group has run.'''

    def plan(self, asked):
        return data_parallel(asked.devices)

    def details(self):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return {"collectives": str(backend._get_sequence_number_for_group())}

class Talks(Lonely):
    def apply(self):
        super().apply()
        dist.all_reduce(torch.zeros(1))

STRATEGIES = {"lonely": Lonely, "talks": Talks}
"""


@pytest.mark.parametrize(("strategy", "found"), [("lonely", "0"), ("talks", "5")])
def test_a_whole_run_leaves_the_default_group_to_the_strategy(
    tmp_path: Path, node: LocalNode, strategy: str, found: str
) -> None:
    """One step of warm-up and four timed ones, evaluation and a checkpoint; two ranks."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    arrays = save_arrays(tmp_path / "data", workload="cnn-cifar100")
    work = {"workload": "cnn-cifar100", "steps": 4, "whole_epoch": True, "checkpoint": str(tmp_path / "end.pt")}
    outcome = launch(
        spec(tmp_path / "run", arrays, strategy=strategy, strategy_files=(str(plugin),), **work), node=node
    )
    assert outcome.measurement is not None, outcome.reason
    assert outcome.measurement.details == {"collectives": found}
