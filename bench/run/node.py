"""The command's side of an agent: it starts one, sends it orders, and keeps what it says of each run."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.factors import COLD, WARM
from bench.lines import encode, listen
from bench.run.environment import agent_environment
from bench.run.leftovers import end_marked
from bench.run.mirror import Receiver, file_messages
from bench.run.verdict import exit_name
from bench.wire import RunSpec

END_SECONDS = 10.0
LONGEST_ORDER = 8192


def can_fork() -> bool:
    """Whether ranks may be forked from a process that has torch loaded: on Linux."""
    return sys.platform.startswith("linux") and hasattr(os, "fork")


@dataclass
class LiveRun:
    """What an agent has said of one run. `how` is warm or cold, and `why` the reason where that was not asked for.

    waits: for what its ranks wait without the floor (`bench.floor`), "" while they work. step_seconds: of warm-up.
    """

    name: str
    folder: Path
    ranks: int
    how: str
    why: str = ""
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    lost: str = ""
    waits: str = ""
    step_seconds: float | None = None
    ended: bool = False
    receiver: Receiver | None = None

    @property
    def started(self) -> bool:
        return len(self.pids) == self.ranks

    def exit_codes(self) -> dict[int, int | None]:
        """Of every rank, None for those that have not ended."""
        return {rank: self.codes.get(rank) for rank in range(self.ranks)}


class LocalNode:
    """This machine as a node: its agent, made when it is first needed, and anew where it was lost.

    `shared` says that agent and ranks see the files of this process, as they do here; else everything that a run needs
    and leaves goes over the agent's streams, as it has to from another machine.
    """

    def __init__(self, *, shared: bool = True) -> None:
        self.identity: dict[str, Any] = {}
        self._shared = shared
        self._agent: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._runs: dict[str, LiveRun] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_block(self) -> None:
        """The next run's ranks are forked by a new server, so that memory layouts vary between blocks."""
        if self._agent is not None:
            self._send({"do": "block"})

    def start(self, spec: RunSpec, spec_file: Path) -> LiveRun:
        """Ask for the ranks of a run; `pump` tells when they are there."""
        how = spec.start if spec.start != "auto" else (WARM if can_fork() else COLD)
        run = LiveRun(spec.run_id, Path(spec.folder), spec.processes, how)
        self._runs[run.name] = run
        if self._agent is None:
            self._agent = self._start_agent()
        order = {"do": "start", "run": run.name, "how": how, "asked": time.perf_counter_ns()}
        if self._shared:
            order["spec"] = str(spec_file)
        else:
            run.receiver = Receiver(run.folder)
            for piece in file_messages(run.name, spec_file):
                self._send({"do": "take", **piece})
        self._send(order)
        return run

    def go(self, run: LiveRun, **told: Any) -> None:
        """Give the floor to a run that waits."""
        run.waits = ""
        self._send({"do": "go", "run": run.name, **told})

    def ask_for_stacks(self, run: LiveRun, ranks: list[int]) -> None:
        self._send({"do": "ask", "run": run.name, "ranks": ranks})

    def pump(self, seconds: float) -> None:
        """Wait that long for news from the agent, and take in what it says."""
        if self._agent is None:
            time.sleep(seconds)
            return
        try:
            who, messages = self._heard.get(timeout=seconds)
        except queue.Empty:
            return
        if who is not self._agent:
            return
        if messages is None:
            self._lose_agent()
        for message in messages or ():
            self._take_in(message)

    def _take_in(self, message: Mapping[str, Any]) -> None:
        if "agent" in message:
            self.identity = dict(message)
        if "folder" in message:
            self._folder = message["folder"]
        run = self._runs.get(message.get("run", ""))
        if run is None:
            return
        if run.receiver is not None and ("file" in message or "beats" in message):
            run.receiver.take(message)
            return
        if "pid" in message:
            run.pids[message["rank"]] = message["pid"]
        elif "code" in message:
            run.codes[message["rank"]] = message["code"]
        elif "waits" in message:
            run.waits = message["waits"]
            run.step_seconds = message.get("step_seconds", run.step_seconds)
        elif "lost" in message:
            run.lost = f"the process that forks the ranks was ended by {message['lost']}"
        elif "how" in message:
            run.how, run.why = message["how"], message["why"]
        elif message.get("ended"):
            run.ended = True

    def end(self, run: LiveRun) -> None:
        """End what is alive of a run. Where the agent does not answer, it is ended as well, and all it started."""
        self._send({"do": "end", "run": run.name})
        deadline = time.monotonic() + END_SECONDS
        while not run.ended and self._agent is not None and time.monotonic() < deadline:
            self.pump(0.05)
        if not run.ended and self._agent is not None:
            self._agent.kill()
            self._lose_agent()
        self._runs.pop(run.name, None)

    def close(self) -> None:
        """End the agent: it ends whatever it started."""
        if self._agent is None:
            return
        agent, self._agent = self._agent, None
        _close(agent)
        try:
            agent.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        agent = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "bench.run.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=agent_environment(os.environ),
            start_new_session=True,
        )
        assert agent.stdout is not None
        listen(agent.stdout.fileno(), self._heard, agent)
        return agent

    def _send(self, order: Mapping[str, Any]) -> None:
        agent = self._agent
        if agent is None or agent.stdin is None:
            return
        with contextlib.suppress(OSError):
            agent.stdin.write(encode(order, limit=LONGEST_ORDER))
            agent.stdin.flush()

    def _lose_agent(self) -> None:
        """The agent ended by itself. What it started dies with it; what that left behind is looked for."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        ended = exit_name(agent.wait())
        _close(agent)
        if self._shared and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        for run in self._runs.values():
            run.lost = f"the agent that watched the ranks was ended by {ended}"
            run.ended = True
            end_marked(run.folder.parent)


def _close(agent: subprocess.Popen[bytes]) -> None:
    """Send no more: an agent ends at the end of its input."""
    if agent.stdin is not None:
        with contextlib.suppress(OSError):
            agent.stdin.close()
