"""One campaign: blocks of runs in random order, each a fresh set of processes and its rows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bench.errors import EXIT_CELL_FAILED, EXIT_INTERRUPTED, EXIT_NOTHING_MEASURED, EXIT_OK
from bench.factors import FAILED_STATUSES, INTERRUPTED, OK, ROLES, Baseline
from bench.files import write_text_atomically
from bench.machine.environment import spinning
from bench.machine.room import Room, exclusive_gpus, memories
from bench.plan.cells import block_order
from bench.plan.matrix import AUTO, TURN_SECONDS, TURNS_OFF
from bench.plan.planned import PlannedCell
from bench.results.columns import RUN_COLUMNS
from bench.results.flags import Flag
from bench.results.folder import frame
from bench.run.attempt import Attempt, Campaign
from bench.run.cohorts import Cohort, Company, Member, Plan, is_missing
from bench.run.interrupts import Interrupted, interruptible
from bench.run.job import Job, run_id, write_header
from bench.run.launch import Outcome
from bench.run.node import LocalNode
from bench.run.pace import FEWEST_STEPS, Pace, choose, seconds_of
from bench.run.pipes import can_share_floor
from bench.run.racing import out_of_race, still_racing
from bench.run.repeats import Repeats, texts
from bench.run.reporter import Reporter
from bench.run.resume import Done
from bench.run.rows import RunFacts, run_rows
from bench.run.stopping import Decision, decide
from bench.run.store import Store
from bench.run.turns import Alternation, Dealt, one_by_one, turns_of
from bench.wire import RunSpec

OOM = "oom"


class Runner:
    """Runs a job into a store. `run` returns the exit code; the rows are in the files whatever happens."""

    def __init__(self, job: Job, store: Store, reporter: Reporter) -> None:
        self.done = Done(store.rows)
        self._node = LocalNode()
        self._repeats = Repeats(job.matrix.repeat_disturbed, reporter.note)
        flops = next((row["flops_per_sample"] for row in self.done.rows if row["flops_per_sample"]), None)
        self.campaign = Campaign(job, store, reporter, self._node, self._judge, self._add, flops)
        self._begun = time.monotonic()
        self._begun_with = len(self.done.rows)
        self._left = 0
        self._out: set[tuple[Any, ...]] = set()

    @property
    def job(self) -> Job:
        return self.campaign.job

    @property
    def store(self) -> Store:
        return self.campaign.store

    @property
    def reporter(self) -> Reporter:
        return self.campaign.reporter

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

    def _judge(self, rows: Sequence[Mapping[str, Any]], member: Member) -> list[Flag]:
        return self._repeats.judge(rows, repeat=member.repeat, before=member.causes)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _blocks(self) -> Decision:
        turns_off = self._turns_off()
        self._warn_of_spinning(turns_off)
        block = 0
        while True:
            begun = time.monotonic()
            order = self._still_racing(block_order(self.job.cells, seed=self.job.matrix.seed, block=block))
            company = Company(order, Baseline.parse(self.job.matrix.baseline), f"{self.job.matrix.seed}/{block}")
            missing = [
                Member(cell, place)
                for place, cell in enumerate(order)
                if is_missing(self.done, cell, block, company.baselines, turns=not turns_off)
            ]
            self._plan(len(missing) + len(order) * max(0, self.job.matrix.blocks - block - 1))
            self._node.new_block()
            first = self.done.next_cohort(block)
            plan = Plan(company, self.job.matrix.loader_workers, turns_off, first)
            plan.begin(missing, begun=first > 0)
            while plan.waiting:
                number, cohort = plan.take()
                self._left = max(self._left, len(cohort.members))
                self._cohort(plan, cohort, block, number)
            last = time.monotonic() - begun if missing else None
            decision = self._decide(block + 1, last)
            if decision.stop or not order:
                return decision
            block += 1

    def _warn_of_spinning(self, turns_off: str) -> None:
        variable = spinning(os.environ)
        # A single thread has none to wait for.
        if variable and not turns_off and self.job.facts.threads_per_device > 1:
            self.reporter.warn(
                f"{variable} has the threads of runs that wait for their turn burn the cores of the one that is timed: "
                "unset it, or measure with --turns off"
            )

    def _turns_off(self) -> str:
        """Why no run of this campaign takes turns, "" where runs do."""
        if self.job.matrix.turns == TURNS_OFF:
            return "turns are off, as asked"
        if not can_share_floor():
            return "this system has no named pipes, by which turns are told"
        taken = exclusive_gpus([gpu.index for gpu in self.job.facts.machine.gpus])
        if taken:
            return f"GPU {', '.join(map(str, taken))} admits one process only (exclusive-process mode)"
        return ""

    def _still_racing(self, order: list[PlannedCell]) -> list[PlannedCell]:
        out = out_of_race(self.job.matrix, self.done.rows)
        for key in out.keys() - self._out:
            self.reporter.note(out[key])
        self._out |= out.keys()
        return still_racing(order, out)

    def _decide(self, blocks_done: int, last: float | None) -> Decision:
        """Whether to go on; `last` is how long the last block took, None where it was measured before."""
        # Blocks of an earlier session took no time of this one, but count for the whole campaign's target.
        seconds = time.monotonic() - self._begun
        before = seconds_of(self.done.rows[: self._begun_with])
        each = before / blocks_done if last is None else last
        decision = decide(
            self.job.matrix,
            self.done.rows,
            blocks_done=blocks_done,
            seconds=seconds,
            seconds_before=before,
            block_seconds=each,
        )
        if decision.message:
            self.reporter.note(decision.message)
        return decision

    def _plan(self, runs: int) -> None:
        self._left = runs
        self.reporter.plan(runs)

    # -- cohorts -------------------------------------------------------------------------------------------------------

    def _cohort(self, plan: Plan, cohort: Cohort, block: int, number: int) -> None:
        """Measure one cohort, and plan what of it is to be measured again."""
        attempts = [partial(self._attempt, member, cohort, block, number) for member in cohort.members]
        over: list[Attempt] = []
        try:
            if cohort.turns:
                over = self._side_by_side(plan, cohort, attempts, f"{self.job.matrix.seed}/{block}/{number}")
            else:
                for attempt in one_by_one(self._node, attempts, deal=self._deal, again=self._again):
                    over.append(attempt)
        finally:
            self._left -= len(over)
        self._measure_again(plan, over)

    def _side_by_side(
        self, plan: Plan, cohort: Cohort, attempts: Sequence[Callable[[], Attempt]], seed: str
    ) -> list[Attempt]:
        gpus = [gpu.index for gpu in self.job.facts.machine.gpus]
        room = Room(lambda: memories(gpus))
        alternation = Alternation(self._node, seed=seed, deal=self._deal, again=self._again, room=room)
        admitted, why = alternation.measure(attempts)
        plan.left_over([member for member in cohort.members[admitted:] if not member.company], why)
        return alternation.over

    def _attempt(self, member: Member, cohort: Cohort, block: int, number: int) -> Attempt:
        attempt = 1 if member.company else self.done.next_attempt(member.cell, block)
        name = run_id(member.cell, block, attempt, number)
        facts = RunFacts(name, block, member.place, attempt, _now(), number, member.reason or cohort.reason)
        # A run whose steps are not chosen yet waits, so that its speed can be seen.
        spec = self._spec(member.cell, name, turns=cohort.turns or (self._undecided and can_share_floor()))
        return Attempt(self.campaign, member, facts, spec, beside=cohort.turns)

    @property
    def _undecided(self) -> bool:
        return self.job.facts.steps == AUTO

    def _choose_steps(self, live: Sequence[Attempt]) -> None:
        """Choose how many steps all runs of this campaign have, from the speed of these."""
        matrix = self.job.matrix
        speeds = [attempt.speed for attempt in live if attempt.speed is not None]
        runs = len([cell for cell in self.job.cells if not cell.status])
        if speeds and matrix.time_target is not None:
            pace = choose(
                speeds, runs=runs, target=matrix.time_target, blocks=matrix.blocks, max_blocks=matrix.max_blocks
            )
        else:
            pace = Pace(FEWEST_STEPS, matrix.blocks, f"{FEWEST_STEPS} timed steps a run, since no speed is known")
        self.reporter.note(pace.message)
        self.campaign.job = replace(self.job, facts=replace(self.job.facts, steps=pace.steps))
        write_header(self.store, self.job)

    def _deal(self, live: Sequence[Attempt]) -> Dealt:
        """How the steps of these runs, which are all warm, are dealt."""
        if self._undecided:
            self._choose_steps(live)
        facts, matrix = self.job.facts, self.job.matrix
        steps = {attempt.facts.run_id: facts.timed_steps(attempt.member.cell) for attempt in live}
        known = [
            attempt.speed.step_seconds * steps[attempt.facts.run_id] for attempt in live if attempt.speed is not None
        ]
        asked = matrix.turns if isinstance(matrix.turns, float) else TURN_SECONDS[facts.machine.device_kind]
        turns = turns_of(known if len(known) == len(live) else [], steps.values(), turn_seconds=asked)
        return Dealt(
            turns,
            lambda attempt: steps[attempt.facts.run_id],
            lambda attempt: facts.whole_epoch(attempt.member.cell),
        )

    def _again(self, attempt: Attempt, outcome: Outcome) -> str:
        """Why a run is measured again that failed for no fault of its own, "" where it is not."""
        if outcome.lost and (attempt.waits or not attempt.member.repeat):
            return "what had started its ranks was lost"
        if attempt.member.repeat:
            return ""
        if outcome.status == OOM and attempt.beside:
            return "it ran out of memory beside other runs"
        return ""

    def _measure_again(self, plan: Plan, over: Sequence[Attempt]) -> None:
        disturbed: list[Member] = []
        lost: list[Member] = []
        waited: list[Member] = []
        full: list[Member] = []
        for attempt in over:
            assert attempt.outcome is not None
            if not attempt.causes and not self._again(attempt, attempt.outcome):
                continue
            member = replace(attempt.member, repeat=attempt.member.repeat + 1, causes=tuple(attempt.causes))
            if attempt.outcome.lost and attempt.waits:
                # It waited: whatever happened, it was not its doing.
                waited.append(replace(member, repeat=attempt.member.repeat))
            else:
                (disturbed if attempt.causes else lost if attempt.outcome.lost else full).append(member)
            why = (
                f"it was disturbed: {texts(attempt.causes)}"
                if attempt.causes
                else self._again(attempt, attempt.outcome)
            )
            self.reporter.note(f"{attempt}: measuring it again, since {why}")
        if any(plan.company.baseline.matches(member.cell) for member in disturbed):
            # All others were compared with it.
            again = {member.cell.key for member in disturbed}
            disturbed += [
                replace(attempt.member, repeat=attempt.member.repeat + 1)
                for attempt in over
                if attempt.member.cell.key not in again and attempt.outcome and attempt.outcome.status == OK
            ]
        self._left += len(disturbed) + len(waited) + len(lost) + len(full)
        self.reporter.plan(self._left)
        plan.again(disturbed, "something disturbed it")
        plan.again(waited, "what had started its ranks was lost")
        plan.again(lost, "what had started its ranks was lost")
        plan.alone(full, "it ran out of memory beside other runs")

    def _spec(self, cell: PlannedCell, name: str, *, turns: bool = False) -> RunSpec:
        folder = (self.store.folder / "logs" / name).resolve()
        count = self.campaign.flops is None
        return self.job.run_spec(cell, name, folder=folder, count_flops=count, turns=turns)


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


def measure(job: Job, store: Store, reporter: Reporter) -> int:
    """Run a job into its store and return the exit code."""
    with reporter:
        return Runner(job, store, reporter).run()
