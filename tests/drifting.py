"""A simulated machine whose speed drifts: what runs standing apart, or taking turns, would be measured at.

The log of the machine's rate is a random walk in time, every step has noise of its own, and each process is a little
faster or slower as a whole, which only a fresh process changes. Time is counted in steps of one second.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Machine:
    """Standard deviations on the log scale: of the walk after one second, of a step, and of a process as a whole."""

    walk: float = 0.0095
    step: float = 0.075
    process: float = 0.03


@dataclass(frozen=True)
class Plan:
    """How a run is measured. `turn` is the steps between two breaks; None: all at once, and the runs one after another.

    `between` are the seconds from one run to the next (start, build, warm-up) where they stand one after another.
    """

    steps: int = 8
    turn: int | None = None
    between: float = 15.0


APART, IN_TURNS = Plan(), Plan(turn=2)


def log_rates(random, truths, *, trials, blocks, plan, machine=Machine()):
    """Log samples/s (trials, blocks, cells) of cells whose true log rates are `truths` (cells,) or (trials, cells).

    In each round of a block all cells have one turn, in a random order. Runs that are not measured in turns have one
    round, with `between` seconds before each of them.
    """
    truths = np.broadcast_to(truths, (trials, np.shape(truths)[-1]))
    turn = plan.turn or plan.steps
    shape = (trials, blocks, plan.steps // turn, truths.shape[1], turn)
    waited = np.ones(turn)
    waited[0] += 0.0 if plan.turn else plan.between
    increments = random.standard_normal(shape) * (machine.walk * np.sqrt(waited))
    walk = np.cumsum(increments.reshape(trials, blocks, -1), axis=-1).reshape(shape)
    order = np.argsort(random.random(shape[:-1]), axis=-1)
    walk = np.take_along_axis(walk, order[..., None], axis=3)
    speed = truths[:, None, :] + random.normal(0, machine.process, (trials, blocks, truths.shape[1]))
    noise = random.normal(0, machine.step, shape)
    seconds = np.exp(-(speed[:, :, None, :, None] + walk + noise))
    return -np.log(seconds.mean(axis=(2, 4)))
