"""Decisions that depend on the machine, each with a fake of what it asks."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml, NoDriver

from bench.errors import UserError
from bench.machine import detect, gpus, host, network
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu

GIB = 2**30


def cpu(cores: int) -> Machine:
    return Machine("cpu", "a processor", cores, cores)


def gpu_machine(count: int, cores: int = 16) -> Machine:
    return Machine("cuda", "a GPU", count, cores, gpus.visible_gpus(env={}, nvml=FakeNvml(count)))


def cgroup(tmp_path: Path, line: str, files: dict[str, str]) -> dict[str, Path]:
    """A /proc/self/cgroup of one line, and a hierarchy with these files."""
    proc, root = tmp_path / "self", tmp_path / "fs"
    proc.write_text(f"9:pids:/\n{line}\n")
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
    return {"root": root, "proc": proc}


# --- cores and memory ---


@pytest.mark.parametrize(
    ("line", "files", "quota"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/job/task", {"job/cpu.max": "200000 100000", "job/task/cpu.max": "max 100000"}, 2.0),
        ("0::/job/task", {"job/cpu.max": "200000 100000", "job/task/cpu.max": "50000 100000"}, 0.5),
        ("0::/only/outside", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/", {"unified/cpu.max": "300000 100000"}, 3.0),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "250000"}, None),
        ("0::/", {"cpu.max": "nonsense"}, None),
    ],
)
def test_cpu_quota(tmp_path: Path, line: str, files: dict[str, str], quota: float | None) -> None:
    assert host.cpu_quota(**cgroup(tmp_path, line, files)) == quota


@pytest.mark.parametrize(("content", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_cores_are_whole_and_at_least_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert host.available_cores(**cgroup(tmp_path, "0::/", {"cpu.max": content})) == cores


def test_cores_never_exceed_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert host.available_cores(**cgroup(tmp_path, "0::/", {"cpu.max": "400000 100000"})) == 1


def test_cores_without_affinity_and_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert host.available_cores(root=tmp_path, proc=tmp_path / "absent") == 12


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/", {"memory.max": "max"}, 64 * GIB),
        ("0::/a", {"a/memory.max": str(4 * GIB), "memory.max": "max"}, 4 * GIB),
        ("3:memory:/a", {"memory/a/memory.limit_in_bytes": str(2 * GIB)}, 2 * GIB),
        ("3:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64 * GIB),
    ],
)
def test_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], limit: int
) -> None:
    monkeypatch.setattr(host.psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB))
    assert host.memory_limit_bytes(**cgroup(tmp_path, line, files)) == limit


def test_shared_memory(tmp_path: Path) -> None:
    assert (host.shared_memory_bytes(tmp_path) or 0) > 0
    assert host.shared_memory_bytes(tmp_path / "absent") is None


def test_processor_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags: x\n")
    assert host.cpu_name(tmp_path / "cpuinfo") == "AMD EPYC 7763"
    monkeypatch.setattr(host.platform, "processor", lambda: "arm")
    assert host.cpu_name(tmp_path / "absent") == "arm"


# --- GPUs ---


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("3,1", [3, 1]),
        (" 2 , 0 ", [2, 0]),
        ("1,-1,2", [1]),
        ("0,9,1", [0]),
        ("0,0", []),
        ("none", []),
        ("GPU-2a2b0000-1111-2222-3333-444455556666", [2]),
        ("GPU-3a,GPU-1a", [3, 1]),
        ("GPU-", []),
        ("GPU-ffff", []),
        ("GPU-1a,GPU-1a2b", [1]),
        ("MIG-unknown", []),
    ],
)
def test_cuda_visible_devices(mask: str | None, indices: list[int]) -> None:
    nvml = FakeNvml(4)
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert [gpu.index for gpu in gpus.visible_gpus(env=env, nvml=nvml)] == indices
    assert nvml.open == 0, "nvmlInit and nvmlShutdown come in pairs"


def test_gpu_facts() -> None:
    assert gpus.visible_gpus(env={}, nvml=FakeNvml(1)) == (
        Gpu(0, "GPU-0a0b0000-1111-2222-3333-444455556666", "NVIDIA H200", 141 * GIB, "580.65.06", (9, 0)),
    )


def test_slices_do_not_pass_for_the_whole_gpu() -> None:
    whole = gpus.visible_gpus(env={}, nvml=FakeNvml(1, mig=True))
    (one,) = gpus.visible_gpus(env={"CUDA_VISIBLE_DEVICES": "MIG-known,MIG-other"}, nvml=FakeNvml(4, mig=True))
    assert (one.index, one.uuid, one.memory_bytes) == (2, "MIG-known", 18 * GIB)
    assert gpus.known_peak_flops(one.name, "tf32") is gpus.known_peak_flops(whole[0].name, "tf32") is None


def test_no_driver_is_no_error() -> None:
    assert gpus.visible_gpus(env={}, nvml=NoDriver()) == ()
    assert detect.detect("auto", env={}, nvml=NoDriver()).device_kind == "cpu"


def test_detect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "torch_cuda_version", lambda: "13.0")
    found = detect.detect("auto", env={"CUDA_VISIBLE_DEVICES": "2,3"}, nvml=FakeNvml(4))
    assert (found.device_kind, found.device_name, found.device_count) == ("cuda", "NVIDIA H200", 2)
    assert detect.detect("cuda", env={}, nvml=FakeNvml(4)).device_count == 4
    on_cpu = detect.detect("cpu", env={}, nvml=FakeNvml(4))
    assert (on_cpu.device_kind, on_cpu.device_count, on_cpu.gpus) == ("cpu", on_cpu.cores, ())


def test_detect_says_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "torch_cuda_version", lambda: "13.0")
    with pytest.raises(UserError, match=r"no NVIDIA driver answers \(NVML Shared Library Not Found\)"):
        detect.detect("cuda", env={}, nvml=NoDriver())
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES='-1' hides all GPUs \(4 present\)"):
        detect.detect("cuda", env={"CUDA_VISIBLE_DEVICES": "-1"}, nvml=FakeNvml(4))
    with pytest.raises(UserError, match="the driver sees no GPU"):
        detect.detect("cuda", env={}, nvml=FakeNvml(0))
    with pytest.raises(UserError, match="'tpu' is unknown; known are auto, cpu and cuda"):
        detect.detect("tpu")


def test_a_torch_without_cuda_leaves_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "torch_cuda_version", lambda: None)
    assert detect.detect("auto", env={}, nvml=FakeNvml(4)).device_kind == "cpu"
    with pytest.raises(UserError, match="torch is built without CUDA"):
        detect.detect("cuda", env={}, nvml=FakeNvml(4))


@pytest.mark.parametrize(
    ("line", "version"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.8'", "12.8"), ("cuda: Optional[str] = None", None)],
)
def test_cuda_version_of_torch(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.14.1+cu999'\n{line}\nhip = '6.0'\n")
    assert gpus.torch_cuda_version(tmp_path / "version.py") == version


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((12, 0), ["sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((10, 0), ["sm_100"], True),
    ],
)
def test_gpu_too_old_or_too_new_for_torch(capability: tuple[int, int], architectures: list[str], runs: bool) -> None:
    gpu = Gpu(0, "GPU-0", "a GPU", None, "1", capability)
    reason = gpus.unsupported_architecture(gpu, architectures)
    assert (reason is None) == runs
    if reason:
        assert f"{capability[0]}.{capability[1]}" in reason
        assert architectures[0] in reason


# --- device counts and threads ---


def test_default_device_counts() -> None:
    assert [detect.default_device_counts(cpu(cores)) for cores in (1, 2, 64)] == [[1], [1, 2], [1, 2]]
    assert detect.default_device_counts(gpu_machine(1)) == [1]
    assert detect.default_device_counts(gpu_machine(4)) == [1, 2, 4]
    assert detect.default_device_counts(gpu_machine(6)) == [1, 2, 4, 6]


def test_threads() -> None:
    assert detect.resolve_threads(cpu(8), [1, 2], None) == 4
    assert detect.resolve_threads(cpu(7), [1, 2], None) == 3
    assert detect.resolve_threads(cpu(8), [1, 2], 3) == 3
    assert detect.resolve_threads(gpu_machine(4, cores=16), [1, 4], None) == 4
    assert detect.resolve_threads(gpu_machine(8, cores=2), [8], None) == 1


@pytest.mark.parametrize(
    ("found", "devices", "requested", "message"),
    [
        (cpu(2), [1, 4], None, "4 devices x 1 thread = 4 > 2 cores"),
        (cpu(4), [2], 3, "2 devices x 3 threads = 6 > 4 cores"),
        (cpu(1), [1], 2, "1 device x 2 threads = 2 > 1 core;"),
        (gpu_machine(4), [8], None, "devices 8 > 4 GPUs visible"),
        (gpu_machine(1), [2], None, "devices 2 > 1 GPU visible"),
        (gpu_machine(4), [4], 5, "4 devices x 5 threads = 20 > 16 cores"),
        (cpu(2), [0, 1], None, "devices 0 < 1"),
        (cpu(2), [-3], None, "devices -3 < 1"),
        (cpu(2), [], None, "no device counts"),
        (cpu(2), [1], 0, "threads per device 0 < 1"),
    ],
)
def test_oversubscription_is_refused_with_the_arithmetic(
    found: Machine, devices: list[int], requested: int | None, message: str
) -> None:
    with pytest.raises(UserError) as error:
        detect.resolve_threads(found, devices, requested)
    assert message in str(error.value)


def test_backend() -> None:
    assert (detect.backend("cpu"), detect.backend("cuda")) == ("gloo", "cpu:gloo,cuda:nccl")


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", "tf32", 156e12),
        ("A100-SXM4-80GB", "amp-bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "fp16", 312e12),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312e12),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5e12),
        ("NVIDIA H100 80GB HBM3", "amp-fp16", 989e12),
        ("NVIDIA H200", "tf32", 494.5e12),
        ("NVIDIA H200", "amp-bf16", 989e12),
        ("NVIDIA H200", "fp32", None),
        ("NVIDIA A100-SXM4-40GB", "fp32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "tf32", None),
        ("NVIDIA A100-SXM-64GB", "tf32", None),
        ("NVIDIA H100 PCIe", "tf32", None),
        ("NVIDIA H100 NVL", "tf32", None),
        ("NVIDIA H200 NVL", "tf32", None),
        ("NVIDIA GH200 480GB", "tf32", None),
        ("NVIDIA H20", "tf32", None),
        ("AMD EPYC 7763", "tf32", None),
    ],
)
def test_peaks_are_known_or_blank(name: str, precision: str, peak: float | None) -> None:
    assert gpus.known_peak_flops(name, precision) == peak


# --- network and platform ---

ADDRESSES = {
    "eth0": [SimpleNamespace(address="192.0.2.2")],
    "lo0": [SimpleNamespace(address="::1"), SimpleNamespace(address="127.0.0.1")],
}


def test_loopback_interface() -> None:
    assert network.loopback_interface(addresses=ADDRESSES) == "lo0"
    assert network.loopback_interface(addresses={"eth0": ADDRESSES["eth0"]}) is None
    assert network.loopback_interface() is not None


@pytest.mark.parametrize(
    ("gloo", "nccl", "fault"),
    [
        ("", "", ""),
        ("eth0", "eth0", ""),
        ("eth0,lo", "", ""),
        ("eth", "", "GLOO_SOCKET_IFNAME=eth: no network interface eth"),
        ("eth0,nope9", "", "no network interface nope9"),
        ("", "eth", ""),
        ("", "ib,eth", ""),
        ("", "=eth0", ""),
        ("", "=eth0:9000", ""),
        ("", "^docker,lo", ""),
        ("", "^=eth0", ""),
        ("", "ib", "NCCL_SOCKET_IFNAME=ib: no network interface matches"),
        ("", "=eth", "no network interface matches"),
        ("", "^lo,eth", "no network interface matches"),
        ("", "^=lo,eth0", "no network interface matches"),
    ],
)
def test_network_interface_of_the_environment(gloo: str, nccl: str, fault: str) -> None:
    env = {"GLOO_SOCKET_IFNAME": gloo, "NCCL_SOCKET_IFNAME": nccl}
    if not fault:
        network.check_network_interface(env, names=["eth0", "lo"])
        return
    with pytest.raises(UserError) as error:
        network.check_network_interface(env, names=["eth0", "lo"])
    assert fault in str(error.value)
    assert "those that exist: eth0, lo" in str(error.value)


def test_platforms() -> None:
    for system in ("Linux", "Darwin", "Windows"):
        assert host.unsupported_platform_reason(system=system) is None
    reason = host.unsupported_platform_reason(system="Darwin", has_gloo=False)
    assert reason is not None
    assert "macOS" in reason
    assert "FreeBSD" in (host.unsupported_platform_reason(system="FreeBSD") or "")


def test_no_torch_is_imported() -> None:
    modules = ("detect", "gpus", "host", "network", "environment", "telemetry", "calibrate")
    code = f"import sys, bench.view.doctor, {', '.join(f'bench.machine.{module}' for module in modules)}\n"
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
