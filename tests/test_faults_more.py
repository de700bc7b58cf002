"""A rendezvous that the shell's variables cannot disturb, and a model with parameters that no loss depends on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import by_strategy, run, toy

STRATEGY = '''
from torch import nn
from strategies.ddp import DDP


class WithSpare(nn.Module):
    def __init__(self, model, used=lambda: False):
        super().__init__()
        self.model = model
        self.spare = nn.Linear(3, 3)
        self.used = used

    def forward(self, x):
        return self.model(x) + (self.spare(x[:, :3]).mean() if self.used() else 0)


class Spare(DDP):
    """A model with a layer that takes no part in the loss."""

    def build(self, context, make_model, make_optimizer):
        super().build(context, lambda: WithSpare(make_model()), make_optimizer)

    def trainable_count(self):
        """Of the workload's own model."""
        return super().trainable_count() - 12


class SpareFound(Spare):
    default_options = {**DDP.default_options, "find_unused_parameters": False}

    def changed_options(self):
        return {"find_unused_parameters": True}


class SpareOnOne(Spare):
    """Rank 0 uses the layer and waits for rank 1, which does not."""

    def build(self, context, make_model, make_optimizer):
        used = lambda: context.rank == 0
        DDP.build(self, context, lambda: WithSpare(make_model(), used), make_optimizer)


class SpareLater(Spare):
    """The layer is left out from the second step on, where torch itself says so in the third."""

    def build(self, context, make_model, make_optimizer):
        self.steps = 0
        DDP.build(self, context, lambda: WithSpare(make_model(), lambda: self.steps < 2), make_optimizer)

    def forward_backward(self, micro):
        self.steps += 1
        return super().forward_backward(micro)


STRATEGIES = {"spare": Spare, "spare_found": SpareFound, "spare_on_one": SpareOnOne, "spare_later": SpareLater}
'''


@pytest.fixture(scope="module")
def held_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, held_port: int) -> Path:
    """One campaign beside a taken port and a host name that does not resolve, as a shell may have them set."""
    place = tmp_path_factory.mktemp("more")
    (place / "spare.py").write_text(STRATEGY, encoding="utf-8")
    names = ("ddp", "spare_later", "spare_found")
    arguments = toy(place / "out", "--strategy-file", str(place / "spare.py"), strategies=names)
    done = run(arguments, MASTER_ADDR="no-such-host.invalid", MASTER_PORT=str(held_port))
    assert done.returncode == 1, done.stderr
    return place / "out"


def test_a_taken_port_and_an_unknown_host_do_not_matter(folder: Path) -> None:
    """Ranks meet through a file."""
    assert by_strategy(folder)["ddp"]["status"] == "ok"


SPARE = ("spare", "spare_on_one")


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """One timed step and no warm-up: torch itself has nothing to say in the first step."""
    out = tmp_path_factory.mktemp("one") / "out"
    shape = ("--steps", "1", "--warmup-steps", "0", "--timeout", "60")
    arguments = toy(out, *shape, "--strategy-file", str(folder.parent / "spare.py"), strategies=SPARE)
    done = run(arguments)
    assert done.returncode == 1, done.stderr
    return out


@pytest.mark.parametrize("name", SPARE)
def test_unused_parameters_are_told_in_the_first_step_and_by_the_rank_that_has_them(one_step: Path, name: str) -> None:
    row = by_strategy(one_step)[name]
    assert row["status"] == "crashed"
    expected = r"rank (\d) in timed: RuntimeError: 2 of 6 parameters had no gradient in the first step on rank \1 "
    found = re.match(expected + r"\(spare.weight, spare.bias\)", row["reason"])
    assert found, row["reason"]
    # Rank 0 of the second waits in a collective, and is not the one to blame.
    assert found[1] == "1" or name == "spare"
    assert f"--set {name}.find_unused_parameters=true, where the strategy has that option" in row["reason"]


def test_parameters_that_are_left_out_later_are_told_in_torch_s_own_words(folder: Path) -> None:
    row = by_strategy(folder)["spare_later"]
    assert row["status"] == "crashed"
    assert "Expected to have finished reduction in the prior iteration" in row["reason"]
    # And in this suite's, since torch's are of an argument that nobody here passes.
    assert "--set spare_later.find_unused_parameters=true, where the strategy has that option" in row["reason"]


def test_the_option_for_unused_parameters_helps(folder: Path) -> None:
    assert by_strategy(folder)["spare_found"]["status"] == "ok"
