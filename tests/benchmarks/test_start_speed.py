"""Whether a forked rank trains as fast as one of a fresh interpreter: both live side by side and take turns."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns import save_arrays, spec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.results.statistics import paired_log_ratio
from bench.run.launch import launch
from bench.run.node import LocalNode, can_fork
from strategies.places import one_process

PAIRS = 60
BATCH, STEPS_A_TURN, ROUNDS = 16, 4, 5
LIMIT = 0.01
HOWS = ("warm", "cold")

PLUGIN = """
import json, os, time
from pathlib import Path
from strategies.single import Single

FOLDER = Path({folder!r})
STEPS = {steps}


class Turning(Single):
    '''Waits before every STEPS steps until it is its turn, and keeps the seconds of each turn.'''

    def build(self, *arguments):
        super().build(*arguments)
        self.count, self.turns, self.begun = 0, [], None
        self.asks = os.open(FOLDER / (self.how + "-asks"), os.O_WRONLY)
        self.goes = os.open(FOLDER / (self.how + "-goes"), os.O_RDONLY)

    def end_turn(self):
        if self.begun is not None:
            self.turns.append(time.perf_counter() - self.begun)
            self.begun = None

    def forward_backward(self, micro):
        if self.count % STEPS == 0:
            self.end_turn()
            os.write(self.asks, b"t")
            os.read(self.goes, 1)
            self.begun = time.perf_counter()
        self.count += 1
        return super().forward_backward(micro)

    def apply(self):
        super().apply()
        if self.count % STEPS == 0:
            self.end_turn()

    def close(self):
        Path(FOLDER / (self.how + ".json")).write_text(json.dumps(self.turns))
        os.write(self.asks, b"e")


STRATEGIES = {{
    "warm": type("Warm", (Turning,), {{"how": "warm"}}),
    "cold": type("Cold", (Turning,), {{"how": "cold"}}),
}}
"""


def take_turns(folder: Path, data: dict[str, Path], node: LocalNode, dice: random.Random) -> dict[str, float]:
    """Seconds of one forked and one fresh rank over the same steps, their turns in random order on the same core."""
    folder.mkdir()
    (folder / "turning.py").write_text(PLUGIN.format(folder=str(folder), steps=STEPS_A_TURN))
    for how in HOWS:
        os.mkfifo(folder / f"{how}-asks")
        os.mkfifo(folder / f"{how}-goes")
    core = dice.choice(sorted(os.sched_getaffinity(0)))
    reasons: list[str] = []

    def one(how: str, own: LocalNode) -> None:
        made: Any = spec(
            folder / how,
            data,
            plan=one_process(),
            strategy=how,
            strategy_files=(str(folder / "turning.py"),),
            start=how,
            backend="",
            workload="resnet50-cifar10",
            batch_global=BATCH,
            warmup_steps=STEPS_A_TURN,
            steps=STEPS_A_TURN * ROUNDS,
            synthetic=True,
            cores=((core,),),
        )
        reasons.append(launch(made, node=own).reason)

    with LocalNode() as other:
        nodes = {"warm": node, "cold": other}
        threads = [threading.Thread(target=one, args=(how, nodes[how])) for how in dice.sample(HOWS, 2)]
        for thread in threads:
            thread.start()
        asks = {how: os.open(folder / f"{how}-asks", os.O_RDONLY) for how in HOWS}
        goes = {how: os.open(folder / f"{how}-goes", os.O_WRONLY) for how in HOWS}
        for how in HOWS:
            assert os.read(asks[how], 1) == b"t"
        for _ in range(1 + ROUNDS):
            for how in dice.sample(HOWS, 2):
                os.write(goes[how], b"g")
                assert os.read(asks[how], 1) in (b"t", b"e")
        for thread in threads:
            thread.join()
        for opened in (*asks.values(), *goes.values()):
            os.close(opened)
    assert reasons == ["", ""]
    # The first turn is the warm-up's.
    return {how: sum(json.loads((folder / f"{how}.json").read_text())[1:]) for how in HOWS}


@pytest.mark.skipif(not can_fork(), reason="ranks are forked on Linux alone")
@pytest.mark.benchmark(group="start-up")
@pytest.mark.timeout(3000)
def test_a_forked_rank_is_as_fast_as_a_fresh_one(
    benchmark: BenchmarkFixture, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """ResNet-50 on one thread. Each pair has a server of its own, since a server's memory layout is its ranks'."""
    data = save_arrays(tmp_path / "data", workload="resnet50-cifar10", train=BATCH * STEPS_A_TURN * ROUNDS)
    dice = random.Random(0)
    seconds: dict[str, list[float]] = {how: [] for how in HOWS}
    with LocalNode() as node:
        for pair in range(PAIRS):
            node.new_block()
            found = take_turns(tmp_path / f"pair{pair}", data, node, dice)
            for how in HOWS:
                seconds[how].append(found[how])
    # Two one-sided tests at 5 % each, which is this interval inside the limits (Schuirmann, "A comparison of the two
    # one-sided tests procedure and the power approach", 1987).
    speed = paired_log_ratio(seconds["cold"], seconds["warm"], confidence=0.9)
    benchmark.extra_info |= {"seconds": seconds}
    benchmark.pedantic(lambda: None, rounds=1)
    assert speed.low is not None
    assert speed.high is not None
    tell(f"speed, forked / fresh: {speed.ratio:.4f} [{speed.low:.4f}, {speed.high:.4f}] at 90 %, n = {speed.n}")
    assert speed.low > 1 - LIMIT
    assert speed.high < 1 + LIMIT
