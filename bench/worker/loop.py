"""The training loop, the same for every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

from bench.worker.batches import split
from bench.worker.timing import Timer, Timing
from strategies.base import Strategy


class Beats(Protocol):
    """What is told of every step."""

    def step(self, number: int) -> None: ...


def run_steps(
    strategy: Strategy,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    accumulate: int,
    timer: Timer,
    heartbeat: Beats,
    at_gradients: Callable[[], None] | None = None,
) -> tuple[Timing, list[Tensor | None]]:
    """The training loop, the same for every strategy. Returns this rank's times and its losses, left on the device.

    `at_gradients` is called in every step between backward and the optimizer: in warm-up alone.
    """
    losses: list[Tensor | None] = []
    timer.start()
    for step, batch in enumerate(batches, start=1):
        timer.data_ready()
        micro = [strategy.place(*part) for part in split(batch, accumulate)]
        losses.append(strategy.forward_backward(micro))
        timer.gradients_ready()
        if at_gradients is not None:
            at_gradients()
        strategy.apply()
        timer.step_done()
        heartbeat.step(step)
    return timer.stop(), losses
