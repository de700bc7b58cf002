"""Strategies that leave out work are invalid or crash, honest ones of an unusual kind are ok."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import TOY, command, here, rows

from bench.run.node import LocalNode
from strategies import Registry

FILE = Path(__file__).with_name("fooling_strategies.py")
NAMES = [name for name, entry in Registry.collect([FILE]).entries.items() if entry.is_file]
BLIND = {
    "fool_early_stop": "it works as long as the timed steps last",
    "fool_first_micro": "with one micro-batch it leaves out nothing",
    "fool_hidden_bf16": "lower precision than the row says",
    "fool_lossy_excuse": "it says itself that its work is another",
    "fool_same_batch": "the same batch again and again",
    "fool_tail_no_grad": "some rows of the outputs have no gradient",
}
"""What no gate can see, as docs/gates.md says; not to be relied on by anybody."""

FOOLS = [name for name in NAMES if name.startswith("fool_")]
HONEST = [name for name in NAMES if name.startswith("honest_")]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, node: LocalNode) -> dict[str, list[dict[str, str]]]:
    """The rows of summary.csv by strategy, on one device and on two."""
    out = tmp_path_factory.mktemp("fooling") / "out"
    options = [*TOY, "--steps", "6", "--warmup-steps", "2", "--timeout", "60", "--quiet", "--out", str(out)]
    done = here(
        command("smoke", "--strategies", ",".join(["single", *NAMES]), "--devices", "1,2", *options,
                "--strategy-file", str(FILE)), node
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows(out, "summary.csv"):
        found.setdefault(row["strategy"], []).append(row)
    return found


def test_there_are_enough_of_both() -> None:
    assert len(FOOLS) - len(BLIND) >= 12
    assert len(HONEST) >= 6


def test_what_cannot_be_seen_is_no_more_than_is_said(judged: dict[str, list[dict[str, str]]]) -> None:
    assert {*BLIND} <= {*FOOLS}
    assert {name for name in BLIND if "ok" in [row["status"] for row in judged[name]]} == {*BLIND}


@pytest.mark.parametrize("name", [name for name in FOOLS if name not in BLIND])
def test_who_leaves_out_work_does_not_count(judged: dict[str, list[dict[str, str]]], name: str) -> None:
    """On as many devices as it takes: who does not exchange gradients leaves out nothing on one."""
    statuses = {row["devices"]: row["status"] for row in judged[name] if row["status"] != "unsupported"}
    assert statuses[max(statuses)] in ("invalid", "crashed"), statuses


@pytest.mark.parametrize("name", HONEST)
def test_who_does_the_work_in_a_way_of_its_own_counts(judged: dict[str, list[dict[str, str]]], name: str) -> None:
    found = {row["devices"]: (row["status"], row["reason"]) for row in judged[name]}
    assert "ok" in [status for status, _ in found.values()], found
    assert {status for status, _ in found.values()} <= {"ok", "unsupported"}, found
