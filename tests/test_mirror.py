"""A run on a node that sees none of the command's files: judged, logged and told of as one on a node that does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaigns import save_arrays, spec
from fault_strategies import Fault, write_table

from bench import heartbeat
from bench.heartbeat import Beat
from bench.lines import encode
from bench.run.launch import launch
from bench.run.mirror import MOST_BYTES, PIECE_BYTES, Receiver, Sender, file_messages
from bench.run.node import LocalNode
from bench.wire import heartbeat_path

RUN = "b00-" + "x" * 96


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """An agent that is told nothing of this machine's folders, whose own temporary folder is somewhere else."""
    temporary = tmp_path_factory.mktemp("far")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with LocalNode(shared=False) as node:
            yield node
    assert list(temporary.iterdir()) == []


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_arrays(tmp_path_factory.mktemp("data"))


def faulty(folder: Path, fault: Fault) -> dict[str, Any]:
    folder.mkdir()
    return {"strategy": "f", "strategy_files": (str(write_table(folder / "f.py", {"f": fault})),)}


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_a_run_is_measured(tmp_path: Path, arrays: dict[str, Path], far: LocalNode, how: str) -> None:
    seen: list[str] = []
    made = spec(tmp_path / "run", arrays, start=how)
    outcome = launch(made, node=far, on_progress=lambda beats: seen.extend(beat.phase for beat in beats))
    assert (outcome.status, outcome.reason, outcome.warnings) == ("ok", "", ())
    assert outcome.measurement is not None
    assert outcome.measurement.epochs[0].samples == [[8, 8, 8], [8, 8, 8]]
    assert 0 < outcome.measurement.launch_seconds < 60
    # Nothing of it was ever in this folder: its ranks were told of another.
    assert json.loads((tmp_path / "run" / "spec.json").read_text())["folder"] == str(tmp_path / "run")
    assert not (tmp_path / "run" / "rendezvous").exists()
    assert not list((tmp_path / "run").glob("*.part"))


def test_both_kinds_of_node_give_the_same(
    tmp_path: Path, arrays: dict[str, Path], far: LocalNode, node: LocalNode
) -> None:
    found = [launch(spec(tmp_path / name, arrays), node=on).measurement for name, on in (("far", far), ("near", node))]
    assert found[0] is not None
    assert found[1] is not None
    for name in ("loss_first", "loss_last", "parameter_hashes", "samples", "skipped_steps"):
        assert getattr(found[0].epochs[0], name) == getattr(found[1].epochs[0], name), name


def test_a_rank_that_raises_is_quoted_and_its_log_is_here(
    tmp_path: Path, arrays: dict[str, Path], far: LocalNode
) -> None:
    outcome = launch(spec(tmp_path / "run", arrays, **faulty(tmp_path / "s", Fault("raise", 1))), node=far)
    assert outcome.status == "crashed"
    assert outcome.reason == "rank 1 in timed: DeliberateError: rank 1 was told to fail in later_step"
    assert "in _do_raise" in (tmp_path / "run" / "rank1.stderr.log").read_text()


def test_a_rank_that_hangs_is_named_with_its_place(tmp_path: Path, arrays: dict[str, Path], far: LocalNode) -> None:
    made = spec(tmp_path / "run", arrays, timeout_seconds=8.0, **faulty(tmp_path / "s", Fault("hang", 1)))
    outcome = launch(made, node=far)
    assert outcome.status == "timeout"
    assert "behind the others: rank 1 in timed after step 1, " in outcome.reason
    assert "s without progress in hang_on_purpose, fault_strategies.py line " in outcome.reason


def test_an_agent_says_who_it_is(tmp_path: Path, arrays: dict[str, Path], far: LocalNode) -> None:
    launch(spec(tmp_path / "run", arrays), node=far)
    assert set(far.identity) == {"agent", "host", "python"}
    assert far.identity["host"] == os.uname().nodename


# -- both ends without a process --------------------------------------------------------------------------------------


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Path, Path, Sender, list[dict[str, Any]]]:
    """The folders of a sender and a receiver of two ranks, joined by lines that are as short as they must be."""
    there, here = tmp_path / "there", tmp_path / "here"
    said: list[dict[str, Any]] = []
    for folder in (there, here):
        folder.mkdir()
        heartbeat.create(heartbeat_path(folder), 2)
    receiver = Receiver(here)

    def say(message: Any) -> None:
        line = encode(message)
        said.append(json.loads(line))
        receiver.take(said[-1])

    return there, here, Sender(there, RUN, say), said


def test_a_log_that_grows_is_followed(ends: Any) -> None:
    there, here, sender, _ = ends
    log = there / "rank0.stdout.log"
    whole = b""
    for size in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES + 7, 3):
        whole += os.urandom(size)
        log.write_bytes(whole)
        sender.send()
        assert (here / log.name).read_bytes() if whole else not (here / log.name).exists()
    assert (here / log.name).read_bytes() == whole


def test_a_log_without_end_is_cut_and_says_so(ends: Any) -> None:
    there, here, sender, said = ends
    (there / "rank0.stderr.log").write_bytes(b"x" * (2 * MOST_BYTES))
    sender.send()
    # Orders are heard before all of it has been sent.
    assert len(said) == 100
    sender.send(all_of_it=True)
    sender.send(all_of_it=True)
    got = (here / "rank0.stderr.log").read_bytes()
    assert got.endswith(b"x\n... (what the rank wrote after this stayed on its node)\n")
    assert MOST_BYTES <= got.count(b"x") < MOST_BYTES + PIECE_BYTES


def test_an_account_is_there_whole_or_not_at_all_and_on_this_machine_s_clock(ends: Any, tmp_path: Path) -> None:
    there, here, _, _ = ends
    when = time.perf_counter_ns() - 7_000_000_000
    (there / "error-1.json").write_text(json.dumps({"nanoseconds": when, "message": "m" * 1500}))
    receiver = Receiver(here)
    *first, last = file_messages(RUN, there / "error-1.json")
    assert len(first) >= 3
    for message in first:
        receiver.take(message | {"now": message["now"] + 10**15})
        assert not (here / "error-1.json").exists()
    # The sender's clock is a million seconds ahead of this one.
    receiver.take(last | {"now": last["now"] + 10**15})
    found = json.loads((here / "error-1.json").read_text())
    assert found["message"] == "m" * 1500
    assert found["nanoseconds"] == pytest.approx(when - 10**15, abs=10**9)


def test_beats_come_as_ages_after_the_files(ends: Any) -> None:
    there, here, sender, said = ends
    ago = 5_000_000_000
    heartbeat.write_beat(heartbeat_path(there), Beat(1, "done", 3, time.perf_counter_ns() - ago))
    (there / "measurement.json").write_text("{}")
    sender.send()
    assert [("file" in message, "beats" in message) for message in said] == [(True, False), (False, True)]
    never, beat = heartbeat.read_beats(heartbeat_path(here))
    assert never.nanoseconds == 0
    assert (beat.phase, beat.step) == ("done", 3)
    assert beat.seconds_ago() == pytest.approx(5, abs=0.5)
    sender.send(all_of_it=True)
    assert len(said) == 2


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ""])
def test_a_node_writes_into_the_run_s_folder_alone(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a node sent a file of the name"):
        Receiver(tmp_path / "here").take({"run": RUN, "file": name, "at": 0, "size": 1, "data": "eA==", "now": 0})
    assert list(tmp_path.iterdir()) == []
