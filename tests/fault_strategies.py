"""Strategies that fail on purpose: what goes wrong, on which rank, in which phase.

A campaign of many of them is one `bench run` with a strategy file that `write_table` makes:

    write_table(path, {"raise_build_0": Fault("raise", rank=0, phase="build")})
    # bench run --strategy-file path --strategies raise_build_0 --devices 2 --workload toy
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import psutil
import torch
import torch.distributed as dist

from strategies.ddp import DDP
from strategies.places import Asked, Plan

PHASES = ("build", "first_step", "later_step", "close")
LATER_STEP = 3
"""One step of warm-up and two timed ones: the fault strikes in the second timed step."""

SLOW_SECONDS = 0.3
GROUP_SECONDS = 5


def _ancestor(module: str) -> int:
    """The process above this one that runs that module and is no copy of itself, as a forked rank is of its server."""
    return next(p.pid for p in reversed(psutil.Process().parents()) if module in p.cmdline())


def _command() -> int:
    """The campaign's own process: the parent of the agent that watches this rank."""
    return psutil.Process(_ancestor("bench.run.agent")).ppid()


class DeliberateError(Exception):
    """Raised by a fault; its name in a reason shows that the failing rank was heard."""


@dataclass(frozen=True)
class Fault:
    """`kind` is one of the methods `_do_<kind>` below; `none` does nothing, `outside` is somebody else's to do.

    What ends the parent happens once: `mark` is a file that says it has happened.
    """

    kind: str
    rank: int = 0
    phase: str = "later_step"
    mark: str = ""


def write_table(path: Path, faults: Mapping[str, Fault]) -> Path:
    """A strategy file whose table holds one strategy for each fault."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})",
        "from fault_strategies import Fault, faulty",
        "STRATEGIES = {",
        *(f"    {name!r}: faulty({fault!r})," for name, fault in faults.items()),
        "}",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def faulty(fault: Fault) -> type[DDP]:
    """A DDP strategy with this fault; those of the loss scaler at the precision that has one."""
    scaled = {"default_precision": {"cpu": "amp-fp16", "cuda": "amp-fp16"}} if fault.kind.startswith("scaler_") else {}
    return type("Faulty", (Faulty,), {"fault": fault, **scaled})


class Faulty(DDP):
    fault: ClassVar[Fault]
    count = 0

    def build(self, context, make_model, make_optimizer) -> None:
        self.context = context
        # Before the wrap: the peers are in the collectives of DistributedDataParallel's constructor then.
        self.strike("build")
        super().build(context, make_model, make_optimizer)
        if self.fault.kind == "hang_in_group":
            self.group = dist.new_group(timeout=timedelta(seconds=GROUP_SECONDS))
        if self.fault.kind == "scaler_before" and self.fault.rank == context.rank:
            # Called with this rank's own gradient, before it is exchanged.
            for parameter in self.model.parameters():
                parameter.register_hook(lambda own: own + torch.inf if self.count == LATER_STEP else own)

    def forward_backward(self, micro):
        self.count += 1
        if self.count == 1:
            self.strike("first_step")
        if self.count == LATER_STEP:
            self.strike("later_step")
            if self.fault.kind == "hang_in_group":
                dist.all_reduce(torch.zeros(1), group=self.group)
        loss = super().forward_backward(micro)
        if self.fault.kind == "no_loss":
            return None
        if self.fault.rank != self.context.rank:
            return loss
        if self.fault.kind == "scaler_after" and self.count == LATER_STEP:
            next(self.model.parameters()).grad.fill_(torch.inf)
        return _changed(loss, self.fault)

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        self.strike("evaluate")
        return super().predict(inputs)

    def close(self) -> None:
        self.strike("close")

    def details(self) -> Mapping[str, str]:
        return {"omp": os.environ.get("OMP_NUM_THREADS", ""), "threads": str(torch.get_num_threads())}

    def strike(self, phase: str) -> None:
        if phase == self.fault.phase and self.context.rank == self.fault.rank:
            getattr(self, f"_do_{self.fault.kind}")(phase)

    def _do_none(self, phase: str) -> None:
        pass

    _do_outside = _do_none

    def _do_raise(self, phase: str) -> None:
        raise DeliberateError(f"rank {self.context.rank} was told to fail in {phase}")

    def _do_raise_like_a_peer(self, phase: str) -> None:
        raise RuntimeError("gloo: the socket of this test was closed")

    def _do_long(self, phase: str) -> None:
        raise DeliberateError('long\ncell,"quoted"\0\udcff ' * 500)

    def _do_hang(self, phase: str) -> None:
        hang_on_purpose()

    def _do_hang_in_group(self, phase: str) -> None:
        hang_on_purpose()

    def _do_stop(self, phase: str) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _do_slow(self, phase: str) -> None:
        time.sleep(SLOW_SECONDS)

    def _do_kill(self, phase: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _do_segfault(self, phase: str) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def _do_exit0(self, phase: str) -> None:
        os._exit(0)

    def _do_sysexit0(self, phase: str) -> None:
        sys.exit(0)

    def _do_abort_at_exit(self, phase: str) -> None:
        import atexit

        atexit.register(os.abort)

    def _do_linger_at_exit(self, phase: str) -> None:
        import atexit

        atexit.register(hang_on_purpose)

    def _do_interrupt_parent(self, phase: str) -> None:
        self._signal_once(signal.SIGINT, _command())

    def _do_kill_parent(self, phase: str) -> None:
        self._signal_once(signal.SIGKILL, _command())

    def _do_kill_agent(self, phase: str) -> None:
        self._signal_once(signal.SIGKILL, _ancestor("bench.run.agent"))

    def _do_kill_server(self, phase: str) -> None:
        self._signal_once(signal.SIGKILL, _ancestor("bench.worker.server"))

    def _signal_once(self, number: signal.Signals, pid: int) -> None:
        mark = Path(self.fault.mark)
        if not mark.exists():
            mark.touch()
            os.kill(pid, number)
            # The run does not end before the parent has ended it.
            hang_on_purpose()

    def _do_fill_disk(self, phase: str) -> None:
        """Leave no byte free where the mark is."""
        with Path(self.fault.mark).open("wb", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def _do_leave_a_child(self, phase: str) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def _do_oom(self, phase: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    def _do_memory(self, phase: str) -> None:
        # Refused at once by the allocator: no machine has an exbibyte.
        torch.empty(2**60, dtype=torch.uint8)

    def _do_exhaust(self, phase: str) -> None:
        """Take memory and use it until there is no more."""
        kept = []
        while True:
            kept.append(torch.ones(2**24))

    def _do_exhaust_own(self, phase: str) -> None:
        """The same where the limit is the process's own."""
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**28,) * 2)
        self._do_exhaust(phase)

    def _do_noise(self, phase: str) -> None:
        for _ in range(20_000):
            print("a line that a plug-in prints for no good reason")

    # What these do is done to the loss, or to the gradients.
    _do_wrong_type = _do_wrong_shape = _do_no_loss = _do_none
    _do_nan = _do_inf = _do_scaler_none = _do_scaler_before = _do_scaler_after = _do_none

    def _do_diverge(self, phase: str) -> None:
        with torch.no_grad():
            next(iter(self.model.parameters())).add_(1.0)

    def plan(self, asked: Asked) -> Plan:
        return {"processes": asked.devices} if self.fault.kind == "wrong_plan" else super().plan(asked)


def hang_on_purpose() -> None:
    while True:
        time.sleep(3600)


def _changed(loss: torch.Tensor, fault: Fault):
    if fault.kind == "wrong_type":
        return "0.5"
    if fault.kind == "wrong_shape":
        return loss.expand(2)
    return loss * float(fault.kind) if fault.kind in ("nan", "inf") else loss
