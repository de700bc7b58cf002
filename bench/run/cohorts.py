"""Which runs of a block are measured together: side by side and in turns, or one after the other.

Every cohort has a run of the baseline, with which its other runs are compared, and where it was not made for runs that
are measured again, the baseline's twin too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.factors import CONTROL, Baseline
from bench.plan.planned import PlannedCell
from bench.results.flags import Flag
from bench.run.resume import Done
from strategies.places import SERVE


@dataclass(frozen=True)
class Member:
    """A run to be measured. `company` says that its cell has a run in the block already: it is there to be compared
    with. repeat: how often it was measured again in this block; causes: for what its predecessor was.
    """

    cell: PlannedCell
    place: int
    company: bool = False
    repeat: int = 0
    causes: tuple[Flag, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Cohort:
    """Runs to be measured together, in the order they are started; `turns` says whether side by side."""

    members: tuple[Member, ...]
    turns: bool
    reason: str = ""


@dataclass(frozen=True)
class Company:
    """What a further cohort of a block gets besides the runs it was made for: `order` are all cells of the block."""

    order: Sequence[PlannedCell]
    baseline: Baseline
    seed: str

    def of(self, members: Sequence[Member], *, cohort: int, twin: bool = True) -> tuple[Member, ...]:
        """The members with a baseline, and its twin, of each kind of scaling among them, in a random order."""
        keys = {member.cell.key for member in members}
        wanted = [cell for cell in self.order if self._is_company(cell, twin) and cell.key not in keys]
        scalings = {member.cell["scaling"] for member in members}
        wanted = [cell for cell in wanted if cell["scaling"] in scalings] or wanted
        # Runs of the baseline alone need nobody to be compared with.
        if all(self._is_company(member.cell, True) for member in members):
            wanted = [cell for cell in wanted if self.baseline.matches(cell)]
        first = len(self.order)
        found = [*members, *(Member(cell, first + place, company=True) for place, cell in enumerate(wanted))]
        random.Random(f"{self.seed}/{cohort}").shuffle(found)
        return tuple(found)

    def _is_company(self, cell: PlannedCell, twin: bool) -> bool:
        return self.baseline.matches(cell) or (twin and cell["role"] == CONTROL)

    @property
    def baselines(self) -> list[PlannedCell]:
        return [cell for cell in self.order if self.baseline.matches(cell)]


def works_between_turns(cell: PlannedCell, *, loader_workers: int) -> str:
    """Why a run cannot stand still while others are timed, "" where it can."""
    if cell["data_pipeline"] == "loader" and loader_workers:
        return "its loader workers work between turns"
    if any(place.role == SERVE for place in cell.spec.places):
        return "one of its ranks serves and has no steps of its own to deal"
    return ""


@dataclass
class Plan:
    """The cohorts of one block, in the order in which they are measured."""

    company: Company
    loader_workers: int
    turns_off: str = ""
    next_cohort: int = 0
    waiting: list[Cohort] = field(default_factory=list)

    def begin(self, missing: Sequence[Member], *, begun: bool) -> None:
        """The cohorts of what is missing in the block; `begun` says that runs of it were measured before."""
        busy = {member.cell.key: self._busy(member) for member in missing}
        reasons = [self._busy(Member(cell, 0)) for cell in self.company.baselines]
        self.turns_off = self.turns_off or "; ".join(sorted({reason for reason in reasons if reason}))
        if self.turns_off:
            self._add(Cohort(tuple(missing), turns=False, reason=self.turns_off))
            return
        still = [member for member in missing if not busy[member.cell.key]]
        apart = [member for member in missing if busy[member.cell.key]]
        if still:
            reason = "measured after the campaign had been interrupted" if begun else ""
            self._add(Cohort(tuple(still), turns=True, reason=reason), completed=begun)
        if apart:
            reason = "; ".join(sorted({busy[member.cell.key] for member in apart}))
            self._add(Cohort(tuple(apart), turns=False, reason=reason), completed=True)

    def _busy(self, member: Member) -> str:
        return works_between_turns(member.cell, loader_workers=self.loader_workers)

    def _add(self, cohort: Cohort, *, completed: bool = False, twin: bool = True) -> None:
        if not cohort.members:
            return
        if completed:
            members = self.company.of(cohort.members, cohort=self.next_cohort + len(self.waiting), twin=twin)
            cohort = Cohort(members, cohort.turns, cohort.reason)
        self.waiting.append(cohort)

    def left_over(self, members: Sequence[Member], why: str) -> None:
        """What memory had no room for forms a further cohort."""
        self._add(Cohort(tuple(members), turns=True, reason=f"there was no room left in {why}"), completed=True)

    def again(self, members: Sequence[Member], why: str) -> None:
        """Runs to be measured once more, beside their baseline."""
        turns = not self.turns_off and not any(self._busy(member) for member in members)
        completed = not self.turns_off
        self._add(Cohort(tuple(members), turns, f"measured again: {why}"), completed=completed, twin=False)

    def alone(self, members: Sequence[Member], why: str) -> None:
        """Runs to be measured once more with the whole machine to themselves, one after the other."""
        self._add(Cohort(tuple(members), turns=False, reason=why), completed=not self.turns_off, twin=False)

    def take(self) -> tuple[int, Cohort]:
        """The next cohort, with its number in the block. Where nobody takes turns, the whole block is one."""
        number = 0 if self.turns_off else self.next_cohort
        self.next_cohort += 1
        return number, self.waiting.pop(0)


def is_missing(done: Done, cell: PlannedCell, block: int, baselines: Sequence[PlannedCell], *, turns: bool) -> bool:
    """Whether a cell is still to be measured in a block: it was not, or nothing that it could be compared with was."""
    if not done.finished(cell, block):
        return True
    if not turns or not baselines:
        return False
    return not any(done.cohorts(cell, block) & done.cohorts(other, block) for other in baselines)
