"""What the ranks really did in a stretch of steps, counted where a strategy cannot help coming by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

Loss = Callable[[Tensor, Tensor], Tensor]


class Tally:
    """Samples whose loss a backward pass has begun from, and the steps that each optimizer took."""

    def __init__(self) -> None:
        self._made: list[torch.optim.Optimizer] = []
        self._samples = 0
        self._steps: Counter[int] = Counter()
        self._counting = True
        # Of all optimizers of this process, whoever made them.
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def start(self) -> None:
        """Count from here on."""
        self._samples = 0
        self._steps.clear()
        self._counting = True

    def stop(self) -> None:
        """Count no further."""
        self._counting = False

    def counting(self, loss: Loss) -> Loss:
        """The loss as a strategy gets it."""

        def counted(outputs: Tensor, targets: Tensor) -> Tensor:
            found = loss(outputs, targets)
            if found.requires_grad:
                number = len(targets)
                found.register_hook(lambda _: self._learned(number))
            return found

        return counted

    def _learned(self, number: int) -> None:
        if self._counting:
            self._samples += number

    def made(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Take note of an optimizer that the workload made for the strategy."""
        self._made.append(optimizer)
        return optimizer

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._counting:
            self._steps[id(optimizer)] += 1

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def steps(self) -> int:
        """Of the workload's own optimizers the one that took fewest; where it made none, any other's most.

        Steps that a loss scaler skipped inside a fused optimizer count, those that it did not ask for do not.
        """
        if self._made:
            return min(self._steps[id(optimizer)] for optimizer in self._made)
        return max(self._steps.values(), default=0)

    def close(self) -> None:
        self._handle.remove()
