"""Copies of the model in pieces: who exchanges them rightly is ok, who leaves something out is invalid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from campaigns import TOY, command, here, rows
from test_gates import epoch, judge

from bench.results.lossgate import work_gate
from bench.run.gates import run_gate
from bench.run.node import LocalNode
from bench.worker.endstate import PROJECTIONS, moved_share, projections
from bench.worker.state import BareParameter
from strategies.places import Place, Plan
from strategies.state import sample_of, sampled_count

FILE = Path(__file__).with_name("sharded_strategies.py")
WORDS = {
    "fool_frozen_piece": "changed no value that rank 1 holds",
    "fool_stale_pieces": "the ranks do not compute with the same copy",
    "fool_local_gradient": "not all ranks' gradients are in it",
    "fool_swapped_pieces": "from the baseline's, which changed by",
}
HONEST = ("honest_fsdp", "honest_shards", "honest_dropout")


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, node: LocalNode) -> Path:
    out = tmp_path_factory.mktemp("spread") / "out"
    options = [*TOY, "--steps", "6", "--warmup-steps", "2", "--timeout", "60", "--quiet", "--out", str(out)]
    names = ",".join(["single", *HONEST, *WORDS])
    done = here(
        command("smoke", "--strategies", names, "--devices", "1,2", *options, "--strategy-file", str(FILE)), node
    )
    assert done.returncode == 1, done.stderr
    return out


def judged(folder: Path, name: str, devices: int) -> dict[str, str]:
    return next(row for row in rows(folder, "summary.csv") if (row["strategy"], row["devices"]) == (name, str(devices)))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_one_is_ok(folder: Path, name: str, devices: int) -> None:
    row = judged(folder, name, devices)
    assert row["status"] == "ok", row["reason"]


@pytest.mark.parametrize("name", WORDS)
def test_one_that_leaves_something_out_is_invalid_where_there_are_several_ranks(folder: Path, name: str) -> None:
    row = judged(folder, name, 2)
    assert row["status"] == "invalid"
    assert WORDS[name] in row["reason"]
    # A copy in one piece is exchanged with nobody.
    assert judged(folder, name, 1)["status"] == "ok"


def test_the_facts_stand_in_the_rows(folder: Path) -> None:
    found = {(row["strategy"], row["devices"]): row for row in rows(folder, "runs.csv")}
    spread, whole = found["honest_shards", "2"], found["single", "1"]
    for name in HONEST:
        # Random numbers, such as dropout's, are drawn with the part.
        assert float(found[name, "2"]["rotated_distance"]) < 1e-5
        assert float(found[name, "2"]["rotated_loss"]) < 1e-5
    assert (whole["rotated_distance"], whole["rotated_loss"]) == ("", "")
    ends = [[float(value) for value in row["end_state"].split()] for row in (spread, whole)]
    # Of the same steps in fp32: the parameters changed by 0.002 in all.
    assert math.dist(*ends) < 1e-5
    assert len(ends[0]) == PROJECTIONS


# -- gates ------------------------------------------------------------------------------------------------------------

FACTS: dict[str, Any] = {"update_norms": [0.5, 0.5], "moved_shares": [1.0, 1.0]}


def judge_spread(precision: str = "fp32", same_work: bool = True, **changes: Any) -> str:
    """The gate of two ranks with a piece each."""
    spread = Plan(tuple(Place(part=rank, piece=rank) for rank in range(2)))
    facts = FACTS | {"parameter_hashes": ["a", "b"], "samples": [[60, 40], [60, 40]]} | changes
    return run_gate(
        epoch(**facts), spread, expected_samples=200, test_count=50, same_work=same_work, precision=precision
    )


def test_a_rank_none_of_whose_values_moved() -> None:
    assert judge(epoch(**FACTS)) == "passed"
    assert judge(epoch(**FACTS | {"moved_shares": [0.001, None]})) == "passed"
    told = judge(epoch(**FACTS | {"moved_shares": [1.0, 0.0]}))
    assert told == "the timed steps changed no value that rank 1 holds"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotated_distance": 0.049, "rotated_loss": 0.9e-4}, "passed"),
        ({"rotated_distance": 0.051}, "by 0.051 of the step: not all ranks' gradients are in it"),
        ({"rotated_loss": 1.1e-4}, "by 0.00011 of it, 0.0001 may be: the ranks do not compute with the same copy"),
        ({"rotated_loss": 0.009, "precision": "amp-bf16"}, "passed"),
        ({"rotated_loss": 0.011, "precision": "amp-bf16"}, "0.01 may be"),
        ({"rotated_distance": 1.0, "rotated_loss": 1.0, "same_work": False}, "passed"),
    ],
)
def test_nothing_may_depend_on_which_rank_reads_which_part(changes: dict[str, Any], words: str) -> None:
    assert words in judge_spread(**changes)


def test_the_end_is_within_five_updates_of_the_baseline_s() -> None:
    """Projections that are all 1 apart are of states about 1 apart; the baseline's update of 0.25 allows 1.25."""
    base = {"update_norm": 0.25, "end_state": "0 0 0 0"}
    assert work_gate({"update_norm": 0.25, "end_state": "1.2 1.2 -1.2 1.2"}, base) is None
    told = work_gate({"update_norm": 0.25, "end_state": "1.3 1.3 -1.3 1.3"}, base)
    assert told == "the parameters end 1.3 from the baseline's, which changed by 0.25: more than 5 times that"
    assert work_gate({"update_norm": 0.25, "end_state": ""}, base) is None
    assert work_gate({"end_state": "9 9 9 9"}, {"end_state": "0 0 0 0"}) is None


# -- what is measured -------------------------------------------------------------------------------------------------


def test_projections_estimate_distances_and_depend_on_names() -> None:
    """A change of 3 in a million values is of length 3000; eight projections tell it with an error of 1 in 4."""
    parameters = (BareParameter("a", 1_000_000, 4, True), BareParameter("b", 4, 4, True))
    generator = torch.Generator().manual_seed(0)
    before = {"a": torch.randn(1_000_000, generator=generator), "b": torch.zeros(4)}
    moved = {"a": before["a"] + 3 * torch.randn(1_000_000, generator=generator).sign(), "b": before["b"]}
    found = [projections(sample_of(state.items()), parameters) for state in (before, moved)]
    assert found[0] is not None
    assert found[1] is not None
    assert math.dist(*found) / math.sqrt(PROJECTIONS) == pytest.approx(3000, rel=0.75)
    assert found[0] == projections(sample_of(reversed(before.items())), parameters)
    other = (BareParameter("c", 1_000_000, 4, True), parameters[1])
    assert projections(sample_of([("c", before["a"]), ("b", before["b"])]), other) != found[0]


def test_one_value_is_projected_on_signs() -> None:
    (found,) = [projections({"w": torch.tensor([2.5], dtype=torch.float64)}, (BareParameter("w", 1, 4, True),))]
    assert found is not None
    assert {abs(value) for value in found} == {2.5}


@pytest.mark.parametrize("sample", [None, {"w": torch.tensor([math.nan])}, {"w": torch.tensor([math.inf])}])
def test_what_is_no_number_has_no_projection(sample: Any) -> None:
    assert projections(sample, (BareParameter("w", 1, 4, True),)) is None


def test_the_share_that_moved_is_of_what_is_trained() -> None:
    parameters = (BareParameter("w", 4, 4, True), BareParameter("frozen", 4, 4, False))
    start = {"w": torch.arange(4.0), "frozen": torch.zeros(4)}
    end = {"w": torch.tensor([0.0, 1.0, 2.0, 4.0]), "frozen": torch.zeros(4)}
    assert moved_share(start, end, parameters) == 0.25
    assert moved_share({"frozen": torch.zeros(4)}, {"frozen": torch.zeros(4)}, parameters) is None


@pytest.mark.parametrize("count", [0, 1, 4096, 8191, 8192, 1_000_000])
def test_the_length_of_a_sample_is_known_beforehand(count: int) -> None:
    assert sampled_count(count) == len(sample_of([("w", torch.zeros(count))])["w"])
