"""The GPUs as their driver describes them, through nvidia-ml-py and without torch."""

import importlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Dense peaks in FLOP/s by precision. The names are those the driver gives; variants of other speed (PCIe H100, NVL,
# GH200, A800, MIG slices) do not match the whole pattern and so have no peak rather than a wrong one.
_AMPERE = {"tf32": 156e12, "bf16": 312e12, "fp16": 312e12}

_HOPPER = {"tf32": 494.5e12, "bf16": 989e12, "fp16": 989e12}

_PEAKS = (
    (re.compile(r"(nvidia )?a100([ -](sxm4?|pcie))?([ -](40|80)gb)?( pcie)?", re.IGNORECASE), _AMPERE),
    (re.compile(r"(nvidia )?h100 (80gb hbm3|sxm5?( 80gb)?)", re.IGNORECASE), _HOPPER),
    (re.compile(r"(nvidia )?h200( sxm5?)?( 141gb)?( hbm3e)?", re.IGNORECASE), _HOPPER),
)


_MASK_BITS = 64


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it.

    `cores` are the processor cores nearest to it, empty where the driver does not say.
    `index` is the driver's (NVML's) number, which CUDA_VISIBLE_DEVICES does not change; the number CUDA gives it is
    its position in `visible_gpus()`. `memory_bytes` is None where the GPU shares the host's memory.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    driver: str
    compute_capability: tuple[int, int]
    cores: tuple[int, ...] = ()


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
        cores=_near_cores(nvml, handle),
    )


def _near_cores(nvml: Any, handle: Any) -> tuple[int, ...]:
    """The cores of the GPU's NUMA node: the driver gives a mask of words of 64 bits."""
    words = ((os.cpu_count() or 1) + _MASK_BITS - 1) // _MASK_BITS
    try:
        mask = nvml.nvmlDeviceGetCpuAffinity(handle, words)
    except (AttributeError, nvml.NVMLError):
        return ()
    bits = (
        (place * _MASK_BITS + bit, int(word) >> bit & 1) for place, word in enumerate(mask) for bit in range(_MASK_BITS)
    )
    return tuple(core for core, near in bits if near)


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


def known_peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak of one device in FLOP/s (`tf32`, `bf16` and `fp16`, also as `amp-...`); None where not known."""
    for pattern, peaks in _PEAKS:
        if pattern.fullmatch(device_name.strip()):
            return peaks.get(precision.removeprefix("amp-"))
    return None
