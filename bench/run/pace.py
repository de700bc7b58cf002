"""How many steps a run has and how many blocks a campaign, so that it takes about the time that it should.

Warm-up shows how long a run takes to start and how long a step is. Steps are chosen once, before the first timed step,
and hold for all blocks; blocks follow from how long they turn out to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.run.reporter import duration

FEWEST_STEPS = 4
FEWEST_BLOCKS = 3
STEP_TO_PROCESS_NOISE = 3.0
"""Spread of a single step in relation to what two equal sets of processes differ by: 0.13 to 0.045 on a busy machine
of two cores, in ratios of runs that took turns."""

OVERRUN = 1.05
"""A further block is begun where it should end within this share of the target."""

START_PHASES = ("launch_seconds", "init_seconds", "build_seconds", "warmup_seconds")
EPOCH_PHASES = ("timed_seconds", "eval_seconds")


@dataclass(frozen=True)
class Speed:
    """Of one run: seconds until its first timed step, and seconds a step."""

    start_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Pace:
    """What was chosen. `blocks` is an estimate; `message` says it to the person who waits."""

    steps: int
    blocks: int
    message: str


def choose(speeds: Sequence[Speed], *, runs: int, target: float, blocks: int, max_blocks: int) -> Pace:
    """Steps for `runs` runs a block of which these speeds are known; `blocks` is 0 where they follow too.

    For a given time the spread of a mean over blocks is least where a run has STEP_TO_PROCESS_NOISE times the root of
    (time to start / time of a step) steps (the optimal allocation of two-stage samples: Cochran, "Sampling
    Techniques", chapter 10). No run has fewer than FEWEST_STEPS and no campaign fewer than FEWEST_BLOCKS blocks: where
    they take longer than the target, the message says so.
    """
    share = runs / len(speeds)
    start = share * sum(speed.start_seconds for speed in speeds)
    step = share * sum(speed.step_seconds for speed in speeds)
    if blocks:
        steps = math.floor((target / blocks - start) / step)
    else:
        steps = round(STEP_TO_PROCESS_NOISE * math.sqrt(start / step))
        steps = max(steps, math.floor((target / max_blocks - start) / step))
        steps = min(steps, max(math.floor((target / FEWEST_BLOCKS - start) / step), FEWEST_STEPS))
    steps = max(steps, FEWEST_STEPS)
    block_seconds = start + steps * step
    count = blocks or min(max(math.floor(target / block_seconds), FEWEST_BLOCKS), max_blocks)
    total = count * block_seconds
    told = f"{steps} timed steps a run, about {count} blocks of {duration(block_seconds)}: {duration(total)}"
    if total > OVERRUN * target:
        told += f", longer than the time target of {duration(target)}, since no run has fewer than {FEWEST_STEPS} steps"
        told += "" if blocks else f" and no campaign fewer than {FEWEST_BLOCKS} blocks"
    return Pace(steps, count, told)


def seconds_of(rows: Iterable[Mapping[str, Any]]) -> float:
    """How long the runs of these rows took: everything is exclusive, so that it is the sum over all phases."""
    total = 0.0
    seen = set()
    for row in rows:
        first = row["run_id"] not in seen
        seen.add(row["run_id"])
        # What a run has once stands in the rows of all its epochs.
        names = (*START_PHASES, *EPOCH_PHASES) if first else EPOCH_PHASES
        total += sum(row[name] or 0.0 for name in names)
    return total
