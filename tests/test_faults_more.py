"""A rendezvous that the shell's variables cannot disturb, and a model with parameters that no loss depends on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import by_strategy, run, toy

STRATEGY = '''
from torch import nn
from strategies.ddp import DDP


class WithSpare(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.spare = nn.Linear(3, 3)

    def forward(self, x):
        return self.model(x)


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


STRATEGIES = {"spare": Spare, "spare_found": SpareFound}
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
    names = ("ddp", "spare", "spare_found")
    arguments = toy(place / "out", "--strategy-file", str(place / "spare.py"), strategies=names)
    done = run(arguments, MASTER_ADDR="no-such-host.invalid", MASTER_PORT=str(held_port))
    assert done.returncode == 1, done.stderr
    return place / "out"


def test_a_taken_port_and_an_unknown_host_do_not_matter(folder: Path) -> None:
    """Ranks meet through a file."""
    assert by_strategy(folder)["ddp"]["status"] == "ok"


def test_unused_parameters_are_told_in_torch_s_own_words(folder: Path) -> None:
    row = by_strategy(folder)["spare"]
    assert row["status"] == "crashed"
    assert "Expected to have finished reduction in the prior iteration" in row["reason"]
    # And in this suite's, since torch's are of an argument that nobody here passes.
    assert "--set spare.find_unused_parameters=true, where the strategy has that option" in row["reason"]


def test_the_option_for_unused_parameters_helps(folder: Path) -> None:
    assert by_strategy(folder)["spare_found"]["status"] == "ok"
