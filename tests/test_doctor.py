"""What `bench doctor` finds on machines that are fakes of each kind."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, NoDriver
from rich.console import Console

from bench import homes
from bench.data.specs import DATASETS
from bench.machine import gpus, host
from bench.machine.detect import Machine
from bench.view import doctor
from bench.view.doctor import Finding, TorchFacts

FOUR_GPUS = TorchFacts(cuda_available=True, gpu_count=4, architectures=("sm_80", "sm_90"), gloo=True, nccl=True)


@pytest.fixture(autouse=True)
def two_quiet_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "available_cores", lambda: 2)
    monkeypatch.setattr(host, "cpu_quota", lambda: None)
    monkeypatch.setattr(gpus, "torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")


def never() -> TorchFacts:
    raise AssertionError("torch is imported only where there is a GPU")


def find(tmp_path: Path, **options: Any) -> dict[str, Finding]:
    options = {"env": {}, "nvml": NoDriver(), "torch_facts": never, "presets": tmp_path / "presets"} | options
    return {finding.topic: finding for finding in doctor.collect_findings(tmp_path, **options)}


def test_a_machine_without_gpu(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert found["GPUs"].value == "none"
    assert "no NVIDIA driver answers" in found["GPUs"].consequence
    assert found["devices"] == Finding("devices", "2 shares of the cores", "measured by default: 1, 2")
    assert found["backend"].value == "gloo"
    assert found["cores"] == Finding("cores", "2 of 2")
    assert found["threads per device"].value == "1"
    assert found["load average"] == Finding("load average", "0.00")
    assert "OMP_NUM_THREADS" not in found


def test_a_machine_with_four_gpus(tmp_path: Path) -> None:
    found = find(tmp_path, nvml=FakeNvml(4), torch_facts=lambda: FOUR_GPUS)
    assert found["GPU 3"] == Finding("GPU 3", "NVIDIA H200, 141 GiB, driver 580.65.06")
    assert found["devices"] == Finding("devices", "4 GPUs", "measured by default: 1, 2, 4")
    assert found["backend"] == Finding("backend", "cpu:gloo,cuda:nccl")
    assert found["torch build"] == Finding("torch build", "CUDA 13.0")


def test_gpus_hidden_by_the_environment(tmp_path: Path) -> None:
    found = find(tmp_path, nvml=FakeNvml(4), env={"CUDA_VISIBLE_DEVICES": ""})
    assert found["GPUs"].consequence == "CUDA_VISIBLE_DEVICES='' hides all GPUs (4 present)"


@pytest.mark.parametrize(
    ("change", "topic", "words"),
    [
        ({"architectures": ("sm_100", "sm_120")}, "GPU 0", "compute capability 9.0; this torch is built for sm_100"),
        ({"cuda_available": False}, "torch build", "torch cannot start CUDA 13.0 on driver 580.65.06"),
        ({"gpu_count": 2}, "torch build", "torch sees 2 GPUs, the driver 4"),
        ({"nccl": False}, "backend", "no NCCL"),
    ],
)
def test_driver_and_torch_disagree(tmp_path: Path, change: dict[str, Any], topic: str, words: str) -> None:
    facts = TorchFacts(**{**vars(FOUR_GPUS), **change})
    assert words in find(tmp_path, nvml=FakeNvml(4), torch_facts=lambda: facts)[topic].consequence


def test_gpus_but_a_torch_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "torch_cuda_version", lambda: None)
    facts = TorchFacts(cuda_available=False, gpu_count=0, architectures=(), gloo=True, nccl=False)
    found = find(tmp_path, nvml=FakeNvml(1), torch_facts=lambda: facts)
    assert "install a CUDA build" in found["torch build"].consequence
    assert found["backend"].value == "gloo"


def test_limits_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "getloadavg", lambda: (30.0, 0.0, 0.0), raising=False)
    monkeypatch.setattr(host, "cpu_quota", lambda: 2.5)
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: 2 * 2**30)
    monkeypatch.setattr(host, "shared_memory_bytes", lambda: 64 * 2**20)
    found = find(tmp_path, env={"OMP_NUM_THREADS": "64", "GLOO_SOCKET_IFNAME": "nope9"})
    assert found["cores"].consequence == "62 cores are out of reach (affinity mask and cgroup quota of 2.5 cores)"
    assert "other work" in found["load average"].consequence
    assert found["memory"] == Finding("memory", "2.0 GiB", found["memory"].consequence)
    assert "--batch" in found["memory"].consequence
    assert "enlarge" in found["shared memory"].consequence
    assert "no effect" in found["OMP_NUM_THREADS"].consequence
    assert "nope9" in found["loopback interface"].consequence


def test_data_found_missing_and_incomplete(tmp_path: Path) -> None:
    assert find(tmp_path)["CIFAR-10"].value == f"not in {tmp_path}"
    spec = DATASETS["cifar10"]
    folder = tmp_path / spec.folder
    folder.mkdir()
    (folder / spec.files[0].name).touch()
    assert find(tmp_path)["CIFAR-10"].value == "damaged"
    for file in spec.files:
        (folder / file.name).touch()
    assert find(tmp_path)["CIFAR-10"] == Finding("CIFAR-10", f"found: {folder}")


def test_default_data_root_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    found = doctor.collect_findings(None, env={}, nvml=NoDriver(), torch_facts=never)
    assert f"not in {tmp_path / 'strategybench'}" in [finding.value for finding in found]


CPU = Machine("cpu", "a processor", 2, 2)
GPU = Machine("cuda", "a GPU", 4, 16)


@pytest.mark.parametrize(
    ("found", "content", "problem"),
    [
        (CPU, {"device": "cuda"}, "needs a GPU, none visible"),
        (CPU, {"matrix": {"device": "cuda", "devices": [1]}}, "needs a GPU, none visible"),
        (CPU, {"device": "cpu", "devices": [1, 2]}, None),
        (CPU, {"devices": "all"}, None),
        (CPU, {"cells": [{"devices": [1]}, {"devices": [4]}]}, "needs 4 devices, 2 cores here"),
        (GPU, {"device": "cuda", "devices": [1, 8]}, "needs 8 devices, 4 GPUs here"),
        (GPU, {"device": "cpu", "devices": [8]}, None),
        (GPU, {"device": "auto", "devices": [4]}, None),
        (GPU, {}, None),
    ],
)
def test_what_follows_for_a_preset(found: Machine, content: dict[str, Any], problem: str | None) -> None:
    assert doctor.preset_problem(found, content) == problem


def test_presets_are_read_from_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "gpu.toml").write_text('device = "cuda"\n')
    (folder / "smoke.toml").write_text('device = "cpu"\ndevices = [1, 2]\n')
    (folder / "torn.toml").write_text("device = ")
    found = find(tmp_path)
    assert found["preset gpu"] == Finding("preset gpu", "cannot run", "needs a GPU, none visible")
    assert found["preset smoke"] == Finding("preset smoke", "can run")
    assert found["preset torn"].value == "unreadable"


def test_another_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "system", lambda: "Windows")
    facts = TorchFacts(cuda_available=False, gpu_count=0, architectures=(), gloo=False, nccl=False)
    assert "no torch.distributed with gloo" in find(tmp_path, torch_facts=lambda: facts)["platform"].consequence


def test_torch_answers() -> None:
    pytest.importorskip("torch")
    facts = doctor.ask_torch()
    assert facts.gloo
    assert facts.cuda_available == (facts.gpu_count > 0)


def test_rendered_with_brackets_in_a_path() -> None:
    out = io.StringIO()
    doctor.render([Finding("data", "found: /data/[red]x", "as it is")], console=Console(file=out, width=100))
    assert "/data/[red]x" in out.getvalue()
    assert "as it is" in out.getvalue()
