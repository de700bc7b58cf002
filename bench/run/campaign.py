"""One campaign from plan to table: prepare, then blocks of runs, each a fresh set of processes and one row."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.data import PreparedData
from bench.errors import EXIT_CELL_FAILED, EXIT_INTERRUPTED, EXIT_NOTHING_MEASURED, EXIT_OK
from bench.files import write_text_atomically
from bench.machine import detect
from bench.machine.telemetry import Telemetry
from bench.plan.cells import PlannedCell, block_order
from bench.results.csvfile import write_rows
from bench.results.flags import Flag
from bench.run.findbatch import SEARCH_COLUMNS, Search, search, search_rows
from bench.run.interrupts import Interrupted, interruptible, undisturbed
from bench.run.job import Job
from bench.run.launch import Outcome, launch
from bench.run.repeats import Repeats, marked, texts
from bench.run.reporter import Reporter
from bench.run.resume import Done
from bench.run.rows import RunFacts, run_rows, step_rows
from bench.run.stopping import Decision, decide
from bench.run.store import Store
from bench.wire import RunSpec

Judge = Callable[[Sequence[Mapping[str, Any]]], list[Flag]]

FAILED = ("invalid", "oom", "timeout", "crashed")


class Runner:
    """Runs a job into a store. `run` returns the exit code; the rows are in the files whatever happens."""

    def __init__(self, job: Job, store: Store, reporter: Reporter) -> None:
        self.job = job
        self.store = store
        self.reporter = reporter
        self.done = Done(store.runs)
        self._flops = next((row["flops_per_sample"] for row in self.done.rows if row["flops_per_sample"]), None)
        self._losses: dict[tuple[Any, ...], tuple[float | None, float | None]] = {}
        self._begun = time.monotonic()
        self._left = 0
        self._repeats = Repeats(job.matrix.repeat_disturbed, reporter.note)

    def run(self) -> int:
        """Measure what is missing, block by block, until the stop rule is met or the campaign is ended from outside."""
        with interruptible():
            try:
                self._note_unmeasured()
                decision = self._blocks()
            except Interrupted as signal:
                decision = Decision(stop=True, reason=f"interrupted by {signal.name}")
        stop = {"stop_reason": decision.reason}
        write_text_atomically(self.store.folder / "stop.json", json.dumps(stop) + "\n")
        if decision.reason.startswith("interrupted"):
            return EXIT_INTERRUPTED
        return self._exit_code()

    def _exit_code(self) -> int:
        statuses = [row["status"] for row in Done(self.store.runs).rows]
        if any(status in FAILED for status in statuses):
            return EXIT_CELL_FAILED
        return EXIT_OK if "ok" in statuses else EXIT_NOTHING_MEASURED

    def _note_unmeasured(self) -> None:
        """Cells that have no run: unsupported ones, and those of a strategy that cannot be loaded. One row each."""
        for cell in self.job.cells:
            if not cell.status or self.done.finished(cell, 0):
                continue
            run = RunFacts(self._run_id(cell, 0, 1), 0, 0, 1, _now())
            outcome = Outcome(cell.status, cell.reason)
            self.store.add(run_rows(self.job.facts, cell, run, outcome), [])

    def _blocks(self) -> Decision:
        block = measured = 0
        while True:
            order = block_order(self.job.cells, seed=self.job.matrix.seed, block=block)
            missing = [(place, cell) for place, cell in enumerate(order) if not self.done.finished(cell, block)]
            blocks = self.job.matrix.blocks
            self._plan(len(missing) + len(order) * max(0, blocks - block - 1))
            for place, cell in missing:
                self._one(cell, block, place)
            if missing:
                self.done = Done(self.store.runs)
                measured += 1
            # Blocks of an earlier session took no time of this one.
            seconds = time.monotonic() - self._begun
            decision = decide(
                self.job.matrix,
                self.store,
                blocks_done=block + 1,
                seconds=seconds,
                block_seconds=seconds / max(measured, 1),
            )
            if decision.message:
                self.reporter.note(decision.message)
            if decision.stop or not order:
                return decision
            block += 1

    def _plan(self, runs: int) -> None:
        self._left = runs
        self.reporter.plan(runs)

    def _one(self, cell: PlannedCell, block: int, place: int) -> None:
        """Measure a cell; again, as often as the matrix allows, where something from outside disturbed the run."""
        first = self.done.next_attempt(cell, block)
        causes: list[Flag] = []
        for repeat in itertools.count():
            judge = partial(self._repeats.judge, repeat=repeat, before=causes)
            causes = self._attempt(cell, block, place, first + repeat, judge)
            if not causes:
                break
            self._plan(self._left + 1)
            self.reporter.note(f"{cell}: measuring it again, since it was disturbed: {texts(causes)}")

    def _attempt(self, cell: PlannedCell, block: int, place: int, attempt: int, judge: Judge) -> list[Flag]:
        """One run and its rows. Returns for what it is to be repeated."""
        run_id = self._run_id(cell, block, attempt)
        facts = RunFacts(run_id, block, place, attempt, _now(), {}, self._flops, self._base_losses(cell))
        spec = self._spec(cell, run_id)
        self.reporter.begin(str(cell), block, self.job.matrix.blocks)
        pids: list[int] = []

        def started(ranks: list[int]) -> None:
            pids.extend(ranks)
            self.store.note_running(run_id, ranks)

        gpus = [gpu.index for gpu in self.job.facts.machine.gpus[: cell.devices]]
        telemetry = Telemetry(self.job.facts.machine.device_kind, gpus, lambda: list(pids))
        recorded = False
        try:
            with telemetry:
                outcome = launch(
                    spec, on_progress=lambda beats: self.reporter.beats(beats, spec.steps), on_start=started
                )
            # From here to its row a run is not interrupted any more: it would be neither measured nor missing.
            with undisturbed():
                recorded = True
                causes = self._record(cell, facts, outcome, telemetry.result(), judge)
                self._tidy(Path(spec.folder))
                return causes
        except Interrupted as signal:
            if not recorded:
                outcome = Outcome("interrupted", f"ended by {signal.name}")
                self.store.add(run_rows(self.job.facts, cell, facts, outcome), [])
                self.store.note_idle()
                self._tidy(Path(spec.folder))
            raise

    def _record(
        self, cell: PlannedCell, facts: RunFacts, outcome: Outcome, telemetry: dict[str, Any], judge: Judge
    ) -> list[Flag]:
        if outcome.measurement and outcome.measurement.flops_per_sample:
            self._flops = outcome.measurement.flops_per_sample
        facts = replace(facts, telemetry=telemetry, flops_per_sample=self._flops)
        rows = run_rows(self.job.facts, cell, facts, outcome)
        causes = judge(rows)
        if causes:
            rows = [marked(row, causes) for row in rows]
        self.store.add(rows, step_rows(facts.run_id, outcome.measurement))
        self.store.note_idle()
        self._remember_losses(cell, rows)
        self._left -= 1
        self.reporter.end(str(cell), describe(rows))
        return causes

    def find_batches(self) -> list[str]:
        """Search each cell's largest batch a replica, write batch_search.csv, and say what was found, a line a cell."""
        lines, rows = [], []
        with interruptible():
            lines += [f"{cell}: {cell.status}: {cell.reason}" for cell in self.job.cells if cell.status]
            cells = [cell for cell in self.job.cells if not cell.status and cell.role == "measure"]
            self.reporter.plan(len(cells))
            for cell in cells:
                self.reporter.begin(str(cell), 0, 1)
                found = self._find_batch(cell)
                rows += search_rows(cell, found)
                result = f"{found.largest or 'no'} samples a replica, bounded by {found.bounded_by}"
                lines.append(f"{cell}: {result}")
                self.reporter.end(str(cell), result)
                write_rows(self.store.folder / "batch_search.csv", SEARCH_COLUMNS, rows)
        return lines

    def _find_batch(self, cell: PlannedCell) -> Search:
        assert cell.replicas is not None
        assert cell.batch_per_replica is not None
        replicas = cell.replicas

        def attempt(batch: int) -> Outcome:
            tried = replace(cell, batch_global=batch * replicas, batch_per_replica=batch)
            # Two epochs of one step: the second has the optimizer's state and the activations alive together.
            spec = replace(self._spec(tried, f"find-{self._run_id(tried, 0, 1)}"), steps=1, warmup_steps=1, epochs=2)
            spec = replace(spec, whole_epoch=False, checkpoint="", count_flops=False)
            try:
                return launch(spec, on_start=partial(self.store.note_running, spec.run_id))
            finally:
                self.store.note_idle()
                self._tidy(Path(spec.folder))

        limit = self.job.facts.data.train_count // replicas
        return search(attempt, start=cell.batch_per_replica, limit=limit, multiple=cell.accumulate)

    # -- the baseline's losses, for the gate ---------------------------------------------------------------------

    def _loss_key(self, cell: PlannedCell) -> tuple[Any, ...]:
        return (cell.batch_global, cell.accumulate, cell.data_pipeline)

    def _is_baseline(self, cell: PlannedCell) -> bool:
        name, _, devices = self.job.matrix.baseline.partition("@")
        return cell.strategy == name and cell.devices == int(devices or 1) and cell.role == "measure"

    def _remember_losses(self, cell: PlannedCell, rows: Sequence[dict[str, Any]]) -> None:
        if self._is_baseline(cell) and cell.loss_is_judged and rows[0]["status"] == "ok":
            self._losses[self._loss_key(cell)] = (rows[0]["loss_first"], rows[0]["loss_last"])

    def _base_losses(self, cell: PlannedCell) -> tuple[float | None, float | None] | None:
        """Known once the baseline has run; the summary judges again with all rows at hand."""
        return self._losses.get(self._loss_key(cell)) if cell.loss_is_judged else None

    # -- one run's specification ---------------------------------------------------------------------------------

    def _run_id(self, cell: PlannedCell, block: int, attempt: int) -> str:
        parts = [f"b{block:02d}", cell.strategy, f"{cell.devices}d", cell.precision, cell.scaling]
        parts += [cell.memory_format] if cell.memory_format == "channels_last" else []
        parts += [f"compile-{cell.compile}"] if cell.compile not in ("", "off") else []
        parts += [f"a{cell.accumulate}"] if cell.accumulate > 1 else []
        parts += [f"g{cell.batch_global}"] if cell.batch_global else []
        parts += [cell.data_pipeline] if cell.data_pipeline != "resident" else []
        parts += [cell.variant] if cell.variant else []
        parts += [cell.role] if cell.role != "measure" else []
        parts += [f"try{attempt}"] if attempt > 1 else []
        return "-".join("".join(c if c.isalnum() or c in "-_." else "_" for c in part) for part in parts if part)

    def _spec(self, cell: PlannedCell, run_id: str) -> RunSpec:
        job, facts, data = self.job, self.job.facts, self.job.facts.data
        assert cell.processes is not None
        assert cell.devices_per_process is not None
        assert cell.replicas is not None
        assert cell.batch_global is not None
        folder = (self.store.folder / "logs" / run_id).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        return RunSpec(
            run_id=run_id,
            folder=str(folder),
            store=str(folder / "rendezvous"),
            parent_pid=os.getpid(),
            strategy=cell.strategy,
            strategy_files=tuple(str(path.resolve()) for path in job.strategy_files),
            processes=cell.processes,
            devices_per_process=cell.devices_per_process,
            replicas=cell.replicas,
            device_kind=facts.machine.device_kind,
            backend=detect.backend(facts.machine.device_kind) if cell.uses_process_group else "",
            threads_per_device=facts.threads_per_device,
            workload=facts.workload,
            **_data_paths(data),
            data_pipeline=cell.data_pipeline,
            loader_workers=job.matrix.loader_workers,
            synthetic=data.synthetic or cell.data_pipeline == "synthetic_device",
            precision=cell.precision,
            memory_format=cell.memory_format,
            compile=cell.compile,
            options=dict(cell.options),
            batch_global=cell.batch_global,
            accumulate=cell.accumulate,
            seed=facts.seed,
            warmup_steps=facts.warmup_steps,
            steps=facts.timed_steps(cell),
            epochs=job.matrix.epochs,
            whole_epoch=facts.whole_epoch(cell),
            breakdown=cell.role == "breakdown",
            timeout_seconds=job.matrix.timeout,
            checkpoint=str((job.checkpoint / f"{run_id}.pt").resolve()) if job.checkpoint else "",
            initial_state=str(job.initial_state.resolve()) if job.initial_state else "",
            count_flops=self._flops is None,
            trace=job.matrix.trace,
        )

    def _tidy(self, folder: Path) -> None:
        """Leave of a run's folder what a person may read: the ranks' output and accounts, without private words."""
        for name in ("heartbeat", "rendezvous"):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("*.log"):
            if path.stat().st_size == 0:
                path.unlink()
        # Not before the ranks have ended: they read what they were told, and paths are part of it.
        self.store.scrub_files(folder)


def _data_paths(data: PreparedData) -> dict[str, str]:
    names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    return {name: str(getattr(data, name).resolve()) for name in names}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe(rows: Sequence[dict[str, Any]]) -> str:
    """One run's result in a line."""
    last = rows[-1]
    if last["status"] != "ok":
        return f"{last['status']}: {last['reason']}"
    rate = f"{last['samples_per_second']:.1f} samples/s, epoch {last['epoch_seconds']:.4g} s"
    accuracy = last.get("test_accuracy")
    return rate if accuracy is None else f"{rate}, test accuracy {accuracy:.1%}"


def measure(job: Job, store: Store, reporter: Reporter) -> int:
    """Run a job into its store and return the exit code."""
    with reporter:
        return Runner(job, store, reporter).run()
