"""One stretch of steps on one rank: the loop, or what a rank that serves does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from bench.worker.loop import Beats, run_steps
from bench.worker.state import RunState
from bench.worker.timing import Timer, Timing
from strategies.places import SERVE


class Silent:
    """The heartbeat of steps beside the timed ones: they are no progress of the run."""

    def step(self, number: int) -> None:
        pass


def run_stretch(
    run: RunState,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    timer: Timer,
    heartbeat: Beats,
    at_gradients: Callable[[], None] | None = None,
) -> tuple[Timing, list[Tensor | None]]:
    """Run the steps of these batches. Returns this rank's times and its losses, left on the device.

    A rank that serves has no batches, and so neither steps nor losses; its whole time is measured beside the others'.
    """
    if run.rank.place.role == SERVE:
        timer.start()
        run.strategy.serve()
        return timer.stop(), []
    with run.strategy.epoch():
        found = run_steps(
            run.strategy,
            batches,
            accumulate=run.spec.cell["accumulate"],
            timer=timer,
            heartbeat=heartbeat,
            at_gradients=at_gradients,
        )
        # The clock has stopped: what is done from here on is not what was timed.
        run.tally.stop()
    return found
