"""What was found on this machine, and what follows from it for a run: the findings behind `bench doctor`.

Each finding is a topic, a value and, where the value has one, a consequence. torch is imported only where a GPU is
visible, to ask whether this build of torch can use it; everything else comes from metadata and the kernel.
"""

import os
import platform
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.data.cifar import locate
from bench.data.specs import DATASETS
from bench.errors import UserError
from bench.homes import cache_folder, expanded
from bench.machine import detect, gpus, host, network
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu
from bench.plan.matrix import preset_folder

PRESETS = preset_folder()
PACKAGES = ("strategybench", "torch", "torchvision", "numpy", "pandas", "matplotlib", "scipy", "psutil", "nvidia-ml-py")

# torch's shared-memory tensors and NCCL both want about this much for a few loader workers or ranks.
_SMALL_SHARED_MEMORY_BYTES = 1 << 30
# ResNet-50 at batch 256 with optimizer state and data, for each of two CPU ranks.
_SMALL_MEMORY_BYTES = 8 << 30
_BUSY_SHARE = 0.1


@dataclass(frozen=True)
class Finding:
    """One fact; `consequence` is empty where nothing follows from it."""

    topic: str
    value: str
    consequence: str = ""


@dataclass(frozen=True)
class TorchFacts:
    """What only torch itself can say. `architectures` is `torch.cuda.get_arch_list()`."""

    cuda_available: bool
    gpu_count: int
    architectures: tuple[str, ...]
    gloo: bool
    nccl: bool


def ask_torch() -> TorchFacts:
    """Import torch and ask it."""
    import torch
    from torch import distributed

    available = distributed.is_available()
    return TorchFacts(
        cuda_available=torch.cuda.is_available(),
        gpu_count=torch.cuda.device_count(),
        architectures=tuple(torch.cuda.get_arch_list()),
        gloo=available and distributed.is_gloo_available(),
        nccl=available and distributed.is_nccl_available(),
    )


def collect_findings(
    data_root: Path | None,
    *,
    env: Mapping[str, str] | None = None,
    nvml: Any = None,
    torch_facts: Callable[[], TorchFacts] = ask_torch,
    presets: Path = PRESETS,
) -> list[Finding]:
    """All findings, in the order in which they are shown. Raises nothing for a machine that lacks something."""
    env = os.environ if env is None else env
    found = detect.detect("auto", env=env, nvml=nvml)
    visible, no_gpu_reason = gpus.query_gpus(env, nvml)
    system = platform.system()
    facts = torch_facts() if visible or system != "Linux" else None
    return [
        _platform(system, facts),
        *_devices(found, visible, no_gpu_reason, facts),
        _backends(found, facts),
        _network(env),
        *_cores(found, env),
        *_memory(),
        *_data(data_root),
        _versions(),
        *_presets(found, presets),
    ]


def _platform(system: str, facts: TorchFacts | None) -> Finding:
    reason = host.unsupported_platform_reason(system=system, has_gloo=facts is None or facts.gloo)
    return Finding("platform", f"{system} {platform.release()}, Python {platform.python_version()}", reason or "")


def _devices(found: Machine, visible: Sequence[Gpu], no_gpu_reason: str, facts: TorchFacts | None) -> Iterator[Finding]:
    yield Finding("processor", host.cpu_name())
    if not visible:
        yield Finding("GPUs", "none", no_gpu_reason)
    for number, gpu in enumerate(visible):
        memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        too_old = gpus.unsupported_architecture(gpu, facts.architectures) if facts and facts.architectures else None
        yield Finding(f"GPU {number}", f"{gpu.name}{memory}, driver {gpu.driver}", too_old or "")
    cuda = gpus.torch_cuda_version()
    yield Finding("torch build", f"CUDA {cuda}" if cuda else "CPU only", _mismatch(visible, facts, cuda))
    counts = ", ".join(map(str, detect.default_device_counts(found)))
    kind = "GPUs" if found.device_kind == "cuda" else "shares of the cores"
    yield Finding("devices", f"{found.device_count} {kind}", f"measured by default: {counts}")


def _mismatch(visible: Sequence[Gpu], facts: TorchFacts | None, cuda: str | None) -> str:
    """Why torch cannot use GPUs that the driver shows."""
    if not visible or facts is None:
        return ""
    if cuda is None:
        return "GPUs are there, but this torch is built without CUDA: install a CUDA build"
    if not facts.cuda_available:
        return (
            f"torch cannot start CUDA {cuda} on driver {visible[0].driver}: update the driver or install an older build"
        )
    if facts.gpu_count != len(visible):
        return f"torch sees {facts.gpu_count} GPUs, the driver {len(visible)}: check CUDA_VISIBLE_DEVICES and MIG"
    return ""


def _backends(found: Machine, facts: TorchFacts | None) -> Finding:
    value = detect.backend(found.device_kind)
    if found.device_kind == "cuda" and facts is not None and not facts.nccl:
        return Finding("backend", value, "this torch has no NCCL: strategies with several processes cannot run on GPUs")
    return Finding("backend", value)


def _network(env: Mapping[str, str]) -> Finding:
    loopback = network.loopback_interface()
    if loopback is None:
        return Finding("loopback interface", "none", "no interface holds 127.0.0.1: several processes cannot meet")
    try:
        network.check_network_interface(env)
    except UserError as error:
        return Finding("loopback interface", loopback, str(error))
    return Finding("loopback interface", loopback, "runs on one machine listen here only")


def _cores(found: Machine, env: Mapping[str, str]) -> Iterator[Finding]:
    present, quota = os.cpu_count() or found.cores, host.cpu_quota()
    limits = "affinity mask" if quota is None else f"affinity mask and cgroup quota of {quota:g} cores"
    fewer = f"{present - found.cores} cores are out of reach ({limits})" if found.cores < present else ""
    yield Finding("cores", f"{found.cores} of {present}", fewer)
    counts = detect.default_device_counts(found)
    threads = detect.resolve_threads(found, counts, None)
    yield Finding(
        "threads per device", str(threads), f"at the default counts: {found.cores} cores shared by up to {max(counts)}"
    )
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        busy = load > _BUSY_SHARE * present
        yield Finding("load average", f"{load:.2f}", "other work shares the cores: expect noise" if busy else "")
    preset = env.get("OMP_NUM_THREADS")
    if preset is not None:
        yield Finding("OMP_NUM_THREADS", preset, f"no effect: each run sets its own {threads} threads per device")


def _memory() -> Iterator[Finding]:
    limit, shared = host.memory_limit_bytes(), host.shared_memory_bytes()
    small = "little for ResNet-50 at batch 256: take a smaller --batch" if limit < _SMALL_MEMORY_BYTES else ""
    yield Finding("memory", f"{limit / 2**30:.1f} GiB", small)
    if shared is not None:
        tight = "little for loader workers and NCCL: enlarge it" if shared < _SMALL_SHARED_MEMORY_BYTES else ""
        yield Finding("shared memory", f"{shared / 2**30:.1f} GiB free", tight)


def _data(data_root: Path | None) -> Iterator[Finding]:
    root = expanded(data_root) if data_root else cache_folder()
    for spec in DATASETS.values():
        try:
            files = locate(spec, root)
        except UserError as error:
            yield Finding(spec.title, "damaged", str(error))
            continue
        if files:
            yield Finding(spec.title, f"found: {files[0].parent}")
        else:
            yield Finding(spec.title, f"not in {root}", "downloaded when first needed, or --dataset synthetic")


def _versions() -> Finding:
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} missing")
    return Finding("versions", ", ".join(versions))


def _presets(found: Machine, folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.glob("*.toml")):
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            yield Finding(f"preset {path.stem}", "unreadable", str(error))
            continue
        problem = preset_problem(found, content)
        yield Finding(f"preset {path.stem}", "cannot run" if problem else "can run", problem or "")


def preset_problem(found: Machine, content: Mapping[str, Any]) -> str | None:
    """Why a preset with these keys cannot run as it stands on this machine; None where it can.

    Looks at `device` and `devices` wherever they stand in the file, since a matrix may have tables.
    """
    asked = _values(content, "device")
    on_gpu = "cuda" in asked or ("cpu" not in asked and found.device_kind == "cuda")
    if on_gpu and found.device_kind != "cuda":
        return "needs a GPU, none visible"
    available, noun = (found.device_count, "GPUs") if on_gpu else (found.cores, "cores")
    lists = [value for value in _values(content, "devices") if isinstance(value, list)]
    largest = max((count for counts in lists for count in counts if isinstance(count, int)), default=1)
    return f"needs {largest} devices, {available} {noun} here" if largest > available else None


def _values(content: Any, key: str) -> list[Any]:
    """All values of a key, at any depth."""
    if isinstance(content, Mapping):
        own = [content[key]] if key in content else []
        return own + [value for inner in content.values() for value in _values(inner, key)]
    if isinstance(content, list):
        return [value for inner in content for value in _values(inner, key)]
    return []


def render(findings: Sequence[Finding], *, console: Console | None = None) -> None:
    """Print the findings as a table."""
    table = Table(title="strategybench doctor", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("what follows", overflow="fold")
    for finding in findings:
        # As Text, so that brackets in a path are not read as markup.
        table.add_row(Text(finding.topic), Text(finding.value), Text(finding.consequence, style="yellow"))
    (console or Console()).print(table)


def measure_rates() -> list[str]:
    """Measure what the machine can do at most, keep it for later campaigns, and say it, a line a rate."""
    from bench.machine import calibrate, environment

    found = detect.detect("auto")
    counts = detect.default_device_counts(found)
    threads = detect.resolve_threads(found, counts, None)
    measured = calibrate.calibrate(found.device_kind, threads=threads, ranks=max(counts))
    path = calibrate.save_calibration(measured, environment.collect(kind=found.device_kind)["environment_id"])
    return [*calibrate.show(measured), f"kept in {path}; campaigns from now on bring it into their reports"]
