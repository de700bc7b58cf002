"""Every decision that depends on the machine: devices, cores, threads, backends, interfaces, platform.

Nothing here imports torch. Facts about GPUs come from the driver (nvidia-ml-py), facts about the host from the
kernel and psutil; each function takes its source as an argument, so that all of them are tested with fakes.
"""

import importlib
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from bench.errors import UserError

DeviceKind = Literal["cpu", "cuda"]

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")
CPUINFO = Path("/proc/cpuinfo")

# Dense peaks in FLOP/s by precision. The names are those the driver gives; variants of other speed (PCIe H100, NVL,
# GH200, A800, MIG slices) do not match the whole pattern and so have no peak rather than a wrong one.
_AMPERE = {"tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
_HOPPER = {"tf32": 494.5e12, "bf16": 989e12, "fp16": 989e12}
_PEAKS = (
    (re.compile(r"(nvidia )?a100([ -](sxm4?|pcie))?([ -](40|80)gb)?( pcie)?", re.IGNORECASE), _AMPERE),
    (re.compile(r"(nvidia )?h100 (80gb hbm3|sxm5?( 80gb)?)", re.IGNORECASE), _HOPPER),
    (re.compile(r"(nvidia )?h200( sxm5?)?( 141gb)?( hbm3e)?", re.IGNORECASE), _HOPPER),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it.

    `index` is the driver's (NVML's) number, which CUDA_VISIBLE_DEVICES does not change; the number CUDA gives it is
    its position in `visible_gpus()`. `memory_bytes` is None where the GPU shares the host's memory.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    driver: str
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class Machine:
    """What a matrix is measured on. `device_count` is the number of visible GPUs, or of usable cores on CPU."""

    device_kind: DeviceKind
    device_name: str
    device_count: int
    cores: int
    gpus: tuple[Gpu, ...] = ()


# --- cores and memory -------------------------------------------------------------------------------------------------


def _cgroup_folders(controller: str, *, root: Path, proc: Path) -> list[Path]:
    """This process's cgroup folder for a controller and all folders above it; the limits of each of them bind.

    Both hierarchies, v1 by controller and v2 unified. A container may be shown a path that exists only outside it;
    the walk upwards then ends at its own root.
    """
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: dict[Path, None] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controllers, root / controller]
        else:
            continue
        relative = Path(path.lstrip("/"))
        folders.update(dict.fromkeys(base / part for base in bases for part in (relative, *relative.parents)))
    return list(folders)


def _read_words(*files: Path) -> list[str]:
    """The words in these files; empty when one of them cannot be read."""
    try:
        return " ".join(file.read_text(encoding="utf-8") for file in files).split()
    except OSError:
        return []


def cpu_quota(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> float | None:
    """Cores that the cgroup's CPU quota allows, such as 1.5; None without a quota."""
    quotas = []
    for folder in _cgroup_folders("cpu", root=root, proc=proc):
        new, old = folder / "cpu.max", (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        for words in (_read_words(new), _read_words(*old)):
            # No quota is written as 'max' by v2 and as -1 by v1.
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def available_cores(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> int:
    """Logical cores this process may keep busy: the affinity mask, cut to the whole cores of the cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = cpu_quota(root=root, proc=proc)
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def memory_limit_bytes(*, root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> int:
    """Bytes of memory this process may use: the machine's, or the cgroup's limit where that is lower."""
    folders = _cgroup_folders("memory", root=root, proc=proc)
    words = [_read_words(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(found[0]) for found in words if found and found[0].isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def shared_memory_bytes(path: Path = Path("/dev/shm")) -> int | None:
    """Free bytes in the shared memory that data loaders use; None where the platform has no such folder."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's model, such as 'AMD EPYC 7763 64-Core Processor'."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine() or "unknown CPU"


# --- GPUs -------------------------------------------------------------------------------------------------------------


def load_nvml() -> Any:
    """The pynvml module, imported only when it is asked for. Raises ImportError where it is not installed."""
    return importlib.import_module("pynvml")


def _describe(nvml: Any, handle: Any, index: int, driver: str) -> Gpu:
    name = str(nvml.nvmlDeviceGetName(handle))
    try:
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        memory = None
    try:
        sliced = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except nvml.NVMLError:
        sliced = False
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        # CUDA sees one slice of such a GPU, so that it must not pass for the whole.
        name=f"{name} MIG" if sliced and "MIG" not in name else name,
        memory_bytes=memory,
        driver=driver,
        compute_capability=(int(major), int(minor)),
    )


def _describe_mig(nvml: Any, uuid: str, driver: str) -> tuple[Gpu, ...]:
    """The slice CUDA uses when the mask names MIG devices: the first one alone."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    gpu = _describe(nvml, parent, int(nvml.nvmlDeviceGetIndex(parent)), driver)
    return (Gpu(**{**vars(gpu), "uuid": uuid, "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total)}),)


def apply_mask(gpus: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in the order that CUDA numbers them.

    As the driver reads it: numbers or unique beginnings of UUIDs; the list ends at the first entry that names no GPU
    (so '-1' and '' hide all); an entry given twice hides all.
    """
    if mask is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry.lower().startswith("gpu-"):
            matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
        else:
            number = re.match(r"\+?(\d+)", entry)
            matches = [gpu for gpu in gpus if number and gpu.index == int(number.group(1))]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return ()
        chosen.append(matches[0])
    return tuple(chosen)


def query_gpus(env: Mapping[str, str], nvml: Any) -> tuple[tuple[Gpu, ...], str]:
    """The visible GPUs and, where there is none, the reason in a few words. Never raises."""
    try:
        nvml = nvml or load_nvml()
    except ImportError:
        return (), "the package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        return (), f"no NVIDIA driver answers ({error})"
    mask = env.get("CUDA_VISIBLE_DEVICES")
    hidden = f"CUDA_VISIBLE_DEVICES={mask!r} hides all GPUs"
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        if mask is not None and mask.strip().startswith("MIG-"):
            return _describe_mig(nvml, mask.split(",")[0].strip(), driver), ""
        count = int(nvml.nvmlDeviceGetCount())
        gpus = [_describe(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index, driver) for index in range(count)]
        visible = apply_mask(gpus, mask)
        return visible, "" if visible else f"{hidden} ({count} present)" if gpus else "the driver sees no GPU"
    except (nvml.NVMLError, OSError) as error:
        return (), f"the NVIDIA driver gives no answer about its GPUs ({error})"
    finally:
        nvml.nvmlShutdown()


def visible_gpus(*, env: Mapping[str, str] | None = None, nvml: Any = None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA would see, in its order; empty without a driver. Never raises."""
    return query_gpus(os.environ if env is None else env, nvml)[0]


def torch_cuda_version(version_file: Path | None = None) -> str | None:
    """The CUDA version torch was built with, such as '13.0', read from its version file; None for a CPU build."""
    if version_file is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        version_file = Path(spec.origin).with_name("version.py")
    try:
        match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", version_file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None


def unsupported_architecture(gpu: Gpu, architectures: Iterable[str]) -> str | None:
    """Why this GPU cannot run a torch built for `architectures` (`torch.cuda.get_arch_list()`), None where it can.

    Machine code (sm_80) runs on the same major version from its minor version on, PTX (compute_80) on anything newer.
    """
    architectures = list(architectures)
    major, minor = gpu.compute_capability
    for kind, digits in re.findall(r"(sm|compute)_(\d+)", " ".join(architectures)):
        built = (int(digits[:-1]), int(digits[-1]))
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return None
    return f"{gpu.name} has compute capability {major}.{minor}; this torch is built for {', '.join(architectures)}"


# --- what to measure on -----------------------------------------------------------------------------------------------


def detect(device: str = "auto", *, env: Mapping[str, str] | None = None, nvml: Any = None) -> Machine:
    """The machine for `device`: `auto` takes GPUs where both driver and torch can use them, else the cores.

    Raises UserError for another word, and for `cuda` without a usable GPU, naming the cause.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device {device!r} is unknown; known are auto, cpu and cuda")
    cores = available_cores()
    if device != "cpu":
        gpus, reason = query_gpus(os.environ if env is None else env, nvml)
        if gpus and torch_cuda_version() is None:
            gpus, reason = (), "the installed torch is built without CUDA"
        if gpus:
            name = " + ".join(dict.fromkeys(gpu.name for gpu in gpus))
            return Machine("cuda", name, len(gpus), cores, gpus)
        if device == "cuda":
            raise UserError(f"device cuda: no GPU can be used: {reason}; mend that or use --device cpu")
    return Machine("cpu", cpu_name(), cores, cores)


def default_device_counts(machine: Machine) -> list[int]:
    """Device counts measured when none are asked for: 1 and 2 on CPU; 1, 2, 4, ... and all on GPUs."""
    if machine.device_kind == "cpu":
        return [1, 2] if machine.cores > 1 else [1]
    powers = [2**power for power in range(machine.device_count.bit_length())]
    return sorted({*powers, machine.device_count})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def resolve_threads(machine: Machine, devices: Sequence[int], requested: int | None) -> int:
    """CPU threads of each device, the same in every cell: as requested, or the cores shared by the largest count.

    Raises UserError with the arithmetic when a count is below 1, devices are missing, or cores are oversubscribed.
    """
    if not devices:
        raise UserError("no device counts given; give one or more, such as --devices 1,2")
    if min(devices) < 1:
        raise UserError(f"devices {min(devices)} < 1; device counts start at 1")
    if requested is not None and requested < 1:
        raise UserError(f"threads per device {requested} < 1; give 1 or more")
    largest = max(devices)
    if machine.device_kind == "cuda" and largest > machine.device_count:
        raise UserError(f"devices {largest} > {_count(machine.device_count, 'GPU')} visible")
    threads = requested or max(1, machine.cores // largest)
    # A process that feeds a GPU needs one thread however few the cores are; more than that is a choice.
    if largest * threads > machine.cores and (machine.device_kind == "cpu" or threads > 1):
        product = f"{_count(largest, 'device')} x {_count(threads, 'thread')} = {largest * threads}"
        raise UserError(f"{product} > {_count(machine.cores, 'core')}; use fewer devices or threads per device")
    return threads


def backend(device_kind: str) -> str:
    """The torch.distributed backend: on GPUs also gloo, for what is gathered from the host."""
    return "cpu:gloo,cuda:nccl" if device_kind == "cuda" else "gloo"


def known_peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak of one device in FLOP/s (`tf32`, `bf16` and `fp16`, also as `amp-...`); None where not known."""
    for pattern, peaks in _PEAKS:
        if pattern.fullmatch(device_name.strip()):
            return peaks.get(precision.removeprefix("amp-"))
    return None


# --- network and platform ---------------------------------------------------------------------------------------------


def loopback_interface(*, addresses: Mapping[str, Any] | None = None) -> str | None:
    """The interface that holds 127.0.0.1 (`lo` on Linux, `lo0` on macOS); None where there is none."""
    for name, entries in (psutil.net_if_addrs() if addresses is None else addresses).items():
        if any(entry.address == "127.0.0.1" for entry in entries):
            return name
    return None


def loopback_variables() -> dict[str, str]:
    """What keeps gloo and nccl of ranks on one machine on its loopback interface; {} where there is none."""
    interface = loopback_interface()
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}


def _nccl_matches(value: str, names: Sequence[str]) -> list[str]:
    """Interfaces that NCCL_SOCKET_IFNAME selects: a comma list of beginnings; `=` whole names; `^` all but those."""
    exclude = value.startswith("^")
    value = value.removeprefix("^")
    exact = value.startswith("=")
    wanted = [part.strip().split(":")[0] for part in value.removeprefix("=").split(",") if part.strip()]
    hit = {name for name in names for want in wanted if (name == want if exact else name.startswith(want))}
    return [name for name in names if (name in hit) != exclude]


def check_network_interface(env: Mapping[str, str], *, names: Sequence[str] | None = None) -> None:
    """Raise UserError when a variable names an interface that does not exist, which would cost minutes of waiting."""
    names = sorted(psutil.net_if_addrs()) if names is None else list(names)
    gloo = env.get("GLOO_SOCKET_IFNAME", "").strip()
    missing = [part.strip() for part in gloo.split(",") if part.strip() and part.strip() not in names]
    nccl = env.get("NCCL_SOCKET_IFNAME", "").strip()
    existing = f"those that exist: {', '.join(names) or 'none'}"
    if missing:
        raise UserError(f"GLOO_SOCKET_IFNAME={gloo}: no network interface {missing[0]}; {existing}")
    if nccl and not _nccl_matches(nccl, names):
        raise UserError(f"NCCL_SOCKET_IFNAME={nccl}: no network interface matches; {existing}")


def unsupported_platform_reason(*, system: str | None = None, has_gloo: bool = True) -> str | None:
    """Why runs cannot be started on this operating system, in one sentence; None where they can.

    `has_gloo` is `torch.distributed.is_available() and torch.distributed.is_gloo_available()`, for callers that have
    torch imported: builds for Windows and macOS may lack it.
    """
    system = system or platform.system()
    if system not in ("Linux", "Darwin", "Windows"):
        return f"torch.distributed has no build for {system}; runs need Linux, macOS or Windows."
    if not has_gloo:
        name = {"Darwin": "macOS"}.get(system, system)
        return f"This build of torch for {name} has no torch.distributed with gloo; install one that has it."
    return None
