"""What becomes of a run in which something fails: real processes on the CPU, one campaign of many faulty strategies."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from campaigns import Started, assert_none_left, by_strategy, log, rows, run, save_arrays, spec, start, toy, workers
from fault_strategies import PHASES, Fault, write_table

from bench import heartbeat
from bench.run.node import LocalNode
from bench.wire import heartbeat_path

RAISING = {f"raise_{phase}_{rank}": Fault("raise", rank, phase) for phase in PHASES for rank in (0, 1)}
FAULTS = {
    **RAISING,
    "kill_first_0": Fault("kill", 0, "first_step"),
    "kill_later_1": Fault("kill", 1),
    "segfault_later_1": Fault("segfault", 1),
    "exit0_later_1": Fault("exit0", 1),
    "sysexit0_build_0": Fault("sysexit0", 0, "build"),
    "oom_1": Fault("oom", 1),
    "memory_0": Fault("memory", 0, "build"),
    "slow_1": Fault("slow", 1),
    "abort_at_exit_1": Fault("abort_at_exit", 1),
    "kill_close_1": Fault("kill", 1, "close"),
    "nan_1": Fault("nan", 1),
    "diverge_1": Fault("diverge", 1),
    "wrong_type_0": Fault("wrong_type", 0),
    "wrong_plan": Fault("wrong_plan"),
    "long_1": Fault("long", 1),
    "like_a_peer_1": Fault("raise_like_a_peer", 1),
    "child_1": Fault("leave_a_child", 1),
    "noise_0": Fault("noise", 0),
}
HANGING = {
    "hang_later_1": Fault("hang", 1),
    "hang_build_0": Fault("hang", 0, "build"),
    "linger_1": Fault("linger_at_exit", 1),
    "stop_later_1": Fault("stop", 1),
    "hang_in_group_1": Fault("hang_in_group", 1),
}
# Measured in the time that the hanging ones wait.
BESIDE = {
    "inf_1": Fault("inf", 1),
    "scaler_none": Fault("scaler_none"),
    "scaler_before_1": Fault("scaler_before", 1),
    "scaler_after_1": Fault("scaler_after", 1),
    "wrong_shape_1": Fault("wrong_shape", 1),
    "no_loss": Fault("no_loss"),
    "exhaust_own_1": Fault("exhaust_own", 1),
}
PHASE_OF = {"build": "build", "first_step": "warmup", "later_step": "timed", "close": "close"}
KERNEL = ", which is how the kernel ends a process when memory runs out"
SECRET = "hunter2-correct-horse-battery"


@pytest.fixture(scope="module", autouse=True)
def _nobody_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    assert workers(tmp_path_factory.getbasetemp()) == []


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Started]]:
    """A campaign that mostly waits, beside the one that works: deadlines long enough for a busy machine cost little."""
    folder = tmp_path_factory.mktemp("hanging")
    faults = {**HANGING, **BESIDE}
    table = write_table(folder / "faults.py", faults)
    process = start(
        toy(folder / "out", "--strategy-file", str(table), "--timeout", "20", strategies=list(faults)),
    )
    yield folder / "out", process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def hung(hanging: tuple[Path, Started], campaign: Path) -> Path:
    """That campaign's folder once it has ended."""
    out, process = hanging
    _, errors = process.communicate(timeout=270)
    assert process.returncode == 1, errors
    return out


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, hanging: object) -> Path:
    """One campaign over all faults, in an environment with secrets and a preset thread count."""
    folder = tmp_path_factory.mktemp("faults")
    table = write_table(folder / "faults.py", FAULTS)
    done = run(
        toy(folder / "out", "--strategy-file", str(table), strategies=["ddp", *FAULTS]),
        timeout=280,
        OMP_NUM_THREADS="7",
        AWS_SECRET_ACCESS_KEY=SECRET,
        NCCL_DEBUG=f"https://user:{SECRET}@example.org",
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def table(campaign: Path) -> dict[str, dict[str, str]]:
    return by_strategy(campaign)


def test_every_strategy_has_its_row_and_no_rank_is_left(campaign: Path, table: dict[str, dict[str, str]]) -> None:
    assert set(table) == {"ddp", *FAULTS}
    assert table["ddp"]["status"] == "ok"
    assert_none_left(campaign, seconds=0.1)
    assert not list(campaign.glob("logs/*/rendezvous"))
    assert not (campaign / "running.json").exists()


@pytest.mark.parametrize("name", RAISING)
def test_a_rank_that_raises_is_quoted(campaign: Path, table: dict[str, dict[str, str]], name: str) -> None:
    fault, row = RAISING[name], table[name]
    assert row["status"] == "crashed"
    assert row["exit_code"] == "1"
    assert row["reason"] == (
        f"rank {fault.rank} in {PHASE_OF[fault.phase]}: "
        f"DeliberateError: rank {fault.rank} was told to fail in {fault.phase}"
    )
    assert row["samples_per_second"] == ""
    own = log(campaign, name, fault.rank)
    assert "Traceback (most recent call last)" in own
    assert "in _do_raise" in own


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("kill_first_0", "-9", f"rank 0 was ended by SIGKILL{KERNEL} (last seen in warmup)"),
        ("kill_later_1", "-9", f"rank 1 was ended by SIGKILL{KERNEL} (last seen in timed after step 1)"),
        ("segfault_later_1", "-11", "rank 1 was ended by SIGSEGV (last seen in timed after step 1)"),
        ("exit0_later_1", "0", "rank 1 exited with code 0 before the run was complete "
         "(last seen in timed after step 1)"),
        ("sysexit0_build_0", "1", "rank 0 in build: SystemExit: 0"),
        ("like_a_peer_1", "1", "rank 1 in timed: RuntimeError: gloo: the socket of this test was closed"),
        ("wrong_type_0", "1", "rank 0 in gather: TypeError: forward_backward() returned a str; "
         "a tensor of one value, or None, is due"),
        ("wrong_plan", "", "plan() failed: TypeError: it returned dict, not strategies.places.Plan"),
    ],
)  # fmt: skip
def test_a_rank_that_ends_without_a_word_is_named(
    table: dict[str, dict[str, str]], name: str, code: str, reason: str
) -> None:
    assert (table[name]["status"], table[name]["exit_code"], table[name]["reason"]) == ("crashed", code, reason)


def test_a_loss_of_several_values_is_named(hung: Path) -> None:
    row = by_strategy(hung)["wrong_shape_1"]
    assert (row["status"], row["exit_code"]) == ("crashed", "1")
    assert row["reason"] == (
        "rank 1 in gather: TypeError: forward_backward() returned a Tensor of shape (2,); "
        "a tensor of one value, or None, is due"
    )


def test_a_loss_that_no_rank_returns_is_named(hung: Path) -> None:
    """Every rank finds it when they gather, so that any of them may be the one quoted."""
    row = by_strategy(hung)["no_loss"]
    assert (row["status"], row["exit_code"]) == ("crashed", "1")
    assert row["reason"].startswith(("rank 0 ", "rank 1 "))
    assert row["reason"].partition(" in ")[2] == (
        "gather: TypeError: forward_backward() returned None on every rank; one must return the mean loss"
    )


def test_the_timeout_of_a_group_names_the_rank_that_hangs(hung: Path) -> None:
    """A group of the strategy's own gives up before the run's deadline; the rank that says so was waiting."""
    row = by_strategy(hung)["hang_in_group_1"]
    assert row["status"] == "timeout"
    assert row["reason"].startswith("rank 0 in timed: RuntimeError: ")
    assert "Timed out waiting 5000ms" in row["reason"]
    assert "; behind the others: rank 1 in timed after step 1, " in row["reason"]
    assert "Traceback (most recent call last)" in log(hung, "hang_in_group_1", 0)


def test_memory_that_really_runs_out_is_oom(hung: Path) -> None:
    """Up to the process's own limit the allocator gives; then it refuses, in the middle of a step."""
    row = by_strategy(hung)["exhaust_own_1"]
    assert row["status"] == "oom"
    assert "8 samples per part did not fit on cpu of rank 1: " in row["reason"]
    assert "can't allocate memory" in row["reason"]


def test_out_of_memory_names_batch_and_device_and_the_matrix_goes_on(table: dict[str, dict[str, str]]) -> None:
    assert table["oom_1"]["status"] == table["memory_0"]["status"] == "oom"
    assert table["oom_1"]["reason"] == (
        "rank 1 in timed: OutOfMemoryError: 8 samples per part did not fit on cpu of rank 1: "
        "CUDA out of memory. Tried to allocate 20.00 GiB"
    )
    assert table["memory_0"]["reason"].startswith(
        "rank 0 in build: RuntimeError: 8 samples per part did not fit on cpu of rank 0: "
    )
    assert "DefaultCPUAllocator: can't allocate memory" in table["memory_0"]["reason"]


def test_a_slow_rank_is_measured_at_its_pace(campaign: Path, table: dict[str, dict[str, str]]) -> None:
    assert table["slow_1"]["status"] == "ok"
    assert float(table["slow_1"]["timed_seconds"]) >= 0.3
    by_step = [row for row in rows(campaign, "steps.csv") if row["run_id"] == table["slow_1"]["run_id"]]
    # Strategy's third step is the timed region's second; the healthy rank waits in it for the slow one.
    for rank in ("0", "1"):
        slowest = max((row for row in by_step if row["rank"] == rank), key=lambda row: float(row["seconds"]))
        assert slowest["step"] == "1"
        assert float(slowest["seconds"]) >= 0.15


@pytest.mark.parametrize(("name", "signal_name"), [("abort_at_exit_1", "SIGABRT"), ("kill_close_1", "SIGKILL")])
def test_an_end_after_the_result_is_a_warning(table: dict[str, dict[str, str]], name: str, signal_name: str) -> None:
    row = table[name]
    assert row["status"] == "ok"
    assert f"rank 1 ended with {signal_name} after the result was complete" in row["warnings"]
    assert float(row["samples_per_second"]) > 0


def test_a_rank_that_hangs_in_a_step_is_told_from_the_one_that_waits(hung: Path) -> None:
    """Both ranks are at the same step: only their stacks say which of them is in the collective."""
    row = by_strategy(hung)["hang_later_1"]
    assert row["status"] == "timeout"
    assert row["reason"].startswith("no result after 20 s; behind the others: rank 1 in timed after step 1, ")
    assert "in hang_on_purpose, fault_strategies.py line" in row["reason"]
    assert "rank 0" not in row["reason"]
    stack = next(hung.glob("logs/b00-hang_later_1-*/rank1.stack.log")).read_text()
    assert "hang_on_purpose" in stack


def test_a_rank_that_is_stopped_is_told_from_the_one_that_waits(hung: Path) -> None:
    """It cannot be asked for its stack; the rank that can is seen to wait."""
    row = by_strategy(hung)["stop_later_1"]
    assert row["status"] == "timeout"
    assert row["reason"].startswith("no result after 20 s; behind the others: rank 1 in timed after step 1, ")
    assert "rank 0" not in row["reason"]
    assert next(hung.glob("logs/b00-stop_later_1-*/rank0.stack.log")).read_text()
    assert not list(hung.glob("logs/b00-stop_later_1-*/rank1.stack.log"))


def test_a_rank_that_hangs_while_building_is_named(hung: Path) -> None:
    row = by_strategy(hung)["hang_build_0"]
    assert row["status"] == "timeout"
    assert row["reason"].startswith("no result after 20 s; behind the others: rank 0 in build, ")
    assert "rank 1" not in row["reason"]


def test_a_rank_that_does_not_exit_after_the_result_is_a_warning(hung: Path) -> None:
    row = by_strategy(hung)["linger_1"]
    assert row["status"] == "ok"
    assert "rank 1 did not exit after the result was complete" in row["warnings"]


def test_wrong_numbers_are_invalid(table: dict[str, dict[str, str]], hung: Path) -> None:
    for row in (table["nan_1"], by_strategy(hung)["inf_1"]):
        assert (row["status"], row["reason"]) == ("invalid", "a loss is not finite")
        assert row["loss_first"] == row["loss_last"] == ""
    assert table["diverge_1"]["status"] == "invalid"
    assert "parameters differ between replicas" in table["diverge_1"]["reason"]


def test_ranks_skip_a_step_of_the_loss_scaler_together_or_are_invalid(hung: Path) -> None:
    """inf in one rank's gradients reaches all in the exchange; put in after it, that rank alone skips the step."""
    table = by_strategy(hung)
    plain, before, after = (table[f"scaler_{name}"] for name in ("none", "before_1", "after_1"))
    assert [row["precision"] for row in (plain, before, after)] == ["amp-fp16"] * 3
    assert (plain["status"], before["status"]) == ("ok", "ok")
    assert int(before["skipped_steps"]) == int(plain["skipped_steps"]) + 1
    assert after["status"] == "invalid"
    assert "parameters differ between replicas" in after["reason"]


def test_an_endless_message_is_cut_and_stays_one_line(campaign: Path, table: dict[str, dict[str, str]]) -> None:
    reason = table["long_1"]["reason"]
    assert reason.startswith('rank 1 in timed: DeliberateError: long cell,"quoted"')
    assert reason.endswith("... (whole in the log)")
    assert len(reason) < 700
    # A heading and one line for each row, whatever the messages hold.
    assert len((campaign / "runs.csv").read_bytes().splitlines()) == 1 + len(rows(campaign))
    assert len(log(campaign, "long_1", 1)) > 5000


def test_what_a_rank_started_ends_with_it(table: dict[str, dict[str, str]]) -> None:
    assert table["child_1"]["status"] == "ok"
    words = ["-c", "import time; time.sleep(600)"]
    assert [p.pid for p in psutil.process_iter() if _cmdline(p)[1:] == words and _of_this_session(p)] == []


def _of_this_session(process: psutil.Process) -> bool:
    try:
        return process.environ().get("STRATEGYBENCH_TEST_SESSION") == os.environ["STRATEGYBENCH_TEST_SESSION"]
    except psutil.Error:
        return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_rank_that_prints_a_lot_prints_into_its_log(campaign: Path, table: dict[str, dict[str, str]]) -> None:
    assert table["noise_0"]["status"] == "ok"
    text = next(campaign.glob("logs/b00-noise_0-*/rank0.stdout.log")).read_text()
    assert text.count("for no good reason\n") == 20_000


def test_preset_thread_counts_do_not_reach_the_ranks(table: dict[str, dict[str, str]]) -> None:
    assert table["slow_1"]["threads_per_device"] == "1"
    assert table["slow_1"]["details"] == "omp=1;threads=1"


def test_no_secret_reaches_a_file(campaign: Path) -> None:
    files = [path for path in campaign.rglob("*") if path.is_file()]
    assert len(files) > 30
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    facts = json.loads((campaign / "environment.json").read_text())
    assert facts["volatile"]["environment_variables"]["OMP_NUM_THREADS"] == "7"


# -- single runs, with deadlines and data of their own ---------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_in_evaluation_is_quoted(tmp_path: Path, node: LocalNode, rank: int) -> None:
    from bench.run.launch import launch

    table = write_table(tmp_path / "faults.py", {"f": Fault("raise", rank, "evaluate")})
    arrays = save_arrays(tmp_path / "data", workload="cnn-cifar100")
    folder = tmp_path / "run"
    outcome = launch(
        spec(
            folder,
            arrays,
            workload="cnn-cifar100",
            strategy="f",
            strategy_files=(str(table),),
            steps=4,
            whole_epoch=True,
        ),
        node=node,
    )
    assert outcome.status == "crashed"
    assert outcome.reason == f"rank {rank} in evaluate: DeliberateError: rank {rank} was told to fail in evaluate"
    # No step beats there, so that its last beat is from when evaluation began: all was over within seconds of it.
    beat = heartbeat.read_beats(heartbeat_path(folder))[rank]
    assert (beat.phase, beat.step) == ("evaluate", 0)
    assert beat.seconds_ago() < 10
    text = (folder / f"rank{rank}.stderr.log").read_text()
    assert "Traceback (most recent call last)" in text
    assert "in _do_raise" in text


def test_a_stale_rendezvous_and_stale_accounts_do_not_speak_for_a_run(
    tmp_path: Path, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.run import launch as launching
    from bench.run.launch import launch

    # Looked at in every poll: the group of so short a run is up for tenths of a second.
    monkeypatch.setattr(launching, "PROGRESS_SECONDS", 0.0)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rendezvous").write_bytes(os.urandom(4096))
    (folder / "error-0.json").write_text(
        json.dumps({"rank": 0, "kind": "error", "phase": "build", "type": "Old", "message": "stale", "nanoseconds": 1})
    )
    (folder / "measurement.json").write_text("{}")
    listening: list[str] = []

    def look(_: object) -> None:
        for pid in pids:
            listening.extend(_listening(pid))

    pids: list[int] = []
    outcome = launch(spec(folder, save_arrays(tmp_path / "data")), node=node, on_start=pids.extend, on_progress=look)
    assert (outcome.status, outcome.reason) == ("ok", "")
    # While it ran, every listening socket of its ranks was on the loopback interface; and there were some.
    assert listening
    assert [address for address in listening if address not in ("127.0.0.1", "::1")] == []


def _listening(pid: int) -> list[str]:
    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.Error:
        return []
    return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]


def test_a_socket_on_all_addresses_would_be_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)):
        assert "0.0.0.0" in _listening(os.getpid())


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_an_interface_that_does_not_exist_is_named_before_anything_starts(tmp_path: Path, name: str) -> None:
    done = run(toy(tmp_path / "out"), timeout=60, **{name: "nosuch0"})
    assert done.returncode == 2
    assert "nosuch0" in done.stderr
    assert name in done.stderr
    assert not (tmp_path / "out").exists()


def test_more_devices_than_cores_and_unequal_parts_are_refused(tmp_path: Path) -> None:
    done = run(toy(tmp_path / "out", devices="4096"), timeout=60)
    assert done.returncode == 2
    assert "4096" in done.stderr
    done = run(toy(tmp_path / "out", "--batch", "15"), timeout=60)
    assert done.returncode == 2
    assert "a global batch of 15 does not divide into 2 parts" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_disk_refuses_the_folder_of_a_run(tmp_path: Path) -> None:
    """A file stands where the run's folder should be made: as a user's mistake, in one message."""
    from bench.errors import UserError
    from bench.run.launch import launch

    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(UserError, match=r"could not write to .*run.*what was measured before is kept"):
        launch(spec(tmp_path / "logs" / "run", save_arrays(tmp_path / "data")))


def test_signals_keep_their_handlers(tmp_path: Path, node: LocalNode) -> None:
    """torch's launcher would leave handlers of its own that raise an exception nobody here expects."""
    from bench.run.launch import launch

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    during: list[list[object]] = []
    outcome = launch(
        spec(tmp_path / "run", save_arrays(tmp_path / "data"), strategy="nosuch"),
        node=node,
        on_start=lambda pids: during.append([signal.getsignal(number) for number in numbers]),
    )
    assert outcome.status == "crashed"
    assert "unknown strategy 'nosuch'" in outcome.reason
    assert during == [before]
    assert [signal.getsignal(number) for number in numbers] == before
