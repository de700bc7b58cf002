"""The race over 2,000 simulated campaigns of 30 cells: the figures of docs/statistics.md.

Pure arithmetic, which needs no quiet machine; it is here because the tests hold the same with fewer campaigns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drifting import APART, IN_TURNS, Plan
from pytest_benchmark.fixture import BenchmarkFixture
from races import CELLS, TARGET, Race, races, spread_of_speedups

TRIALS = 2000


@pytest.mark.parametrize(("name", "plan"), [("in turns", IN_TURNS), ("one after another", APART)])
@pytest.mark.parametrize("spread", [True, False])
def test_the_fastest_stays_and_runs_are_saved(
    benchmark: BenchmarkFixture, tell: Callable[[str], None], name: str, plan: Plan, spread: bool
) -> None:
    truths = spread_of_speedups(np.random.default_rng(21), TRIALS) if spread else np.zeros((TRIALS, CELLS))
    found = benchmark.pedantic(lambda: list(races(truths, seed=22, plan=plan)), rounds=1)
    tell(f"{CELLS} {'spread' if spread else 'equal'} cells, runs {name}: {said(found)}")
    assert np.mean([one.best_was_out for one in found]) <= 0.05
    if spread:
        assert runs_ratio(found) <= 0.5


def runs_ratio(found: list[Race]) -> float:
    return sum(one.raced for one in found) / sum(one.equal for one in found)


def said(found: list[Race]) -> str:
    resolved = [one.blocks for one in found if one.blocks is not None]
    after = f", after {np.median(resolved):.0f} blocks (median)" if resolved else ""
    return (
        f"the fastest out in {sum(one.best_was_out for one in found)} of {len(found)}; within {TARGET:.0%} in "
        f"{len(resolved)}{after}; {np.mean([one.raced for one in found]):.0f} runs a campaign, "
        f"{np.mean([one.equal for one in found]):.0f} in equal shares, ratio {runs_ratio(found):.2f}"
    )
