"""From what a run gave to rows of runs.csv and steps.csv."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.data import PreparedData
from bench.factors import CELL_FACTORS, INVALID
from bench.machine.detect import Machine
from bench.machine.gpus import known_peak_flops
from bench.plan.planned import PlannedCell
from bench.results.columns import SCHEMA_VERSION
from bench.run import gates
from bench.run.launch import Outcome
from bench.wire import EpochMeasurement, Measurement
from strategies.places import Plan


@dataclass(frozen=True)
class CampaignFacts:
    """What all rows of a campaign share."""

    campaign_id: str
    environment_id: str
    git_commit: str
    git_dirty: bool | None
    machine: Machine
    backend: str
    threads_per_device: int
    workload: str
    data: PreparedData
    seed: int
    warmup_steps: int
    steps: int | None

    def timed_steps(self, cell: PlannedCell) -> int:
        """Steps of an epoch that this cell runs: as asked for, or every full batch; there are no more."""
        full = self.data.train_count // cell["batch_global"]
        return min(self.steps, full) if self.steps else full

    def whole_epoch(self, cell: PlannedCell) -> bool:
        return self.timed_steps(cell) == self.data.train_count // cell["batch_global"]


@dataclass(frozen=True)
class RunFacts:
    """What the rows of one run share. `cohort` is None for a cell that has no run."""

    run_id: str
    block: int
    order_in_block: int
    attempt: int
    utc_start: str
    cohort: int | None = None
    cohort_reason: str = ""
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    flops_per_sample: float | None = None


def step_maxima(step_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Each step's time on its slowest rank. step_seconds: by rank, then by step, in seconds."""
    return [max(times) for times in zip(*step_seconds, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed, linearly between neighbours (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def run_rows(facts: CampaignFacts, cell: PlannedCell, run: RunFacts, outcome: Outcome) -> list[dict[str, Any]]:
    """The rows of one run: one an epoch where it was measured, one with its reason where it was not."""
    common = _common(facts, cell, run) | {
        "status": outcome.status,
        "reason": outcome.reason,
        "exit_code": outcome.exit_code,
        "start": outcome.start,
        "cores": ";".join(",".join(map(str, own)) for own in outcome.cores),
        **run.telemetry,
    }
    measurement = outcome.measurement
    warnings = (*cell.warnings, *facts.data.warnings, *outcome.warnings)
    if measurement is None:
        return [common | {"warnings": " | ".join(warnings)}]
    leak = gates.leak(measurement.epochs[0], cell["precision"]) if measurement.epochs else ""
    common |= {"warnings": " | ".join((*warnings, *measurement.warnings, *([leak] if leak else [])))}
    common |= _of_the_run(measurement)
    return [common | _of_the_epoch(facts, cell, run, epoch) for epoch in measurement.epochs]


def _common(facts: CampaignFacts, cell: PlannedCell, run: RunFacts) -> dict[str, Any]:
    plan = cell.plan
    return {
        "schema_version": SCHEMA_VERSION,
        "campaign_id": facts.campaign_id,
        "run_id": run.run_id,
        "block": run.block,
        "order_in_block": run.order_in_block,
        "cohort": run.cohort,
        "cohort_reason": run.cohort_reason,
        "attempt": run.attempt,
        "utc_start": run.utc_start,
        "environment_id": facts.environment_id,
        "git_commit": facts.git_commit,
        "git_dirty": facts.git_dirty,
        **{factor.name: cell[factor.name] for factor in CELL_FACTORS},
        "same_work": cell.same_work,
        "plain_twin": cell.plain_twin,
        "tuned_twin": cell.tuned_twin,
        "processes": plan.processes if plan else None,
        "replicas": plan.replicas if plan else None,
        "device_kind": facts.machine.device_kind,
        "device_name": facts.machine.device_name,
        "backend": facts.backend if cell.uses_process_group else "",
        "threads_per_device": facts.threads_per_device,
        "workload": facts.workload,
        "dataset": facts.data.name,
        "dataset_fingerprint": facts.data.fingerprint,
        "batch_per_part": cell.batch_per_part,
        "seed": facts.seed,
        "epoch": 1,
        "epoch_samples": facts.data.train_count,
    }


def _of_the_run(measurement: Measurement) -> dict[str, Any]:
    memory = measurement.peak_memory_bytes
    return {
        "details": ";".join(f"{name}={value}" for name, value in measurement.details.items()),
        "launch_seconds": measurement.launch_seconds,
        "init_seconds": measurement.init_seconds,
        "build_seconds": measurement.build_seconds,
        "compile_seconds": measurement.compile_seconds,
        "warmup_seconds": measurement.warmup_seconds,
        "peak_memory_bytes_max": max(memory, default=None),
        "peak_memory_bytes_min": min(memory, default=None),
        "host_peak_rss_bytes": measurement.host_peak_rss_bytes,
        "host_memory_bytes": measurement.host_memory_bytes,
        "gradient_bytes": measurement.gradient_bytes,
        "probe_flops_per_second": measurement.probe_flops_per_second,
        "probe_bytes_per_second": measurement.probe_bytes_per_second,
    }


def _of_the_epoch(facts: CampaignFacts, cell: PlannedCell, run: RunFacts, epoch: EpochMeasurement) -> dict[str, Any]:
    plan = cell.spec.plan
    whole = facts.whole_epoch(cell)
    expected = facts.timed_steps(cell) * cell["batch_global"]
    gate = gates.run_gate(
        epoch,
        plan,
        expected_samples=expected,
        test_count=facts.data.test_count,
        same_work=cell.same_work,
        precision=cell["precision"],
    )
    invalid = {} if gate == gates.PASSED else {"status": INVALID, "reason": gate}
    samples = gates.samples(epoch, plan)
    maxima = step_maxima([epoch.step_seconds[rank] for rank in plan.trainers])
    mean = statistics.fmean(maxima)
    # Of all ranks together: the samples of all over the time of the slowest, in each turn.
    rate = samples / epoch.run_seconds
    return {
        "epoch": epoch.epoch,
        "turns": len(epoch.turn_seconds[0]) if epoch.turn_seconds else 1,
        "warmup_steps": facts.warmup_steps,
        "timed_steps": len(maxima),
        "timed_samples": samples,
        "dropped_samples": facts.data.train_count % cell["batch_global"] if whole else None,
        "epoch_measured": whole,
        "timed_seconds": epoch.run_seconds,
        "timed_seconds_min_rank": min(epoch.timed_seconds),
        "epoch_seconds": facts.data.train_count / rate,
        "samples_per_second": rate,
        "step_seconds_median": statistics.median(maxima),
        "step_seconds_p95": percentile(maxima, 0.95),
        "step_seconds_cov": statistics.stdev(maxima) / mean if len(maxima) > 1 else None,
        "data_wait_seconds": max(sum(waits) for waits in epoch.data_wait),
        "forward_backward_seconds": max(epoch.forward_backward) if epoch.forward_backward else None,
        "optimizer_seconds": max(epoch.optimizer) if epoch.optimizer else None,
        "exposed_comm_seconds": epoch.exposed_comm,
        "exposed_comm_trace_seconds": epoch.exposed_comm_trace,
        "comm_trace_seconds": epoch.comm_trace,
        "eval_seconds": epoch.eval_seconds,
        "loss_first": epoch.loss_first,
        "loss_last": epoch.loss_last,
        "test_accuracy": epoch.correct / epoch.evaluated if epoch.correct is not None and epoch.evaluated else None,
        "skipped_steps": epoch.skipped_steps,
        **_work_done(epoch, plan),
        "parameter_hash": epoch.parameter_hashes[plan.trainers[0]],
        "gate": gate,
        **_arithmetic(facts, cell, run.flops_per_sample, rate),
        **invalid,
    }


def _work_done(epoch: EpochMeasurement, plan: Plan) -> dict[str, Any]:
    """What the loss gate of a later run compares: how much was trained, and how far it came."""
    names = epoch.gradient_names
    steps = [epoch.optimizer_steps[rank] for rank in plan.trainers] if epoch.optimizer_steps else None
    return {
        "optimizer_steps": min(steps) if steps else None,
        "update_norm": epoch.update_norms[plan.trainers[0]] if epoch.update_norms else None,
        "changed_tensors": epoch.changed_tensors[plan.trainers[0]] if epoch.changed_tensors else None,
        "trainable_values": epoch.trainable_values[plan.trainers[0]] if epoch.trainable_values else None,
        "gradient_tensors": None if names is None else len(names),
        "moved_share": min((share for share in epoch.moved_shares or [] if share is not None), default=None),
        "end_state": " ".join(f"{value:.15g}" for value in epoch.end_state or []),
        "rotated_distance": epoch.rotated_distance,
        "rotated_loss": epoch.rotated_loss,
        "gradient_names_hash": "" if names is None else names_hash(names),
    }


def names_hash(names: Sequence[str]) -> str:
    """sha256 over the sorted names, first 16 hex digits."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def _arithmetic(facts: CampaignFacts, cell: PlannedCell, flops: float | None, rate: float) -> dict[str, Any]:
    achieved = flops * rate if flops else None
    peak = known_peak_flops(facts.machine.device_name, cell["precision"])
    return {
        "flops_per_sample": flops,
        "achieved_flops_per_second": achieved,
        "peak_flops_fraction": achieved / (peak * cell["devices"]) if achieved and peak else None,
    }


def step_rows(run_id: str, measurement: Measurement | None) -> list[dict[str, Any]]:
    """The rows of steps.csv: every timed step of every rank."""
    if measurement is None:
        return []
    return [
        {
            "run_id": run_id,
            "rank": rank,
            "epoch": epoch.epoch,
            "step": step,
            "turn": turn,
            "seconds": seconds,
            "data_wait_seconds": wait,
        }
        for epoch in measurement.epochs
        for rank, (steps, waits) in enumerate(zip(epoch.step_seconds, epoch.data_wait, strict=True))
        for step, (turn, seconds, wait) in enumerate(zip(_turns(epoch, len(steps)), steps, waits, strict=True))
    ]


def _turns(epoch: EpochMeasurement, steps: int) -> list[int]:
    """In which turn each of the steps was."""
    dealt = epoch.turn_steps or [steps]
    return [turn for turn, count in enumerate(dealt) for _ in range(count)][:steps]
