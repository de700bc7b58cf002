"""One run from its order to its rows: it is started, given the floor, watched, judged and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.factors import INTERRUPTED, OK
from bench.floor import FIRST_TURN
from bench.machine.telemetry import Telemetry
from bench.results.flags import Flag
from bench.run.cohorts import Member
from bench.run.job import Job
from bench.run.launch import Outcome, Watched
from bench.run.node import LocalNode
from bench.run.pace import Speed
from bench.run.repeats import texts
from bench.run.reporter import Reporter
from bench.run.rows import RunFacts, run_rows, step_rows
from bench.run.store import Store
from bench.wire import RunSpec

Judge = Callable[[Sequence[Mapping[str, Any]], Member], list[Flag]]
Add = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], None]


@dataclass
class Campaign:
    """What all attempts of a campaign share. `job` changes once, where steps were left to the suite."""

    job: Job
    store: Store
    reporter: Reporter
    node: LocalNode
    judge: Judge
    add: Add
    flops: float | None = None


class Attempt:
    """One run while it lasts.

    with attempt:                           # its ranks are started; none is alive afterwards, whatever happens
        while (outcome := attempt.look()) is None: ...
        attempt.record(outcome)
    """

    def __init__(
        self, campaign: Campaign, member: Member, facts: RunFacts, spec: RunSpec, *, beside: bool = False
    ) -> None:
        """`beside` says that other runs live at the same time."""
        self.beside = beside
        self.member = member
        self.facts = facts
        self.spec = spec
        self.causes: list[Flag] = []
        self.outcome: Outcome | None = None
        self._campaign = campaign
        self.start_seconds = 0.0
        self._begun = 0.0
        self._recorded = False
        self._noted = False
        self._open = ExitStack()
        self.watched = Watched(spec, campaign.node)
        gpus = [gpu.index for gpu in campaign.job.facts.machine.gpus[: member.cell["devices"]]]
        self._telemetry = Telemetry(campaign.job.facts.machine.device_kind, gpus, lambda: self.watched.pids)

    def __str__(self) -> str:
        return str(self.member.cell)

    def __enter__(self) -> Attempt:
        self._campaign.reporter.begin(str(self), self.facts.block, self._campaign.job.matrix.blocks)
        self._begun = time.monotonic()
        self._open.enter_context(self._telemetry)
        self._open.enter_context(self.watched)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its ranks."""
        self._open.close()

    @property
    def waits(self) -> str:
        """For what it waits without the floor, "" while it works."""
        return self.watched.waits

    @property
    def speed(self) -> Speed | None:
        """How long it took to start and takes a step, once it waits for its first turn; None where that is unknown."""
        seconds = self.watched.run.step_seconds
        return None if seconds is None else Speed(self.start_seconds, seconds)

    def look(self) -> Outcome | None:
        """What became of it, None while it is not over. Its progress is shown meanwhile."""
        if not self._noted and self.watched.pids:
            self._noted = True
            self._campaign.store.note_running(self.facts.run_id, self.watched.pids)
        self.outcome = self.outcome or self.watched.look()
        if self.outcome is None and not self.waits and self.watched.progress_is_due():
            self._campaign.reporter.beats(str(self), self.watched.beats(), self.spec.steps)
        return self.outcome

    def pause(self) -> None:
        """It has given the floor away."""
        self.start_seconds = self.start_seconds or time.monotonic() - self._begun
        self.watched.pause()
        self._telemetry.pause()
        self._campaign.reporter.waits(str(self), self.watched.waits)

    def go(self, *, steps: int, turns: int, whole_epoch: bool) -> None:
        """Give it the floor; the first time with how its steps are dealt."""
        told: dict[str, Any] = {}
        if self.waits == FIRST_TURN:
            told = {"steps": steps, "turns": turns, "whole_epoch": whole_epoch}
            self.spec = replace(self.spec, steps=steps)
        self._telemetry.resume()
        self.watched.go(**told)

    def record(self, outcome: Outcome, *, again: str = "") -> None:
        """Its rows. From here on it is not interrupted any more: it would be neither measured nor missing.

        `again` says why it is measured again whatever the rule for disturbed runs says.
        """
        self._recorded = True
        self.close()
        campaign = self._campaign
        if outcome.measurement and outcome.measurement.flops_per_sample:
            campaign.flops = outcome.measurement.flops_per_sample
        facts = replace(self.facts, telemetry=self._telemetry.result(), flops_per_sample=campaign.flops)
        rows = run_rows(campaign.job.facts, self.member.cell, facts, outcome)
        self.causes = campaign.judge(rows, self.member)
        rows = [row | {"repeated_for": texts(self.causes) or again} for row in rows]
        campaign.add(rows, step_rows(facts.run_id, outcome.measurement))
        self._forget()
        campaign.reporter.end(str(self), result_line(rows))

    def interrupted(self, signal: str) -> None:
        """It was ended from outside: a row that says so, unless it has its row already."""
        self.close()
        if self._recorded:
            return
        self._recorded = True
        job = self._campaign.job
        rows = run_rows(job.facts, self.member.cell, self.facts, Outcome(INTERRUPTED, f"ended by {signal}"))
        self._campaign.add(rows, [])
        self._forget()

    def _forget(self) -> None:
        self._campaign.store.note_ended(self.facts.run_id)
        tidy(self._campaign.store, Path(self.spec.folder))


def tidy(store: Store, folder: Path) -> None:
    """Leave of a run's folder what a person may read: the ranks' output and accounts, without private words."""
    for name in ("heartbeat", "rendezvous"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("*.log"):
        if path.stat().st_size == 0:
            path.unlink()
    # Not before the ranks have ended: they read what they were told, and paths are part of it.
    store.scrub_files(folder)


def result_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """One run's result in a line."""
    last = rows[-1]
    if last["status"] != OK:
        return f"{last['status']}: {last['reason']}"
    rate = f"{last['samples_per_second']:.1f} samples/s, epoch {last['epoch_seconds']:.4g} s"
    accuracy = last.get("test_accuracy")
    return rate if accuracy is None else f"{rate}, test accuracy {accuracy:.1%}"
