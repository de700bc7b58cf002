"""Exact accuracy over the whole test set, after a whole epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from bench.wire import EpochMeasurement
from bench.worker.batches import Samples, evaluation_batches
from bench.worker.state import RunState
from bench.worker.timing import stopwatch

EVALUATION_BATCH = 250


def evaluate(run: RunState, measured: EpochMeasurement) -> EpochMeasurement:
    """Exact accuracy over the whole test set: every rank its part, no padding. Only for workloads that classify."""
    if not run.workload.classifies or run.spec.synthetic:
        return measured
    with stopwatch() as watch:
        run.strategy.share_buffers()
        samples = Samples.load(Path(run.spec.test_inputs), Path(run.spec.test_targets), run.rank.devices[0])
        run.strategy.model.eval()
        correct = torch.zeros((), dtype=torch.int64)
        seen = 0
        place, plan = run.rank.place, run.spec.cell.plan
        part = {"batch": EVALUATION_BATCH, "part": place.part or 0, "parts": plan.read_parts}
        for inputs, targets in evaluation_batches(samples, run.workload, **part):
            placed, wanted = run.strategy.place(inputs, targets)
            correct += (run.strategy.predict(placed).argmax(1) == wanted).sum().cpu()
            seen += len(wanted)
        run.strategy.model.train()
    ranks = run.rank.gather((int(correct), seen, watch.seconds))
    firsts = [ranks[plan.readers(part)[0]] for part in range(plan.read_parts)]
    return replace(
        measured,
        correct=sum(rank[0] for rank in firsts),
        evaluated=sum(rank[1] for rank in firsts),
        eval_seconds=max(rank[2] for rank in ranks),
    )
