"""What is done where the platform lacks something: macOS, Windows, and builds of torch without gloo or old GPUs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from campaigns import spec

from bench import kinship
from bench.errors import UserError
from bench.machine import detect, host
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu
from bench.run import interrupts, launch, node, resolve
from bench.run.prepare import Request, prepare_job
from bench.view.progress import Quiet
from bench.wire import stack_path
from bench.worker import account, parent

NO_DATA = dict.fromkeys(("train_inputs", "train_targets", "test_inputs", "test_targets"), "")
TOY = {"workload": "toy", "dataset": "synthetic", "device": "cpu", "devices": [1]}

# -- before anything is started --------------------------------------------------------------------------------------


def refusal(tmp_path: Path) -> str:
    """What prepare_job says; it leaves nothing behind."""
    request = Request(matrix="smoke", overrides=TOY, out=tmp_path / "out", data_root=tmp_path / "data")
    with pytest.raises(UserError) as refused:
        prepare_job(request, Quiet())
    assert list(tmp_path.iterdir()) == []
    return str(refused.value)


@pytest.mark.parametrize(("system", "named"), [("Darwin", "macOS"), ("Windows", "Windows"), ("Linux", "Linux")])
@pytest.mark.parametrize("lacking", ["is_available", "is_gloo_available"])
def test_a_torch_without_gloo_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, named: str, lacking: str
) -> None:
    monkeypatch.setattr(host.platform, "system", lambda: system)
    monkeypatch.setattr(torch.distributed, lacking, lambda: False)
    assert refusal(tmp_path).startswith(f"This build of torch for {named} has no torch.distributed with gloo")


def test_another_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.platform, "system", lambda: "Plan9")
    assert "no build for Plan9" in refusal(tmp_path)


def test_a_gpu_that_torch_has_no_kernels_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Machine("cuda", "an old GPU", 1, 4, (Gpu(0, "GPU-0", "an old GPU", None, "1", (7, 0)),))
    monkeypatch.setattr(detect, "detect", lambda kind: old)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    said = refusal(tmp_path)
    assert "7.0" in said
    assert said.endswith("; hide that GPU with CUDA_VISIBLE_DEVICES, or use --device cpu")
    # A build that does not say what it has kernels for is not judged.
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    resolve._check_architectures(old)


# -- while ranks run -------------------------------------------------------------------------------------------------

FOLLOWER = """
import os, sys, threading, time
from bench import kinship
sys.platform = "darwin"
kinship._FOLLOW_SECONDS = 0.02
kinship.die_with_parent(os.getppid())
for _ in range(5):
    time.sleep(0.05)
print("alive beside its parent", flush=True)
time.sleep(120)
"""
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(120)"


def test_without_the_kernels_help_a_rank_follows_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, FOLLOWER], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"alive beside its parent\n"
        parent.kill()
        # Both hold the pipe: it ends when the second of them does.
        assert parent.communicate(timeout=30) == (b"", None)
    finally:
        parent.kill()
        # A child that outlives its parent would hold up the session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def test_without_the_signal_no_rank_is_asked_for_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end a rank that does not know it."""
    asked: list[list[int]] = []
    node = SimpleNamespace(ask_for_stacks=lambda run, ranks: asked.append(ranks), pump=lambda seconds: None)
    watch = launch.Watched(spec(tmp_path, NO_DATA), node)
    watch._run = SimpleNamespace()
    monkeypatch.setattr(launch, "STACK_SECONDS", 0.0)
    watch._stacks([0])
    assert asked == [[0]]
    monkeypatch.delattr(signal, "SIGUSR1")
    assert watch._stacks([0]) == {}
    assert len(asked) == 1


def test_without_a_register_for_stacks_none_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faulthandler, "register")
    parent.show_stack_when_asked(tmp_path, 0)
    assert not stack_path(tmp_path, 0).exists()


@pytest.mark.parametrize("lacking", [None, "killpg"])
def test_ranks_are_ended_where_there_are_no_sessions(monkeypatch: pytest.MonkeyPatch, lacking: str | None) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        if lacking:
            monkeypatch.delattr(os, lacking)
        kinship.end_session(rank.pid)
        assert rank.wait(10) == -signal.SIGKILL
        # One that is gone already is no trouble.
        kinship.end_session(rank.pid)
    finally:
        rank.kill()


def test_without_a_way_to_look_for_children_none_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "WNOHANG")
    monkeypatch.setattr(kinship.psutil, "Process", lambda *_: pytest.fail("asked for children"))
    assert kinship.end_strays(()) == []


@pytest.mark.parametrize(("platform", "forks"), [("linux", True), ("darwin", False), ("win32", False)])
def test_ranks_are_forked_on_linux_alone(monkeypatch: pytest.MonkeyPatch, platform: str, forks: bool) -> None:
    """Elsewhere libraries that torch loads may hold threads or locks that a fork does not take along."""
    monkeypatch.setattr(node, "sys", SimpleNamespace(platform=platform))
    assert node.can_fork() is forks


@pytest.mark.parametrize("lacking", ["SIGHUP", "SIGTERM"])
def test_the_signals_that_there_are_interrupt(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.delattr(signal, lacking)
    with interrupts.interruptible(), pytest.raises(interrupts.Interrupted, match="SIGINT"):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("platform", "resource", "expected"),
    [
        ("linux", True, 7 * 1024),
        ("darwin", True, 7),
        ("win32", False, 11),
    ],
)
def test_peak_memory_in_the_units_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, resource: bool, expected: int
) -> None:
    counted = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=7))
    # None in its place makes an import fail.
    monkeypatch.setitem(sys.modules, "resource", counted if resource else None)
    monkeypatch.setattr(account, "psutil", SimpleNamespace(Process=lambda: SimpleNamespace(memory_info=windows_memory)))
    monkeypatch.setattr(account, "sys", SimpleNamespace(platform=platform))
    assert account.peak_rss_bytes() == expected


def windows_memory() -> SimpleNamespace:
    return SimpleNamespace(peak_wset=11)
