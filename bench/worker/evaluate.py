"""Exact accuracy over the whole test set, after a whole epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.wire import EpochMeasurement
from bench.worker.batches import Samples, evaluation_batches
from bench.worker.state import RunState
from bench.worker.timing import stopwatch

EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Answers:
    """What one rank has of its part of the test set: samples read, those with an output, and those that are right."""

    read: int
    answered: int
    correct: int
    seconds: float


def evaluate(run: RunState, measured: EpochMeasurement) -> EpochMeasurement:
    """Exact accuracy over the whole test set: every part read once, no padding. Only for workloads that classify.

    Of the ranks that read a part, the first that has the outputs answers for it. Raises TypeError where none has.
    """
    if not run.workload.classifies or run.spec.synthetic:
        return measured
    with stopwatch() as watch:
        read = answered = 0
        correct = torch.zeros((), dtype=torch.int64)
        with run.strategy.evaluating():
            for inputs, targets in _batches(run):
                placed, wanted = run.strategy.place(inputs, targets)
                outputs = run.strategy.predict(placed)
                read += len(wanted)
                if outputs is not None:
                    answered += len(wanted)
                    correct += (outputs.argmax(1) == wanted).sum().cpu()
    ranks: list[Answers] = run.rank.gather(Answers(read, answered, int(correct), watch.seconds))
    plan = run.spec.cell.plan
    parts = [_first_with_outputs(part, [ranks[rank] for rank in plan.readers(part)]) for part in range(plan.read_parts)]
    return replace(
        measured,
        correct=sum(part.correct for part in parts),
        evaluated=sum(part.answered for part in parts),
        eval_seconds=max(rank.seconds for rank in ranks),
    )


def _batches(run: RunState) -> Iterable[tuple[Tensor, Tensor]]:
    """This rank's part of the test set; nothing where it reads no part."""
    part = run.rank.place.part
    if part is None:
        return ()
    samples = Samples.load(Path(run.spec.test_inputs), Path(run.spec.test_targets), run.rank.devices[0])
    parts = run.spec.cell.plan.read_parts
    return evaluation_batches(samples, run.workload, batch=EVALUATION_BATCH, part=part, parts=parts)


def _first_with_outputs(part: int, readers: list[Answers]) -> Answers:
    for answers in readers:
        if answers.answered == answers.read:
            return answers
    raise TypeError(
        f"predict() returned None on every rank that reads part {part} of the test set; one must return the outputs"
    )
