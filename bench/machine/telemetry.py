"""What else happened on the machine while a run was measured: load of other processes, clocks, throttling.

A thread of the parent polls once a second, and less often where a poll is dear (thousands of processes, slow
sensors): each of its two probes is held to 0.2 % of a core by its own measured cost.

    with Telemetry("cuda", [0, 1], lambda: pids) as telemetry:
        ...  # the run
    row.update(telemetry.result())
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import psutil

from bench.machine.gpus import load_nvml

RESULT_COLUMNS = (
    "foreign_cpu_fraction",
    "load_average_start",
    "cpu_frequency_fraction",
    "gpu_clock_fraction",
    "gpu_throttle_reasons",
    "gpu_foreign_processes",
)

PROBE_SHARE = 0.002
"""Highest share of one core that each probe may cost."""

# NVML's clock event bits. Idle (0x1) and the application clock setting (0x2) are no throttling.
_GPU_IDLE = 0x1
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class CpuProbe:
    """CPU time of the whole machine against that of this process, its descendants and the run's processes.

    `system` is psutil or a fake of it.
    """

    def __init__(self, own_pids: Callable[[], Iterable[int]], system: Any = psutil) -> None:
        self.own_pids_seen: set[int] = set()
        self._own_pids = own_pids
        self._system = system
        self._processes: dict[int, Any] = {}
        self._previous: tuple[float, float, float] | None = None
        self._busy_seconds = self._all_seconds = self._own_seconds = 0.0
        self._frequencies: list[float] = []

    def poll(self, *, search: bool = True) -> None:
        """Add what was spent since the last poll. Without `search` the processes known are asked, unless one is new.

        To look through all processes of a machine takes a while.
        """
        busy, total = self._machine_seconds()
        own = self._count_own(search=search)
        if self._previous is not None:
            self._busy_seconds += busy - self._previous[0]
            self._all_seconds += total - self._previous[1]
            # A process that ended without its parent waiting for it takes its past with it: not below zero.
            self._own_seconds += max(0.0, own - self._previous[2])
        self._previous = busy, total, own
        try:
            frequency = self._system.cpu_freq()
        except (AttributeError, NotImplementedError, OSError):
            frequency = None
        if frequency is not None and frequency.max and frequency.current:
            self._frequencies.append(frequency.current / frequency.max)

    def skip(self) -> None:
        """What was spent since the last poll is of no interest."""
        self._previous = (*self._machine_seconds(), self._count_own(search=False))

    def foreign_fraction(self) -> float | None:
        """Mean share of all cores that others used since the first poll (time stolen by a hypervisor included)."""
        if self._all_seconds <= 0:
            return None
        return min(1.0, max(0.0, (self._busy_seconds - self._own_seconds) / self._all_seconds))

    def frequency_fraction(self) -> float | None:
        """Mean of current / maximum clock over the polls; None where the machine does not tell."""
        return sum(self._frequencies) / len(self._frequencies) if self._frequencies else None

    def _machine_seconds(self) -> tuple[float, float]:
        times = self._system.cpu_times()._asdict()
        # The kernel counts guests' time in user and nice already.
        total = sum(value for name, value in times.items() if name not in ("guest", "guest_nice"))
        return total - times["idle"] - times.get("iowait", 0.0), total

    def _find_own(self) -> dict[int, Any]:
        """Process objects by pid, kept from poll to poll: to make one costs more than to ask it."""
        found: dict[int, Any] = {}
        for pid in [None, *self._own_pids()]:
            if pid in found:
                continue
            try:
                process = self._system.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = self._processes.get(each.pid, each)
            except (self._system.Error, OSError):
                continue
        return found

    def _count_own(self, *, search: bool) -> float:
        """CPU seconds of all own processes; those that ended are in their parent's count of its children."""
        if search or not self._processes.keys() >= {*self._own_pids()}:
            self._processes = self._find_own()
        self.own_pids_seen.update(self._processes)
        seconds = 0.0
        for process in self._processes.values():
            try:
                times = process.cpu_times()
            except (self._system.Error, OSError):
                continue
            seconds += times.user + times.system
            seconds += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return seconds


class GpuProbe:
    """Clocks, throttle bits and processes of some GPUs, by the driver's indices (`bench.machine.Gpu.index`).

    `nvml` is pynvml or a fake of it. What the driver does not answer stays None; no poll raises for it.
    """

    def __init__(self, indices: Sequence[int], own_pids: Callable[[], Iterable[int]], nvml: Any) -> None:
        self._nvml = nvml
        self._own_pids = own_pids
        self._own: set[int] = set()
        self._lowest: float | None = None
        self._reasons: int | None = None
        self._pids: set[int] | None = None
        self._devices: list[tuple[Any, float | None]] = []
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError):
            return
        for index in indices:
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._devices.append((handle, self._default_clock(handle)))

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The driver's answer, None where the function is missing, unsupported or fails."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (AttributeError, self._nvml.NVMLError, OSError):
            return None

    def _default_clock(self, handle: Any) -> float | None:
        """Default SM clock in MHz, or the highest one where the driver knows no default."""
        sm = self._nvml.NVML_CLOCK_SM
        return self._ask("nvmlDeviceGetDefaultApplicationsClock", handle, sm) or self._ask(
            "nvmlDeviceGetMaxClockInfo", handle, sm
        )

    def poll(self) -> None:
        """Look once at every GPU."""
        self._own.update(self._own_pids())
        for handle, default in self._devices:
            reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if reasons is None:
                reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            if reasons is not None:
                self._reasons = (self._reasons or 0) | reasons
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
            if processes is not None:
                self._pids = (self._pids or set()) | {process.pid for process in processes}
            self._look_at_clock(handle, default, idle=bool((reasons or 0) & _GPU_IDLE))

    def _look_at_clock(self, handle: Any, default: float | None, *, idle: bool) -> None:
        # A GPU that waits for the run's start or end clocks down; that says nothing about the run.
        utilization = self._ask("nvmlDeviceGetUtilizationRates", handle)
        if idle or (utilization is not None and utilization.gpu == 0):
            return
        clock = self._ask("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_SM)
        if clock and default:
            self._lowest = min(clock / default, self._lowest if self._lowest is not None else float("inf"))

    def clock_fraction(self) -> float | None:
        """Lowest SM clock seen on a busy GPU / its default SM clock; above 1 where the GPU boosts."""
        return self._lowest

    def throttle_reasons(self) -> str | None:
        """Names of all throttle bits seen, separated by ';'."""
        if self._reasons is None:
            return None
        return ";".join(name for bit, name in THROTTLE_REASONS.items() if self._reasons & bit)

    def foreign_processes(self, descendants: set[int]) -> int | None:
        """Number of processes seen on the GPUs that are neither the run's own nor among its `descendants`.

        None where none of the own was seen beside them: inside a container the driver may number processes as the
        host does, so that own and foreign ones cannot be told apart.
        """
        own = self._own | descendants
        if self._pids is None or (self._pids and not self._pids & own):
            return None
        return len(self._pids - own)

    def close(self) -> None:
        self._ask("nvmlShutdown")


class _Paced:
    """Calls a probe at most so often that it stays within its share of a core."""

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = probe
        self._next_seconds = float("-inf")

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next_seconds:
            return
        start = time.thread_time()
        self._probe()
        self._next_seconds = now + (time.thread_time() - start) / PROBE_SHARE


class Telemetry:
    """Watches the machine during one run; `result()` gives the run's telemetry columns.

    `kind` is `cpu` or `cuda`; `gpu_indices` are the driver's indices of the GPUs in use; `own_pids` gives the run's
    processes at that moment, and is called from the polling thread. `system` and `nvml` stand for psutil and pynvml
    in tests.
    """

    def __init__(
        self,
        kind: str,
        gpu_indices: Sequence[int],
        own_pids: Callable[[], Iterable[int]],
        interval_seconds: float = 1.0,
        *,
        system: Any = psutil,
        nvml: Any = None,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._gpu_indices = tuple(gpu_indices) if kind == "cuda" else ()
        self._own_pids = own_pids
        self._system = system
        self._nvml = nvml
        self._cpu = CpuProbe(own_pids, system)
        self._gpu: GpuProbe | None = None
        self._load_average_start: float | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._paused = False
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    def __enter__(self) -> Self:
        if hasattr(self._system, "getloadavg"):
            self._load_average_start = self._system.getloadavg()[0]
        if self._gpu_indices:
            try:
                self._gpu = GpuProbe(self._gpu_indices, self._own_pids, self._nvml or load_nvml())
            except ImportError:
                self._gpu = None
        self._cpu.poll()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        # To the very end for CPU time, which adds up; GPUs are idle by now.
        if not self._paused:
            self._cpu.poll()
        if self._gpu is not None:
            self._gpu.close()

    def _watch(self) -> None:
        probes = [_Paced(self._cpu.poll), *([_Paced(self._gpu.poll)] if self._gpu else [])]
        while not self._stop.wait(self._interval_seconds):
            with self._lock:
                for probe in probes if not self._paused else ():
                    probe()

    def pause(self) -> None:
        """Until `resume`, what happens on the machine is not of this run: it waits while others are measured."""
        with self._lock:
            self._paused = True
            self._cpu.poll(search=False)
            if self._gpu is not None:
                self._gpu.poll()

    def resume(self) -> None:
        """The run goes on."""
        with self._lock:
            self._cpu.skip()
            self._paused = False

    def result(self) -> dict[str, float | int | str | None]:
        """The columns of runs.csv named in `RESULT_COLUMNS`; None where there is no value. Call it after the block."""
        gpu = self._gpu
        return {
            "foreign_cpu_fraction": self._cpu.foreign_fraction(),
            "load_average_start": self._load_average_start,
            "cpu_frequency_fraction": self._cpu.frequency_fraction(),
            "gpu_clock_fraction": gpu.clock_fraction() if gpu else None,
            "gpu_throttle_reasons": gpu.throttle_reasons() if gpu else None,
            "gpu_foreign_processes": gpu.foreign_processes(self._cpu.own_pids_seen) if gpu else None,
        }
