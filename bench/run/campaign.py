"""One campaign: blocks of runs in random order, each a fresh set of processes and its rows."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.errors import EXIT_CELL_FAILED, EXIT_INTERRUPTED, EXIT_NOTHING_MEASURED, EXIT_OK
from bench.factors import FAILED_STATUSES, INTERRUPTED, MEASURE, OK, ROLES, Baseline
from bench.files import write_text_atomically
from bench.machine.telemetry import Telemetry
from bench.plan.cells import block_order
from bench.plan.planned import PlannedCell
from bench.results.columns import RUN_COLUMNS
from bench.results.csvfile import write_rows
from bench.results.flags import Flag
from bench.results.folder import frame
from bench.run.findbatch import SEARCH_COLUMNS, Search, search, search_rows
from bench.run.interrupts import Interrupted, interruptible, undisturbed
from bench.run.job import Job, run_id
from bench.run.launch import Outcome, launch
from bench.run.node import LocalNode
from bench.run.repeats import Repeats, texts
from bench.run.reporter import Reporter
from bench.run.resume import Done
from bench.run.rows import RunFacts, run_rows, step_rows
from bench.run.stopping import Decision, decide
from bench.run.store import Store
from bench.wire import RunSpec

Judge = Callable[[Sequence[Mapping[str, Any]]], list[Flag]]


class Runner:
    """Runs a job into a store. `run` returns the exit code; the rows are in the files whatever happens."""

    def __init__(self, job: Job, store: Store, reporter: Reporter) -> None:
        self.job = job
        self.store = store
        self.reporter = reporter
        self.done = Done(store.rows)
        self._flops = next((row["flops_per_sample"] for row in self.done.rows if row["flops_per_sample"]), None)
        self._begun = time.monotonic()
        self._left = 0
        self._repeats = Repeats(job.matrix.repeat_disturbed, reporter.note)
        self._node = LocalNode()
        self._lost = False

    def run(self) -> int:
        """Measure what is missing, block by block, until the stop rule is met or the campaign is ended from outside."""
        with interruptible(), self._node:
            try:
                self._note_unmeasured()
                decision = self._blocks()
            except Interrupted as signal:
                decision = Decision(stop=True, reason=f"interrupted by {signal.name}", interrupted=True)
        if decision.interrupted:
            self._sweep()
        stop = {"stop_reason": decision.reason}
        write_text_atomically(self.store.folder / "stop.json", json.dumps(stop) + "\n")
        if decision.interrupted:
            return EXIT_INTERRUPTED
        return exit_code(self.done.rows, baseline=self.job.matrix.baseline)

    def _sweep(self) -> None:
        """What a run leaves that was ended in the moment in which its clean-up began. All its ranks have ended."""
        for name in ("rendezvous", "heartbeat"):
            for path in self.store.folder.glob(f"logs/*/{name}"):
                path.unlink(missing_ok=True)

    def _note_unmeasured(self) -> None:
        """Cells that have no run: unsupported ones, and those of a strategy that cannot be loaded. One row each."""
        for cell in self.job.cells:
            if not cell.status or self.done.finished(cell, 0):
                continue
            run = RunFacts(run_id(cell, 0, 1), 0, 0, 1, _now())
            self._add(run_rows(self.job.facts, cell, run, Outcome(cell.status, cell.reason)))

    def _add(self, rows: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]] = ()) -> None:
        self.done.add(self.store.add(rows, steps))

    def _blocks(self) -> Decision:
        block = measured = 0
        while True:
            order = block_order(self.job.cells, seed=self.job.matrix.seed, block=block)
            missing = [(place, cell) for place, cell in enumerate(order) if not self.done.finished(cell, block)]
            self._plan(len(missing) + len(order) * max(0, self.job.matrix.blocks - block - 1))
            self._node.new_block()
            for place, cell in missing:
                self._one(cell, block, place)
            measured += bool(missing)
            decision = self._decide(block + 1, measured)
            if decision.stop or not order:
                return decision
            block += 1

    def _decide(self, blocks_done: int, measured: int) -> Decision:
        # Blocks of an earlier session took no time of this one.
        seconds = time.monotonic() - self._begun
        each = seconds / max(measured, 1)
        rows = self.done.rows
        decision = decide(self.job.matrix, rows, blocks_done=blocks_done, seconds=seconds, block_seconds=each)
        if decision.message:
            self.reporter.note(decision.message)
        return decision

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
            # What starts and watches the ranks may be lost once without the run being to blame for it.
            again = self._lost and repeat == 0
            if not causes and not again:
                break
            self._plan(self._left + 1)
            why = f"it was disturbed: {texts(causes)}" if causes else "what had started its ranks was lost"
            self.reporter.note(f"{cell}: measuring it again, since {why}")

    def _attempt(self, cell: PlannedCell, block: int, place: int, attempt: int, judge: Judge) -> list[Flag]:
        """One run and its rows. Returns for what it is to be repeated."""
        facts = RunFacts(run_id(cell, block, attempt), block, place, attempt, _now(), {}, self._flops)
        spec = self._spec(cell, facts.run_id)
        self.reporter.begin(str(cell), block, self.job.matrix.blocks)
        pids: list[int] = []

        def started(ranks: list[int]) -> None:
            pids.extend(ranks)
            self.store.note_running(facts.run_id, ranks)

        gpus = [gpu.index for gpu in self.job.facts.machine.gpus[: cell["devices"]]]
        telemetry = Telemetry(self.job.facts.machine.device_kind, gpus, lambda: list(pids))
        recorded = False
        try:
            with telemetry:
                outcome = launch(
                    spec,
                    node=self._node,
                    on_progress=lambda beats: self.reporter.beats(beats, spec.steps),
                    on_start=started,
                )
            self._lost = outcome.lost
            # From here to its row a run is not interrupted any more: it would be neither measured nor missing.
            with undisturbed():
                recorded = True
                causes = self._record(cell, facts, outcome, telemetry.result(), judge)
                self._tidy(Path(spec.folder))
                return causes
        except Interrupted as signal:
            if not recorded:
                self._add(run_rows(self.job.facts, cell, facts, Outcome(INTERRUPTED, f"ended by {signal.name}")))
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
        rows = [row | {"repeated_for": texts(causes)} for row in rows]
        self._add(rows, step_rows(facts.run_id, outcome.measurement))
        self.store.note_idle()
        self._left -= 1
        self.reporter.end(str(cell), result_line(rows))
        return causes

    def find_batches(self) -> list[str]:
        """Search each cell's largest batch per part, write batch_search.csv, and say what was found, a line a cell."""
        lines, rows = [], []
        with interruptible(), self._node:
            lines += [f"{cell}: {cell.status}: {cell.reason}" for cell in self.job.cells if cell.status]
            cells = [cell for cell in self.job.cells if not cell.status and cell["role"] == MEASURE]
            self.reporter.plan(len(cells))
            for cell in cells:
                self.reporter.begin(str(cell), 0, 1)
                found = self._find_batch(cell)
                rows += search_rows(cell, found)
                result = f"{found.largest or 'no'} samples per part, bounded by {found.bounded_by}"
                lines.append(f"{cell}: {result}")
                self.reporter.end(str(cell), result)
                write_rows(self.store.folder / "batch_search.csv", SEARCH_COLUMNS, rows)
        return lines

    def _find_batch(self, cell: PlannedCell) -> Search:
        plan = cell.spec.plan

        def attempt(batch: int) -> Outcome:
            tried = cell.changed(batch_global=batch * plan.parts)
            # Two epochs of one step: the second has the optimizer's state and the activations alive together.
            spec = replace(self._spec(tried, f"find-{run_id(tried, 0, 1)}"), steps=1, warmup_steps=1, epochs=2)
            spec = replace(spec, whole_epoch=False, checkpoint="", count_flops=False, probe=False)
            try:
                return launch(spec, node=self._node, on_start=partial(self.store.note_running, spec.run_id))
            finally:
                self.store.note_idle()
                self._tidy(Path(spec.folder))

        limit = self.job.facts.data.train_count // plan.parts
        return search(attempt, start=cell.spec.batch_per_part, limit=limit, multiple=cell["accumulate"])

    def _spec(self, cell: PlannedCell, name: str) -> RunSpec:
        folder = (self.store.folder / "logs" / name).resolve()
        return self.job.run_spec(cell, name, folder=folder, count_flops=self._flops is None)

    def _tidy(self, folder: Path) -> None:
        """Leave of a run's folder what a person may read: the ranks' output and accounts, without private words."""
        for name in ("heartbeat", "rendezvous"):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("*.log"):
            if path.stat().st_size == 0:
                path.unlink()
        # Not before the ranks have ended: they read what they were told, and paths are part of it.
        self.store.scrub_files(folder)


def exit_code(rows: Sequence[Mapping[str, Any]], *, baseline: str) -> int:
    """What the command says of a campaign that came to its end, from its cells as table and report show them."""
    from bench.results.cells import judged_cells

    cells = judged_cells(frame(rows, RUN_COLUMNS), Baseline.parse(baseline), roles=ROLES)
    statuses = {run.status for cell in cells for run in cell.runs}
    if statuses & {*FAILED_STATUSES} - {INTERRUPTED}:
        return EXIT_CELL_FAILED
    return EXIT_OK if OK in statuses else EXIT_NOTHING_MEASURED


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def result_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """One run's result in a line."""
    last = rows[-1]
    if last["status"] != OK:
        return f"{last['status']}: {last['reason']}"
    rate = f"{last['samples_per_second']:.1f} samples/s, epoch {last['epoch_seconds']:.4g} s"
    accuracy = last.get("test_accuracy")
    return rate if accuracy is None else f"{rate}, test accuracy {accuracy:.1%}"


def measure(job: Job, store: Store, reporter: Reporter) -> int:
    """Run a job into its store and return the exit code."""
    with reporter:
        return Runner(job, store, reporter).run()
