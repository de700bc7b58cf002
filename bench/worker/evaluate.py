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
        part = {"batch": EVALUATION_BATCH, "shard": run.rank.shard, "shards": run.spec.shards}
        for inputs, targets in evaluation_batches(samples, run.workload, **part):
            placed, wanted = run.strategy.place(inputs, targets)
            correct += (run.strategy.predict(placed).argmax(1) == wanted).sum().cpu()
            seen += len(wanted)
        run.strategy.model.train()
    ranks = run.rank.gather((int(correct), seen, watch.seconds))
    share = run.spec.ranks_per_replica
    return replace(
        measured,
        correct=sum(rank[0] for rank in ranks) // share,
        evaluated=sum(rank[1] for rank in ranks) // share,
        eval_seconds=max(rank[2] for rank in ranks),
    )
