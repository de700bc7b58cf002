"""How a run is judged, with folders and exit codes made by hand: no process is started."""

from __future__ import annotations

import dataclasses
import errno
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from campaigns import spec

from bench import heartbeat
from bench.heartbeat import PHASES, Beat, Heartbeat
from bench.run import interrupts
from bench.run.verdict import Frame, exit_name, judge, read_stack, timeout_reason
from bench.wire import (
    EpochMeasurement,
    Measurement,
    RankError,
    error_path,
    heartbeat_path,
    measurement_path,
    stderr_path,
)
from bench.worker import parent
from strategies.places import data_parallel

NO_DATA = dict.fromkeys(("train_inputs", "train_targets", "test_inputs", "test_targets"), "")


@pytest.fixture
def run(tmp_path: Path):
    """A spec whose folder holds a heartbeat: rank 0 after step 5 of the timed region, rank 1 after step 3."""
    made = spec(tmp_path, NO_DATA)
    beat(tmp_path, ("timed", 5), ("timed", 3))
    return made


def beat(folder: Path, *places: tuple[str, int]) -> None:
    heartbeat.create(heartbeat_path(folder), len(places))
    for rank, (phase, step) in enumerate(places):
        slot = Heartbeat(heartbeat_path(folder), rank)
        slot.phase(phase)
        slot.step(step)


def account(folder: Path, rank: int, kind: str, type_: str, *, at: int, phase: str = "timed") -> None:
    RankError(rank, kind, phase, type_, "what it said", at).write(error_path(folder, rank))


def complete(folder: Path) -> None:
    Measurement([EPOCH], 1.0, 1.0, 1.0, 1.0, None, None, [], 1, None, 4, {}, []).write(measurement_path(folder))


EPOCH = EpochMeasurement(
    1, [1.0, 2.0], [[1.0], [2.0]], [[0.0], [0.0]], [[8], [8]], 1.0, 0.5, finite=True, skipped_steps=0,
    parameter_hashes=["a", "a"],
)  # fmt: skip
SOUND = json.loads(json.dumps(dataclasses.asdict(EPOCH)))
WHOLE: dict[str, Any] = {
    "epochs": [SOUND], "launch_seconds": 1.0, "init_seconds": 1.0, "build_seconds": 1.0, "warmup_seconds": 1.0,
    "compile_seconds": None, "flops_per_sample": None, "peak_memory_bytes": [], "host_peak_rss_bytes": 1,
    "host_memory_bytes": None, "gradient_bytes": 4, "details": {}, "warnings": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ("", "Expecting value"),
        ("{}", "no epochs"),
        ('{"epochs"', "Expecting"),
        ("[1, 2]", "[1, 2] stands in place of its fields"),
        ("null", "None stands in place of its fields"),
        (WHOLE | {"epochs": []}, "it has no epoch"),
        (WHOLE | {"epochs": [{}]}, "no epoch"),
        (WHOLE | {"epochs": {"a": 1}}, "epochs is {'a': 1}"),
        (WHOLE | {"epochs": [SOUND | {"timed_seconds": [0.0, 0.0]}]}, "timed_seconds is 0.0"),
        (WHOLE | {"epochs": [SOUND | {"timed_seconds": [-1.0, 1.0]}]}, "timed_seconds is -1.0"),
        (WHOLE | {"epochs": [SOUND | {"timed_seconds": [float("nan"), 1.0]}]}, "timed_seconds is nan"),
        (WHOLE | {"epochs": [SOUND | {"timed_seconds": ["1", 1.0]}]}, "timed_seconds is '1'"),
        (WHOLE | {"epochs": [SOUND | {"timed_seconds": [1.0]}]}, "step_seconds is of 2 ranks, timed_seconds of 1"),
        (WHOLE | {"epochs": [SOUND | {"step_seconds": [[], []]}]}, "no step was timed"),
        (WHOLE | {"epochs": [SOUND | {"step_seconds": [[1.0], [1.0, 2.0]]}]}, "its ranks timed 1, 2 steps"),
        (WHOLE | {"epochs": [SOUND | {"samples": [[8.5], [8]]}]}, "samples is 8.5"),
        (WHOLE | {"launch_seconds": "soon"}, "launch_seconds is 'soon'"),
        (WHOLE | {"gradient_bytes": True}, "gradient_bytes is True"),
        (WHOLE | {"details": ["a"]}, "details is ['a']"),
        (WHOLE | {"warnings": [1]}, "warnings is 1"),
        (WHOLE | {"more": 1}, "unknown field 'more'"),
        (None, "Is a directory"),
    ],
)
def test_a_measurement_that_no_run_can_give_is_a_crash(run, left: object, why: str) -> None:
    path = measurement_path(Path(run.folder))
    if left is None:
        path.mkdir()
    else:
        path.write_text(left if isinstance(left, str) else json.dumps(left))
    outcome = judge({0: 0, 1: 0}, run)
    assert outcome.status == "crashed"
    assert outcome.reason.startswith("rank 0 left a measurement that cannot be used: ")
    assert why in outcome.reason
    assert outcome.measurement is None


def test_a_whole_one_is_read(run) -> None:
    measurement_path(Path(run.folder)).write_text(json.dumps(WHOLE))
    assert judge({0: 0, 1: 0}, run).status == "ok"


@pytest.mark.parametrize("left", ["{}", "[]", '{"rank": "x", "kind": 1}', "nonsense", None])
def test_an_account_that_no_rank_can_give_is_passed_over(run, left: str | None) -> None:
    path = error_path(Path(run.folder), 1)
    path.mkdir() if left is None else path.write_text(left)
    assert judge({0: None, 1: 3}, run).reason == "rank 1 ended with exit code 3 and left no account; see its log"


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (-6, "a line\nterminate called after throwing\n  what(): gone\n",
         "; its log ends with: terminate called after throwing what(): gone"),
        (-6, "Fatal Python error: Aborted\n\nCurrent thread 0x1:\n  File \"x.py\", line 1 in f\n", ""),
        (-11, "", ""),
        # Killed from outside: what it said before has nothing to do with it.
        (-9, "the last line\n", ""),
    ],
)  # fmt: skip
def test_a_rank_that_aborts_is_quoted(run, code: int, log: str, words: str) -> None:
    stderr_path(Path(run.folder), 1).write_text(log)
    reason = judge({0: None, 1: code}, run).reason
    assert reason.endswith(f"(last seen in timed after step 3){words}")


def test_a_ranks_own_error_goes_before_what_its_neighbour_saw_earlier(run) -> None:
    account(Path(run.folder), 0, "collective", "RuntimeError", at=1)
    account(Path(run.folder), 1, "error", "KeyError", at=2)
    outcome = judge({0: 1, 1: 3}, run)
    assert (outcome.status, outcome.reason, outcome.exit_code) == (
        "crashed",
        "rank 1 in timed: KeyError: what it said",
        3,
    )


def test_the_first_of_several_own_errors_is_the_cause(run) -> None:
    account(Path(run.folder), 0, "error", "ValueError", at=20)
    account(Path(run.folder), 1, "error", "KeyError", at=10)
    assert judge({0: 1, 1: 1}, run).reason == "rank 1 in timed: KeyError: what it said"


def test_a_signal_goes_before_what_the_neighbours_saw(run) -> None:
    account(Path(run.folder), 0, "collective", "RuntimeError", at=1)
    outcome = judge({0: 1, 1: -11}, run)
    assert (outcome.reason, outcome.exit_code) == (
        "rank 1 was ended by SIGSEGV (last seen in timed after step 3)",
        -11,
    )


def test_leaving_early_goes_before_what_the_neighbours_saw(run) -> None:
    account(Path(run.folder), 0, "collective", "RuntimeError", at=1)
    outcome = judge({0: 1, 1: 0}, run)
    assert outcome.reason == "rank 1 exited with code 0 before the run was complete (last seen in timed after step 3)"


def test_errors_in_collectives_alone_are_quoted(run) -> None:
    account(Path(run.folder), 0, "collective", "RuntimeError", at=2)
    account(Path(run.folder), 1, "collective", "DistBackendError", at=1)
    assert judge({0: 1, 1: 1}, run).reason == "rank 1 in timed: DistBackendError: what it said"


GROUP_TIMEOUT = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"


def test_a_timeout_of_a_group_names_the_ranks_that_were_waited_for(run) -> None:
    """The rank that gave up waiting tells its own end; which one it waited for is told by who is still alive."""
    folder = Path(run.folder)
    RankError(0, "collective", "timed", "RuntimeError", GROUP_TIMEOUT, 1).write(error_path(folder, 0))
    outcome = judge({0: 1, 1: None}, run)
    assert (outcome.status, outcome.exit_code) == ("timeout", None)
    assert outcome.reason.startswith(
        f"rank 0 in timed: RuntimeError: {GROUP_TIMEOUT}; behind the others: rank 1 in timed after step 3, "
    )
    # At the same step too, where the beats alone do not tell.
    beat(folder, ("timed", 5), ("timed", 5))
    assert "; behind the others: rank 1 in timed after step 5, " in judge({0: 1, 1: None}, run).reason
    beat(folder, ("timed", 5), ("timed", 5), ("timed", 4))
    reason = judge({0: 1, 1: None, 2: None}, run).reason
    assert "behind the others: rank 2 in timed after step 4" in reason
    assert "rank 1" not in reason


def test_ranks_that_wait_for_each_other_in_different_exchanges_are_all_named(run) -> None:
    """Rank 1 left one out and waits in the next: rank 0, which is behind by its beat, is not to blame."""
    beats = heartbeat.read_beats(heartbeat_path(Path(run.folder)))
    wait = Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 7, "all_reduce")
    own = {0: Frame("/home/me/mine.py", 30, "evaluate"), 1: Frame("/home/me/mine.py", 12, "apply")}
    both = {rank: [wait, frame] for rank, frame in own.items()}
    reason = timeout_reason(beats, 30.0, both)
    assert reason.startswith(
        "no result after 30 s; every rank waits for the others, not all in the same exchange: rank 0"
    )
    assert "in evaluate, mine.py line 30; rank 1 in timed after step 3" in reason
    assert reason.endswith("in apply, mine.py line 12")
    assert "behind" not in reason
    # One that waits for nobody is the one that the other waits for.
    busy = timeout_reason(beats, 30.0, {0: [wait], 1: [own[1]]})
    assert "behind the others: rank 1 in timed after step 3" in busy
    # Nor is much known where one shows no stack.
    assert "behind the others: rank 1 in timed after step 3" in timeout_reason(beats, 30.0, {0: [wait]})


def test_a_frame_of_a_frozen_module_hides_no_other() -> None:
    frozen = Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")
    assert frozen.library
    assert not Frame("/home/me/mine.py", 3, "load").library


def test_a_timeout_of_a_group_is_no_timeout_where_nobody_is_left_or_one_was_killed(run) -> None:
    RankError(0, "collective", "timed", "RuntimeError", GROUP_TIMEOUT, 1).write(error_path(Path(run.folder), 0))
    assert judge({0: 1, 1: 1}, run).status == "crashed"
    assert judge({0: 1, 1: -9}, run).reason.startswith("rank 1 was ended by SIGKILL")


def test_an_end_without_any_account(run) -> None:
    assert judge({0: None, 1: 3}, run).reason == "rank 1 ended with exit code 3 and left no account; see its log"
    error_path(Path(run.folder), 1).write_text('{"rank": 1, "ki')
    assert judge({0: None, 1: 3}, run).reason == "rank 1 ended with exit code 3 and left no account; see its log"


@pytest.mark.parametrize(("kind", "status"), [("oom", "oom"), ("error", "crashed"), ("unsupported", "unsupported")])
def test_kinds_become_statuses(run, kind: str, status: str) -> None:
    account(Path(run.folder), 1, kind, "Anything", at=1)
    outcome = judge({0: None, 1: 1}, run)
    assert outcome.status == status
    told = "what it said" if kind == "unsupported" else "rank 1 in timed: Anything: what it said"
    assert outcome.reason == told


def test_a_complete_measurement_counts_and_late_ends_are_warnings(run) -> None:
    folder = Path(run.folder)
    complete(folder)
    beat(folder, ("done", 0), ("close", 0))
    outcome = judge({0: -6, 1: 0}, run)
    assert outcome.status == "ok"
    assert outcome.measurement is not None
    assert outcome.warnings == (
        "rank 0 ended with SIGABRT after the result was complete",
        "rank 1 exited with code 0 before it had closed, after the result was complete",
    )
    assert judge({0: 0, 1: None}, run).warnings == ("rank 1 did not exit after the result was complete",)


def test_what_a_peer_saw_of_a_late_end_does_not_undo_the_result(run) -> None:
    complete(Path(run.folder))
    account(Path(run.folder), 0, "collective", "RuntimeError", at=1, phase="close")
    assert judge({0: 1, 1: -9}, run).status == "ok"
    account(Path(run.folder), 1, "error", "KeyError", at=2, phase="close")
    assert judge({0: 1, 1: 1}, run).reason == "rank 1 in close: KeyError: what it said"


# -- hangs -----------------------------------------------------------------------------------------------------------


def beats(*places: tuple[str, int]) -> list[Beat]:
    now = time.perf_counter_ns()
    return [Beat(rank, phase, step, now - 2_000_000_000) for rank, (phase, step) in enumerate(places)]


COLLECTIVE = Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
BACKWARD = Frame("/x/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward")
OWN = Frame("/home/someone/mine.py", 7, "stuck")


def test_ranks_at_an_earlier_step_or_phase_are_behind() -> None:
    assert timeout_reason(beats(("timed", 5), ("timed", 4), ("timed", 5)), 30) == (
        "no result after 30 s; behind the others: rank 1 in timed after step 4, 2 s without progress"
    )
    assert "behind the others: rank 0 in build, 2 s" in timeout_reason(beats(("build", 0), ("warmup", 0)), 30)


def test_ranks_at_the_same_step_are_told_apart_by_their_stacks() -> None:
    same = beats(("timed", 5), ("timed", 5))
    reason = timeout_reason(same, 30, {0: [BACKWARD], 1: [OWN]})
    assert reason.endswith(
        "behind the others: rank 1 in timed after step 5, 2 s without progress in stuck, mine.py line 7"
    )
    # A library's frame is shown only where the strategy has none of its own.
    inner = Frame("/usr/lib/python3.12/threading.py", 1, "wait")
    assert "in stuck, mine.py line 7" in timeout_reason(same, 30, {0: [COLLECTIVE], 1: [inner, OWN]})


def test_where_the_stacks_do_not_tell_all_ranks_are_shown() -> None:
    same = beats(("timed", 5), ("timed", 5))
    for stacks in ({}, {0: [BACKWARD], 1: [COLLECTIVE]}, {0: [OWN], 1: [OWN]}):
        reason = timeout_reason(same, 30, stacks)
        assert "behind the others" not in reason
        assert "rank 0 in timed" in reason
        assert "rank 1 in timed" in reason


def test_a_rank_that_was_never_seen() -> None:
    assert timeout_reason([], 30) == "no result after 30 s"
    seen = beats(("init", 0))[0]
    assert timeout_reason([seen, Beat(1, "start", 0, 0)], 30).endswith("behind the others: rank 1 never seen")


def test_the_last_stack_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stack"
    assert read_stack(path) == []
    path.write_text(
        'Current thread 0x1 (most recent call first):\n  File "/a/old.py", line 1 in old\n'
        "Current thread 0x1 (most recent call first):\n"
        '  File "/a b/new.py", line 12 in f\n  File "/c.py", line 3 in g\n'
    )
    assert read_stack(path) == [Frame("/a b/new.py", 12, "f"), Frame("/c.py", 3, "g")]


def test_exit_names() -> None:
    assert [exit_name(code) for code in (3, -9, -200, None)] == ["exit code 3", "SIGKILL", "signal 200", "no exit code"]


# -- a rank's own account --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom"),
        (OSError(errno.ENOENT, "No such file"), "error"),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), "collective"),
        (torch.distributed.DistStoreError("wait timeout after 300000ms"), "collective"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"), "collective"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
        (ValueError("a socket of another kind"), "error"),
        (SystemExit(0), "error"),
    ],
)
def test_kinds_of_failure(error: BaseException, kind: str) -> None:
    assert parent.classify(error) == kind


def wrapped(inner: BaseException, *, explicit: bool) -> BaseException:
    """What a strategy raises that catches an error and raises one of its own."""
    try:
        try:
            raise inner
        except BaseException as caught:
            if explicit:
                raise ValueError("training failed") from caught
            raise ValueError("training failed")  # noqa: B904
    except ValueError as outer:
        return outer


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer"), "collective"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
    ],
)
def test_a_wrapped_failure_keeps_its_kind(inner: BaseException, kind: str, explicit: bool) -> None:
    assert parent.classify(wrapped(inner, explicit=explicit)) == kind
    assert parent.classify(wrapped(wrapped(inner, explicit=True), explicit=explicit)) == kind


def test_an_error_that_is_said_to_have_no_cause_is_one_of_its_own() -> None:
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError:
            raise ValueError("the batch is no square") from None

    with pytest.raises(ValueError, match="no square") as caught:
        fail()
    assert parent.classify(caught.value) == "error"


def test_a_ring_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert parent.classify(first) == "error"


def test_a_peers_failure_that_a_strategy_wraps_does_not_hide_the_killed_rank(run) -> None:
    error = wrapped(RuntimeError("gloo: Connection closed by peer"), explicit=True)
    parent.report_failure(error, run, 0, "timed")
    assert judge({0: 1, 1: -9}, run).reason.startswith("rank 1 was ended by SIGKILL")


def test_out_of_memory_names_batch_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = spec(tmp_path, NO_DATA, plan=data_parallel(2, devices=2), device_kind="cuda", batch_global=512)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert parent.describe(torch.OutOfMemoryError("CUDA out of memory"), "oom", gpu, 1) == (
        "256 samples per part did not fit on cuda:2 and cuda:3 of rank 1: CUDA out of memory"
    )


def test_an_exception_that_cannot_speak(run) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert parent.describe(Mute(), parent.classify(Mute()), run, 0) == "(its message could not be made)"


def test_the_account_is_left_even_where_the_log_cannot_be_written(run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = write

    monkeypatch.setattr(sys, "stderr", Full())
    with pytest.raises(OSError, match="No space left"):
        parent.report_failure(KeyError("x"), run, 1, "timed")
    left = RankError.read(error_path(Path(run.folder), 1))
    assert left is not None
    assert (left.rank, left.phase, str(left)) == (1, "timed", "KeyError: 'x'")


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    assert heartbeat.read_beats(path) == []
    heartbeat.create(path, 3)
    slot = Heartbeat(path, 1)
    for phase in PHASES:
        slot.phase(phase)
        assert heartbeat.read_beats(path)[1].phase == slot.current == phase
    slot.step(7)
    found = heartbeat.read_beats(path)
    assert [(b.rank, b.step, b.nanoseconds > 0) for b in found] == [(0, 0, False), (1, 7, True), (2, 0, False)]
    assert found[1].seconds_ago(found[1].nanoseconds + 3_000_000_000) == 3.0


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_interrupts_once(name: str) -> None:
    number = getattr(signal, name)
    # A signal that was being ignored, as nohup has it, stays ignored.
    found = signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    before = signal.getsignal(number)
    with interrupts.interruptible():
        with pytest.raises(interrupts.Interrupted) as caught:
            signal.raise_signal(number)
        assert caught.value.name == name
        signal.raise_signal(number)  # The clean-up goes on.
    assert signal.getsignal(number) is before
    signal.signal(number, found)


def test_a_signal_waits_for_what_must_not_be_cut() -> None:
    done = []

    def work() -> None:
        with interrupts.undisturbed():
            with interrupts.undisturbed():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("after")

    with interrupts.interruptible(), pytest.raises(interrupts.Interrupted):
        work()
    assert done == ["inner", "outer"]


def test_an_error_in_what_must_not_be_cut_goes_before_the_signal() -> None:
    def work() -> None:
        with interrupts.undisturbed():
            signal.raise_signal(signal.SIGTERM)
            raise KeyError

    with interrupts.interruptible(), pytest.raises(KeyError):
        work()


def test_an_ignored_hangup_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_a_campaign_nothing_is_held() -> None:
    with interrupts.undisturbed(), pytest.raises(json.JSONDecodeError):
        json.loads("{")


def test_a_loader_worker_s_error_is_told_in_its_own_words() -> None:
    from bench.worker.parent import _own_words

    text = (
        "Caught RuntimeError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "x.py", line 1, in f\nRuntimeError: no room\n'
    )
    assert _own_words(text) == "Caught RuntimeError in DataLoader worker process 0. RuntimeError: no room"
    assert _own_words("plain") == "plain"
