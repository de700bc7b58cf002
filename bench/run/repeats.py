"""Which runs are measured again: a rule fixed before the campaign, which does not look at how fast a run was.

A run that came out ok and that something outside the suite disturbed (`flags.disturbances`) is repeated, at most as
often as the matrix says. Its row stays, marked; the last attempt that was measured counts. What is still there in the
repeats, such as a power cap that the GPU always runs into, is a fact of the machine: after `LASTING` repeats that did
not help against it, no run is repeated for it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.factors import OK
from bench.results.cells import make_run
from bench.results.flags import Flag, disturbances

LASTING = 3


def texts(causes: Sequence[Flag]) -> str:
    return ", ".join(cause.text for cause in causes)


class Repeats:
    """The rule over one campaign. `note` is told once of each cause that repeats do not help against."""

    def __init__(self, most: int, note: Callable[[str], None]) -> None:
        self._most = most
        self._note = note
        self._in_vain: Counter[str] = Counter()

    def judge(self, rows: Sequence[Mapping[str, Any]], *, repeat: int, before: Sequence[Flag]) -> list[Flag]:
        """For what a run is to be repeated; empty where it is not.

        `repeat` counts from 0 for the first run, `before` is what its predecessor was repeated for.
        """
        if rows[0]["status"] != OK:
            return []
        found = disturbances(make_run([dict(row) for row in rows]))
        for cause in found:
            if any(cause.key == earlier.key for earlier in before):
                self._in_vain[cause.key] += 1
                if self._in_vain[cause.key] == LASTING:
                    self._note(f"no run is repeated any more for this, since repeats did not help: {cause.text}")
        return [cause for cause in found if repeat < self._most and self._in_vain[cause.key] < LASTING]
