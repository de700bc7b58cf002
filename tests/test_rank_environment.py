"""What ranks and their server are started with: the same threads and numbering whatever the user's shell says."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import spec

from bench.machine import network
from bench.run.environment import UNDONE, load_time_variables, rank_environment, server_environment

NO_DATA = dict.fromkeys(("train_inputs", "train_targets", "test_inputs", "test_targets"), "")


def test_the_environment_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "loopback_interface", lambda: "lo0")
    told = rank_environment(spec(tmp_path, NO_DATA, threads_per_device=3), 1, asked=7)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "STRATEGYBENCH_SPAWN_NS")
    assert {name: told[name] for name in names} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "STRATEGYBENCH_SPAWN_NS": "7",
    }
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_DEVICE_ORDER"]) == ("", "PCI_BUS_ID")
    on_gpu = rank_environment(spec(tmp_path, NO_DATA, device_kind="cuda"), 0, asked=0)
    assert "CUDA_VISIBLE_DEVICES" not in on_gpu
    assert on_gpu["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
@pytest.mark.parametrize("preset", [None, "eth7"])
def test_ranks_of_one_machine_meet_on_loopback_whatever_is_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, preset: str | None
) -> None:
    monkeypatch.setattr(network, "loopback_interface", lambda: "lo0")
    monkeypatch.delenv(name, raising=False)
    if preset:
        monkeypatch.setenv(name, preset)
    assert rank_environment(spec(tmp_path, NO_DATA), 1, asked=0)[name] == "lo0"
    monkeypatch.setattr(network, "loopback_interface", lambda: None)
    assert name not in rank_environment(spec(tmp_path, NO_DATA), 1, asked=0)


def test_a_server_has_what_is_read_at_load_time_and_nothing_that_binds_threads(tmp_path: Path) -> None:
    """OMP_PROC_BIND and its kind bind all ranks to one core, in silence."""
    preset = dict.fromkeys(UNDONE, "true") | {"OMP_NUM_THREADS": "64", "OMP_WAIT_POLICY": "ACTIVE", "PATH": "/bin"}
    made = server_environment(spec(tmp_path / "runs" / "one", NO_DATA, threads_per_device=2), preset)
    assert UNDONE.isdisjoint(made)
    # What the user set for speed stays.
    assert (made["OMP_NUM_THREADS"], made["OMP_WAIT_POLICY"], made["PATH"]) == ("2", "ACTIVE", "/bin")
    assert made["OPENBLAS_NUM_THREADS"] == "1"
    assert made["STRATEGYBENCH_RUN_FOLDER"] == str(tmp_path / "runs")


def test_a_rank_started_either_way_has_the_same_at_load_time(tmp_path: Path) -> None:
    made = spec(tmp_path, NO_DATA)
    assert load_time_variables(made).items() <= rank_environment(made, 0, asked=0).items()
    assert load_time_variables(made).items() <= server_environment(made, {}).items()
