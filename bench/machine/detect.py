"""What a matrix is measured on: GPUs or shares of the cores, how many by default, and how many threads each.

Nothing here imports torch. `Machine` is what the others ask for; `gpus` and `host` hold the facts behind it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.errors import UserError
from bench.machine import gpus, host
from bench.machine.gpus import Gpu

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Machine:
    """What a matrix is measured on. `device_count` is the number of visible GPUs, or of usable cores on CPU.

    `core_ids` are the numbers of the usable cores, empty where only their number is known.
    """

    device_kind: DeviceKind
    device_name: str
    device_count: int
    cores: int
    gpus: tuple[Gpu, ...] = ()
    core_ids: tuple[int, ...] = ()


# --- what to measure on -----------------------------------------------------------------------------------------------


def detect(device: str = "auto", *, env: Mapping[str, str] | None = None, nvml: Any = None) -> Machine:
    """The machine for `device`: `auto` takes GPUs where both driver and torch can use them, else the cores.

    Raises UserError for another word, and for `cuda` without a usable GPU, naming the cause.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device {device!r} is unknown; known are auto, cpu and cuda")
    cores = host.available_cores()
    if device != "cpu":
        visible, reason = gpus.query_gpus(os.environ if env is None else env, nvml)
        if visible and gpus.torch_cuda_version() is None:
            visible, reason = (), "the installed torch is built without CUDA"
        if visible:
            name = " + ".join(dict.fromkeys(gpu.name for gpu in visible))
            return Machine("cuda", name, len(visible), cores, visible, host.core_ids(cores))
        if device == "cuda":
            raise UserError(f"device cuda: no GPU can be used: {reason}; mend that or use --device cpu")
    return Machine("cpu", host.cpu_name(), cores, cores, core_ids=host.core_ids(cores))


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
        raise UserError(f"devices {largest} > {_count(machine.device_count, 'GPU')} visible", keys=("devices",))
    threads = requested or max(1, machine.cores // largest)
    # A process that feeds a GPU needs one thread however few the cores are; more than that is a choice.
    if largest * threads > machine.cores and (machine.device_kind == "cpu" or threads > 1):
        product = f"{_count(largest, 'device')} x {_count(threads, 'thread')} = {largest * threads}"
        raise UserError(
            f"{product} > {_count(machine.cores, 'core')}; "
            "use fewer devices or threads per device (bench run --devices, --threads-per-device)",
            keys=("devices", "threads_per_device"),
        )
    return threads


def backend(device_kind: str) -> str:
    """The torch.distributed backend: on GPUs also gloo, for what is gathered from the host."""
    return "cpu:gloo,cuda:nccl" if device_kind == "cuda" else "gloo"
