"""The process on a node that starts the ranks of a campaign there, watches them, and ends them.

    python -P -m bench.run.agent        # started by the command; the standard library and psutil, no torch

Orders come on standard input and what became of them goes to standard output, a line of JSON each (`bench.lines`). It
ends all that it started, and itself, when standard input ends: so nothing outlives the command, whatever ends it.

    {"do": "block"}                                        a new block: the next run gets a new server
    {"do": "start", "run": R, "spec": PATH, "how": "warm"}
    {"do": "take", "run": R, "file": "spec.json", ...}      the specification, where the node sees none of the command's
    {"do": "start", "run": R, "how": "warm"}                files: then all the run's files go through here (`mirror`)
    {"do": "go", "run": R, "turns": 4}                     a run that waits gets the floor, and what is told with it
    {"do": "ask", "run": R, "ranks": [0, 1]}               ranks write their Python stacks
    {"do": "end", "run": R}                                end what is alive of a run

    {"agent": PID, "host": "h1", "python": "3.11.7"}       ready, and who it is
    {"run": R, "file": ...}, {"run": R, "beats": ...}      what its ranks wrote, and where they are (`mirror`)
    {"run": R, "rank": 0, "pid": P} ... {"run": R, "rank": 0, "code": C}
    {"folder": PATH}                                       of its named pipes
    {"run": R, "waits": "turn"}                            all its ranks wait for the floor
    {"run": R, "lost": "SIGKILL"}                          the server that forked its ranks has ended, and they with it
    {"run": R, "how": "cold", "why": "..."}                it was started otherwise than asked for
    {"run": R, "ended": true}
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import heartbeat
from bench.factors import COLD
from bench.kinship import PARENT_VARIABLE, adopt_orphans, end_session, end_strays
from bench.lines import encode, listen
from bench.run.environment import passed_on, rank_environment, server_environment
from bench.run.logs import cut, give_back_middle, logs_of
from bench.run.mirror import Receiver, Sender
from bench.run.pipes import Pipes
from bench.run.verdict import SIGKILL, exit_name
from bench.wire import RunSpec, heartbeat_path

POLL_SECONDS = 0.05
LOOK_SECONDS = 0.2
SERVER_SECONDS = 5.0


@dataclass
class NodeRun:
    """One run's ranks on this node, by rank: pids, exit codes once they have ended, processes of those started cold.

    `ordered` is how many were asked of the server or started: more than have a pid while it forks.
    """

    name: str
    spec: RunSpec
    path: str
    asked: int
    ordered: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ending_since: float | None = None
    sender: Sender | None = None

    @property
    def over(self) -> bool:
        return len(self.codes) == self.ordered

    def end_ranks(self) -> None:
        """Kill those that are not known to have ended."""
        for rank, pid in self.pids.items():
            if rank not in self.codes:
                end_session(pid)

    def tell_all(self) -> None:
        """What its ranks wrote, before anything is said that makes the command look for it."""
        if self.sender is not None:
            self.sender.send(all_of_it=True)


class ServerProcess:
    """The server of the current block, and the runs that wait for it to be ready."""

    def __init__(self, spec: RunSpec, heard: queue.SimpleQueue[Any]) -> None:
        environment = server_environment(spec, os.environ)
        command = [sys.executable, "-P", "-u", "-m", "bench.worker.server", str(os.getpid())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        listen(self.process.stdout.fileno(), heard, self)
        self.ready = False
        self.waiting: list[NodeRun] = []

    def order(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(encode(message, limit=None))
            self.process.stdin.flush()

    def end(self) -> int:
        """Its exit code, once it is gone; its ranks die with it."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(SERVER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait()


class Agent:
    """Does what it is ordered to, until nobody orders any more."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._runs: dict[str, NodeRun] = {}
        self._server: ServerProcess | None = None
        self._unfit = ""
        self._receivers: dict[str, Receiver] = {}
        self._folder: Path | None = None
        self._pipes = Pipes(self._heard, say)
        self._next_look = 0.0

    def serve(self) -> None:
        listen(0, self._heard, "orders")
        say({"agent": os.getpid(), "host": platform.node()[:100], "python": platform.python_version()})
        try:
            while self._hear():
                self._look_at_processes()
                self._mirror()
                self._see_to_ends()
        finally:
            self._end_all()

    def _hear(self) -> bool:
        """Take in what has arrived, or wait a moment for it. False once there will be no more orders."""
        try:
            who, messages = self._heard.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return True
        if who == "orders":
            for order in messages or ():
                self._heed(order)
            return messages is not None
        if who is self._pipes:
            self._hear_ranks(messages or ())
        if who is self._server:
            if messages is None:
                self._lose_server()
            else:
                self._hear_server(messages)
        return True

    def _heed(self, order: Mapping[str, Any]) -> None:
        if order["do"] == "block":
            self._retire_server()
        elif order["do"] == "take":
            self._receiver(order["run"]).take(order)
        elif order["do"] == "start":
            self._start(order)
        elif order["do"] == "go":
            self._pipes.give(order["run"], {key: value for key, value in order.items() if key not in ("do", "run")})
        elif order["do"] == "ask" and order["run"] in self._runs:
            self._ask(self._runs[order["run"]], order["ranks"])
        elif order["do"] == "end":
            self._end(order["run"])

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, order: Mapping[str, Any]) -> None:
        run = self._runs[order["run"]] = self._run_of(order)
        spec = run.spec
        if order["how"] == COLD:
            self._start_cold(run)
            return
        if self._unfit:
            self._start_otherwise(run)
            return
        if self._server is None:
            self._server = ServerProcess(spec, self._heard)
        if self._server.ready:
            self._start_warm(run)
        else:
            self._server.waiting.append(run)

    def _run_of(self, order: Mapping[str, Any]) -> NodeRun:
        name = order["run"]
        if "spec" in order:
            return NodeRun(name, RunSpec.read(Path(order["spec"])), order["spec"], order["asked"])
        # In a folder of this node, and timed by its clock.
        folder = self._receivers.pop(name).folder
        path = folder / "spec.json"
        spec = RunSpec.read(path)
        meeting = spec.rendezvous if "://" in spec.rendezvous else str(folder / "rendezvous")
        spec = replace(spec, folder=str(folder), rendezvous=meeting)
        spec.write(path)
        heartbeat.create(heartbeat_path(folder), spec.processes)
        return NodeRun(name, spec, str(path), time.perf_counter_ns(), sender=Sender(folder, name, say))

    def _receiver(self, name: str) -> Receiver:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="strategybench-node-"))
        if name not in self._receivers:
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            self._receivers[name] = Receiver(folder)
        return self._receivers[name]

    def _start_warm(self, run: NodeRun) -> None:
        assert self._server is not None
        run.ordered = run.spec.processes
        for rank in range(run.spec.processes):
            stdout, stderr = _logs(run.spec, rank)
            environment = self._environment(run, rank)
            files = {"stdout": str(stdout), "stderr": str(stderr), "spec": run.path}
            self._server.order({"run": run.name, "rank": rank, "environment": environment, **files})

    def _environment(self, run: NodeRun, rank: int) -> dict[str, str]:
        pipes = self._pipes.variables(run.name, rank) if run.spec.turns else {}
        return rank_environment(run.spec, rank, asked=run.asked) | pipes

    def _start_otherwise(self, run: NodeRun) -> None:
        say({"run": run.name, "how": COLD, "why": self._unfit})
        self._start_cold(run)

    def _start_cold(self, run: NodeRun) -> None:
        run.ordered = run.spec.processes
        for rank in range(run.spec.processes):
            stdout, stderr = _logs(run.spec, rank)
            environment = self._environment(run, rank) | {PARENT_VARIABLE: str(os.getpid())}
            with stdout.open("wb") as out, stderr.open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-u", "-m", "bench.worker", run.path],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=passed_on(os.environ) | environment,
                    start_new_session=True,
                )
            run.processes[rank] = process
            run.pids[rank] = process.pid
            say({"run": run.name, "rank": rank, "pid": process.pid})

    # -- watching ------------------------------------------------------------------------------------------------

    def _hear_server(self, messages: list[dict[str, Any]]) -> None:
        server = self._server
        assert server is not None
        for message in messages:
            if "server" in message:
                server.ready, self._unfit = True, message["unfit"]
                for run in server.waiting:
                    self._start_otherwise(run) if self._unfit else self._start_warm(run)
                server.waiting.clear()
                continue
            found = self._runs.get(message["run"])
            if found is None:
                continue
            if "pid" in message:
                found.pids[message["rank"]] = message["pid"]
            else:
                found.codes[message["rank"]] = message["code"]
                found.tell_all()
            say(message)

    def _hear_ranks(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            run = self._runs.get(message.get("run", ""))
            told = self._pipes.heard(message, run.spec.processes) if run is not None else None
            if told is not None:
                say(told)

    def _lose_server(self) -> None:
        """The server ended by itself: its ranks are dead, and their runs cannot come to an end."""
        server, self._server = self._server, None
        assert server is not None
        code = server.end()
        if not server.ready:
            self._unfit = f"it ended with {exit_name(code)} while it loaded what ranks need"
            for run in server.waiting:
                self._start_otherwise(run)
            return
        for run in [run for run in self._runs.values() if not run.processes and not run.over]:
            run.codes = dict.fromkeys(run.pids, -SIGKILL)
            run.ordered = len(run.pids)
            run.tell_all()
            say({"run": run.name, "lost": exit_name(code)})
        self._end_strays()

    def _look_at_processes(self) -> None:
        """What a server says of its ranks, for those that this process started itself."""
        for run in self._runs.values():
            for rank, process in run.processes.items():
                if rank not in run.codes and (code := process.poll()) is not None:
                    run.codes[rank] = code
                    self._end_strays()
                    run.tell_all()
                    say({"run": run.name, "rank": rank, "code": code})

    def _mirror(self) -> None:
        """Look at what the ranks have written, and pass it on where it is not in the command's own folder.

        A few times a second and no more: it is done beside timed steps.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for run in self._runs.values():
            for log in logs_of(Path(run.spec.folder)):
                give_back_middle(log)
            if run.sender is not None:
                run.sender.send()

    def _ask(self, run: NodeRun, ranks: list[int]) -> None:
        for rank in ranks:
            if rank in run.pids and rank not in run.codes:
                with contextlib.suppress(OSError):
                    os.kill(run.pids[rank], signal.SIGUSR1)

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, name: str) -> None:
        run = self._runs.get(name)
        if run is None:
            say({"run": name, "ended": True})
            return
        if self._server is not None and run in self._server.waiting:
            self._server.waiting.remove(run)
        run.ending_since = time.monotonic()

    def _see_to_ends(self) -> None:
        """Kill until all have ended. A server that does not tell of it is ended itself."""
        for run in [run for run in self._runs.values() if run.ending_since is not None]:
            run.end_ranks()
            if run.over:
                del self._runs[run.name]
                self._pipes.forget(run.name)
                for log in logs_of(Path(run.spec.folder)):
                    cut(log)
                if run.sender is not None:
                    run.tell_all()
                    shutil.rmtree(run.sender.folder, ignore_errors=True)
                say({"run": run.name, "ended": True})
            elif time.monotonic() - (run.ending_since or 0) > SERVER_SECONDS and self._server is not None:
                self._server.process.kill()

    def _end_strays(self) -> None:
        known = {process.pid for run in self._runs.values() for process in run.processes.values()}
        end_strays(known | ({self._server.process.pid} if self._server else set()))

    def _retire_server(self) -> None:
        self._unfit = ""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _end_all(self) -> None:
        for run in self._runs.values():
            run.end_ranks()
        if self._server is not None:
            # Not asked to end but ended: it may be stopped.
            self._server.process.kill()
            self._server.process.wait()
        end_strays(())
        self._pipes.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def say(message: Mapping[str, Any]) -> None:
    # Nobody listens any more where the command is gone; what is to be done then is done at the end of the input.
    with contextlib.suppress(OSError):
        os.write(1, encode(message))


def _logs(spec: RunSpec, rank: int) -> tuple[Path, Path]:
    folder = Path(spec.folder)
    return folder / f"rank{rank}.stdout.log", folder / f"rank{rank}.stderr.log"


def main() -> None:
    adopt_orphans()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Ends come by the end of the input alone. A handler and not SIG_IGN, which ranks would inherit.
            signal.signal(getattr(signal, name), lambda *_: None)
    Agent().serve()


if __name__ == "__main__":
    main()
