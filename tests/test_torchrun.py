"""A worker knows only RANK, LOCAL_RANK and WORLD_SIZE, so it runs under torchrun as well, over env://."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import save_arrays, spec

from bench.machine.network import loopback_interface
from bench.wire import Measurement, RankError, error_path, measurement_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(180)
def test_two_ranks_under_torchrun_give_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spec(folder, save_arrays(tmp_path), rendezvous="env://").write(tmp_path / "spec.json")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback_interface() or "lo")
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    options += ["--log-dir", str(tmp_path / "logs")]
    command = ["-m", "torch.distributed.run", *options, "-m", "bench.worker", str(tmp_path / "spec.json")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    measured = Measurement.read(measurement_path(folder))
    assert len(measured.epochs[0].timed_seconds) == 2
    assert measured.epochs[0].samples == [[8, 8, 8], [8, 8, 8]]
    assert len(set(measured.epochs[0].parameter_hashes)) == 1


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What ranks say whose launcher gave them nowhere to meet, by what is wrong; begun together."""
    folder = tmp_path_factory.mktemp("nowhere")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        cases = {
            "unknown host, rank 0": {"RANK": "0", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": taken},
            "unknown host, rank 1": {"RANK": "1", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": taken},
            "taken port": {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": taken},
            "no host": {"RANK": "0", "MASTER_PORT": taken},
        }
        ranks = {name: start_rank(folder / name, variables) for name, variables in cases.items()}
        try:
            # The run's own deadline is ten minutes.
            found = {name: rank.communicate(timeout=60)[1] for name, rank in ranks.items()}
        finally:
            for rank in ranks.values():
                rank.kill()
                rank.wait()
    accounts = {name: RankError.read(error_path(folder / name, int(cases[name]["RANK"]))) for name in cases}
    assert {rank.returncode for rank in ranks.values()} == {1}, found
    return {name: str(account).replace(taken, "TAKEN") for name, account in accounts.items()}


def start_rank(folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    folder.mkdir()
    arrays = save_arrays(folder)
    spec(folder, arrays, rendezvous="env://", timeout_seconds=600.0).write(folder / "spec.json")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "bench.worker", str(folder / "spec.json")],
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "LOCAL_RANK": "0", "WORLD_SIZE": "2", **variables},
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_name_that_does_not_resolve_is_named_within_seconds(failed: dict[str, str], rank: int) -> None:
    assert failed[f"unknown host, rank {rank}"].startswith(
        "ConnectionError: MASTER_ADDR=no-such-host.invalid: no address is known for this host ("
    )


def test_a_taken_port_is_named_within_seconds(failed: dict[str, str]) -> None:
    assert "port: TAKEN" in failed["taken port"]
    assert "EADDRINUSE" in failed["taken port"]


def test_a_missing_address_is_named(failed: dict[str, str]) -> None:
    assert "environment variable MASTER_ADDR expected, but not set" in failed["no host"]
