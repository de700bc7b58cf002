"""Ranks that are forked from a server: as those of a fresh interpreter, and none left whatever is killed or stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from campaigns import await_ranks, await_true, rows, run, save_arrays, servers, spec, start, toy
from fault_strategies import Fault, write_table

from bench.run import agent as agents
from bench.run.launch import launch
from bench.run.leftovers import marked
from bench.run.node import LocalNode, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="ranks are forked on Linux alone")

PLUGIN = '''
"""Ranks that write down where they find themselves."""

import json, multiprocessing, os, random, signal, sys
import numpy
from pathlib import Path
from strategies.ddp import DDP


class Telling(DDP):
    def build(self, *arguments):
        super().build(*arguments)
        rank = self.context.rank
        Path(os.environ["TOLD"], f"rank{rank}.json").write_text(json.dumps({
            "start_method": multiprocessing.get_start_method(allow_none=True),
            "parent": multiprocessing.parent_process() is None,
            "session": os.getsid(0) == os.getpid(),
            "handlers": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
            "pipes": sorted(_target(f) for f in os.listdir("/proc/self/fd") if "pipe:" in _target(f)),
            "argv": sys.argv[1:],
            "environment": {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")},
            "cores": sorted(os.sched_getaffinity(0)),
            "line_buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering],
            "random": [random.random(), float(numpy.random.random())],
        }))


def _target(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


STRATEGIES = {"telling": Telling}
'''


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_arrays(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Path], node: LocalNode
) -> dict[str, dict[int, dict[str, Any]]]:
    """What the ranks of a run found themselves in, by how they were started and rank."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "telling.py").write_text(PLUGIN)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for how in ("warm", "cold"):
            (folder / how).mkdir()
            patch.setenv("TOLD", str(folder / how))
            made = spec(
                folder / f"run-{how}",
                arrays,
                strategy="telling",
                strategy_files=(str(folder / "telling.py"),),
                start=how,
                cores=((0,), (0,)),
            )
            # The variable reaches an agent of its own, since one that runs already has another environment.
            outcome = launch(made)
            assert (outcome.status, outcome.start) == ("ok", how), outcome.reason
            found[how] = {rank: json.loads((folder / how / f"rank{rank}.json").read_text()) for rank in (0, 1)}
    return found


def test_a_forked_rank_finds_itself_as_in_a_fresh_interpreter(told: dict[str, dict[int, dict[str, Any]]]) -> None:
    for rank in (0, 1):
        warm, cold = told["warm"][rank], told["cold"][rank]
        assert (
            warm["environment"]
            == cold["environment"]
            == {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "OMP_NUM_THREADS": "1",
            }
        )
        for name in ("start_method", "parent", "session", "handlers", "cores"):
            assert warm[name] == cold[name], name
        assert warm["session"] is True
        assert warm["cores"] == [0]
        assert warm["line_buffering"] == [True, True]
        # No pipe of the server or the agent beside those of torch: nobody would notice that they have ended.
        assert len(warm["pipes"]) == len(cold["pipes"])


def test_ranks_do_not_draw_the_same_random_numbers(told: dict[str, dict[int, dict[str, Any]]]) -> None:
    drawn = [number for rank in (0, 1) for number in told["warm"][rank]["random"]]
    assert len(set(drawn)) == 4


COUNTING = """
import torch, torch.distributed as dist
from strategies.ddp import DDP

class Counting(DDP):
    def details(self):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return {"collectives": str(backend._get_sequence_number_for_group())}

STRATEGIES = {"counting": Counting}
"""


def test_both_ways_talk_the_same(tmp_path: Path, arrays: dict[str, Path], node: LocalNode) -> None:
    """As many collectives on the strategy's group over the whole run, counted by the group itself."""
    (tmp_path / "counting.py").write_text(COUNTING)
    plugin = {"strategy": "counting", "strategy_files": (str(tmp_path / "counting.py"),)}
    outcomes = [launch(spec(tmp_path / how, arrays, start=how, **plugin), node=node) for how in ("warm", "cold")]
    found = [outcome.measurement.details["collectives"] for outcome in outcomes if outcome.measurement]
    assert len(found) == 2
    assert found[0] == found[1]
    # One all-reduce of the gradients in each of 1 + 3 steps, and what DistributedDataParallel itself needs to begin.
    assert int(found[0]) >= 4


def test_both_ways_compute_the_same(tmp_path: Path, arrays: dict[str, Path], node: LocalNode) -> None:
    """Losses, parameters and samples to the last bit."""
    outcomes = [launch(spec(tmp_path / how, arrays, start=how), node=node) for how in ("warm", "cold")]
    epochs = [outcome.measurement.epochs[0] for outcome in outcomes if outcome.measurement]
    assert len(epochs) == 2
    for name in ("loss_first", "loss_last", "parameter_hashes", "samples", "skipped_steps"):
        assert getattr(epochs[0], name) == getattr(epochs[1], name), name


def test_the_second_run_of_a_block_starts_at_once(tmp_path: Path, arrays: dict[str, Path], node: LocalNode) -> None:
    """Time is not judged here but who did it: one server forks for both, a new block has another."""
    launch(spec(tmp_path / "runs" / "one", arrays, start="warm"), node=node)
    (first,) = servers_of(node)
    launch(spec(tmp_path / "runs" / "two", arrays, start="warm"), node=node)
    assert servers_of(node) == [first]
    node.new_block()
    launch(spec(tmp_path / "runs" / "three", arrays, start="warm"), node=node)
    (other,) = servers_of(node)
    assert other != first


def servers_of(node: LocalNode) -> list[int]:
    assert node._agent is not None
    return [child.pid for child in psutil.Process(node._agent.pid).children()]


def test_the_server_has_one_thread_and_no_plug_in(node: LocalNode, tmp_path: Path, arrays: dict[str, Path]) -> None:
    launch(spec(tmp_path / "run", arrays, start="warm"), node=node)
    (server,) = servers_of(node)
    assert psutil.Process(server).num_threads() == 1


# -- the user's folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_nothing_in_the_current_folder_takes_our_place(tmp_path: Path, how: str) -> None:
    for name in ("strategies", "bench", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('taken from the current folder')\n")
    for name in ("random", "json", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('taken from the current folder')\n")
    command = [sys.executable, "-P", "-m", "bench", *toy(tmp_path / "out", "--start", how, strategies=["ddp"])[3:]]
    done = run(command, cwd=tmp_path, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    assert done.returncode == 0, done.stderr
    assert [(row["status"], row["start"]) for row in rows(tmp_path / "out")] == [("ok", how)]


def test_a_module_from_another_place_is_refused(tmp_path: Path, arrays: dict[str, Path], node: LocalNode) -> None:
    made = spec(tmp_path / "run", arrays, start="warm", origins={"bench": "/elsewhere/bench/__init__.py"})
    outcome = launch(made, node=node)
    assert outcome.status == "crashed"
    assert "bench was imported from" in outcome.reason
    assert "not from /elsewhere/bench/__init__.py" in outcome.reason


# -- where forking is not safe ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("raise RuntimeError('broken')", "it ended with exit code 1 while it loaded what ranks need"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "it has 2 threads once everything is loaded",
        ),
    ],
)
def test_ranks_are_started_cold_where_the_server_is_not_fit_for_forking(tmp_path: Path, module: str, why: str) -> None:
    """A library that fails or starts a thread as it is loaded; ranks of a workload that does not need it run."""
    (tmp_path / "torchvision" / "models").mkdir(parents=True)
    (tmp_path / "torchvision" / "__init__.py").write_text(module)
    (tmp_path / "torchvision" / "models" / "__init__.py").touch()
    (tmp_path / "torchvision" / "models" / "resnet.py").touch()
    done = run(
        toy(tmp_path / "out", strategies=["ddp", "ddp_syncbn"]),
        PYTHONPATH=os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)]),
    )
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "out")
    assert [(row["status"], row["start"]) for row in found] == [("ok", "cold")] * 2
    assert all(f"the process that would fork them is not fit for it: {why}" in row["warnings"] for row in found)


# -- who is killed or stopped -----------------------------------------------------------------------------------------

Kill = Callable[[dict[str, psutil.Process]], None]


def chain(process: psutil.Process, out: Path) -> dict[str, psutil.Process]:
    """The processes of a campaign that is measuring, by what they are."""
    (agent,) = [child for child in process.children() if "bench.run.agent" in child.cmdline()]
    (server,) = servers(out)
    return {"command": process, "agent": agent, "server": server, "rank": server.children()[0]}


def await_nobody(out: Path, agent: psutil.Process, *, seconds: float = 5) -> None:
    await_true(lambda: not marked(out), seconds=seconds, what=f"processes of {out} still alive: {marked(out)}")
    await_true(lambda: not agent.is_running(), seconds=seconds, what="the agent is still alive")


def hanging(folder: Path, *options: str) -> list[str]:
    """A campaign whose only run hangs in its first step."""
    table = write_table(folder / "faults.py", {"hanging": Fault("hang", 1, "first_step")})
    return toy(folder / "out", "--strategy-file", str(table), *options, strategies=["hanging"])


@pytest.mark.parametrize("stopped", [None, "server", "rank"])
def test_the_command_is_killed(tmp_path: Path, stopped: str | None) -> None:
    """Whether or not something that it started can do anything about it."""
    process = start(hanging(tmp_path))
    await_ranks(tmp_path / "out", phase="warmup")
    found = chain(psutil.Process(process.pid), tmp_path / "out")
    if stopped:
        found[stopped].suspend()
    process.kill()
    process.communicate()
    await_nobody(tmp_path / "out", found["agent"], seconds=10)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("agent", "the agent that watched the ranks was ended by SIGKILL"),
        ("server", "the process that forks the ranks was ended by SIGKILL"),
    ],
)
def test_who_starts_the_ranks_is_killed(tmp_path: Path, who: str, reason: str) -> None:
    """The run fails by name and is tried once more; killed again, that is the end of it."""
    out = tmp_path / "out"
    process = start(hanging(tmp_path))
    for attempt in ("", "-try2"):
        await_ranks(out, f"b00-hanging-*{attempt}" if attempt else "b00-hanging-*", phase="warmup")
        found = await_true(lambda: _chain_or_none(process.pid, out), seconds=20, what="a chain of processes")
        found[who].kill()
        await_true(lambda found=found: not found["rank"].is_running(), seconds=5, what="the rank is still alive")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert [(row["status"], row["attempt"], row["reason"]) for row in rows(out)] == [
        ("crashed", "1", reason),
        ("crashed", "2", reason),
    ]
    await_nobody(out, found["agent"])


def _chain_or_none(pid: int, out: Path) -> dict[str, psutil.Process] | None:
    try:
        return chain(psutil.Process(pid), out)
    except (ValueError, IndexError, psutil.Error):
        return None


@pytest.mark.parametrize("who", ["agent", "server", "rank"])
def test_what_is_stopped_is_ended_at_the_deadline(tmp_path: Path, who: str) -> None:
    out = tmp_path / "out"
    process = start(hanging(tmp_path, "--timeout", "12"))
    await_ranks(out, phase="warmup")
    found = chain(psutil.Process(process.pid), out)
    found[who].suspend()
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1, errors
    assert [row["status"] for row in rows(out)] == ["timeout"]
    await_nobody(out, found["agent"])


# -- what a rank leaves -----------------------------------------------------------------------------------------------

LEAVING = '''
"""Rank 1 leaves a process behind, in a way of its own, and ends in a way of its own."""

import os, signal, subprocess, sys, time
from strategies.ddp import DDP

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def fork_only():
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)


def fork_twice():
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(300)
        os._exit(0)


def own_session():
    subprocess.Popen(SLEEP, start_new_session=True, env={})


def ignores_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(SLEEP)


class Leaving(DDP):
    how = None
    end = None

    def close(self):
        if self.context.rank == 1 and self.how:
            globals()[self.how]()
        super().close()

    def apply(self):
        super().apply()
        if self.context.rank == 1 and self.end == "exit0":
            if self.how:
                globals()[self.how]()
            os._exit(0)


STRATEGIES = {
    name: type(name, (Leaving,), {"how": name, "end": None})
    for name in ("fork_only", "fork_twice", "own_session", "ignores_term")
}
'''


@pytest.mark.parametrize("how", ["warm", "cold"])
@pytest.mark.parametrize("leaves", ["fork_only", "fork_twice", "own_session", "ignores_term"])
def test_a_process_that_a_rank_leaves_ends_with_its_run(
    tmp_path: Path, arrays: dict[str, Path], node: LocalNode, leaves: str, how: str
) -> None:
    table = f"STRATEGIES = {{'{leaves}': type('{leaves}', (Leaving,), {{'how': '{leaves}'}})}}\n"
    (tmp_path / "leaving.py").write_text(LEAVING[: LEAVING.index("STRATEGIES")] + table)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    made = spec(tmp_path / "run", arrays, strategy=leaves, strategy_files=(str(tmp_path / "leaving.py"),), start=how)
    outcome = launch(made, node=node)
    assert outcome.status == "ok", outcome.reason
    # The agent and its server stay for the next run; the server may be new.
    assert node._agent is not None
    agent = psutil.Process(node._agent.pid)
    keepers = {agent.pid, *(child.pid for child in agent.children() if "bench.worker.server" in child.cmdline())}
    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = {child.pid for child in psutil.Process().children(recursive=True)} - before - keepers
        if not left:
            break
        time.sleep(0.05)
    assert left == set()


def test_a_rank_that_exits_with_code_0_before_a_result_has_crashed(
    tmp_path: Path, arrays: dict[str, Path], node: LocalNode
) -> None:
    table = "STRATEGIES = {'leaves': type('leaves', (Leaving,), {'end': 'exit0'})}\n"
    (tmp_path / "leaving.py").write_text(LEAVING[: LEAVING.index("STRATEGIES")] + table)
    made = spec(
        tmp_path / "run", arrays, strategy="leaves", strategy_files=(str(tmp_path / "leaving.py"),), start="warm"
    )
    outcome = launch(made, node=node)
    assert (outcome.status, outcome.exit_code) == ("crashed", 0)
    assert outcome.reason.startswith("rank 1 exited with code 0 before the run was complete")


def test_a_run_that_is_ended_while_its_ranks_are_being_forked_is_ended_whole(
    tmp_path: Path, arrays: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks whose pids are not known yet are ended once they are, and the run is not over before."""
    said: list[dict[str, Any]] = []
    ended: list[int] = []
    monkeypatch.setattr(agents, "say", said.append)
    monkeypatch.setattr(agents, "end_session", ended.append)
    agent = agents.Agent()
    run = agents.NodeRun("r", spec(tmp_path, arrays), "spec.json", 0, ordered=2)
    agent._runs["r"] = run
    agent._heed({"do": "end", "run": "r"})
    agent._see_to_ends()
    assert (ended, said) == ([], [])
    run.pids |= {0: 11, 1: 12}
    agent._see_to_ends()
    assert ended == [11, 12]
    run.codes |= {0: -9, 1: -9}
    agent._see_to_ends()
    assert said == [{"run": "r", "ended": True}]
    # One that is not known, or was never started, is over at once.
    agent._heed({"do": "end", "run": "other"})
    assert said[-1] == {"run": "other", "ended": True}
