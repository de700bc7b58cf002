"""A worker knows only RANK, LOCAL_RANK and WORLD_SIZE, so it runs under torchrun as well, over env://."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import save_arrays, spec

from bench.machine import loopback_interface
from bench.spec import Measurement, measurement_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(180)
def test_two_ranks_under_torchrun_give_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spec(folder, save_arrays(tmp_path), store="env://", parent_pid=0).write(tmp_path / "spec.json")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback_interface() or "lo")
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    options += ["--log-dir", str(tmp_path / "logs")]
    command = ["-m", "torch.distributed.run", *options, "-m", "bench.worker", str(tmp_path / "spec.json")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    measured = Measurement.read(measurement_path(folder))
    assert len(measured.epochs[0].timed_seconds) == 2
    assert measured.epochs[0].samples == 48
    assert len(set(measured.epochs[0].parameter_hashes)) == 1
