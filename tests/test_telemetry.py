"""Telemetry against fakes worked out by hand, and its cost against the real machine."""

import os
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import FakeNvml, NoDriver, NVMLError

from bench.machine import telemetry
from bench.machine.telemetry import CpuProbe, GpuProbe, Telemetry
from bench.results.columns import RUN_COLUMNS, names

MachineTimes = namedtuple("MachineTimes", "user system idle iowait steal guest")
ProcessTimes = namedtuple("ProcessTimes", "user system children_user children_system")


class FakeSystem:
    """psutil of a machine with processes 1 (this one), 10 and 11 (ranks, children of 1) and whatever a test adds."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.machine = MachineTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self.processes = {pid: ProcessTimes(0.0, 0.0, 0.0, 0.0) for pid in (1, 10, 11)}
        self.children = {1: [10, 11]}
        self.frequency: Any = SimpleNamespace(current=2000.0, max=4000.0)

    def cpu_times(self) -> MachineTimes:
        return self.machine

    def cpu_freq(self) -> Any:
        return self.frequency

    def getloadavg(self) -> tuple[float, float, float]:
        return 1.5, 0.0, 0.0

    def Process(self, pid: int | None) -> Any:
        pid = 1 if pid is None else pid
        if pid not in self.processes:
            raise self.Error(f"no process {pid}")

        def cpu_times() -> ProcessTimes:
            if pid not in self.processes:
                raise self.Error(f"no process {pid}")
            return self.processes[pid]

        def children(*, recursive: bool) -> list[Any]:
            return [self.Process(child) for child in self.children.get(pid, []) if child in self.processes]

        return SimpleNamespace(pid=pid, cpu_times=cpu_times, children=children)


def none() -> list[int]:
    return []


# --- load of other processes ---


def test_foreign_share_by_hand() -> None:
    system = FakeSystem()
    probe = CpuProbe(none, system)
    probe.poll()
    # 4 cores for 10 s: 40 s in all, 24 busy (2 of them stolen); own: 3 + 8 + 7 = 18; others 6 of 40.
    system.machine = MachineTimes(user=18.0, system=4.0, idle=15.0, iowait=1.0, steal=2.0, guest=5.0)
    system.processes = {
        1: ProcessTimes(2.0, 1.0, 0.0, 0.0),
        10: ProcessTimes(7.0, 1.0, 0.0, 0.0),
        11: ProcessTimes(7.0, 0.0, 0.0, 0.0),
    }
    probe.poll()
    assert probe.foreign_fraction() == pytest.approx(6 / 40)


def test_a_rank_that_ended_stays_counted() -> None:
    system = FakeSystem()
    probe = CpuProbe(none, system)
    probe.poll()
    system.machine = MachineTimes(20.0, 0.0, 20.0, 0.0, 0.0, 0.0)
    system.processes = {1: ProcessTimes(1.0, 0.0, 17.0, 2.0)}
    probe.poll()
    assert probe.foreign_fraction() == pytest.approx(0.0)


def test_time_before_the_run_does_not_count() -> None:
    system = FakeSystem()
    system.machine = MachineTimes(1000.0, 0.0, 1000.0, 0.0, 0.0, 0.0)
    system.processes[1] = ProcessTimes(900.0, 0.0, 0.0, 0.0)
    probe = CpuProbe(none, system)
    probe.poll()
    assert probe.foreign_fraction() is None
    system.machine = MachineTimes(1001.0, 0.0, 1003.0, 0.0, 0.0, 0.0)
    probe.poll()
    assert probe.foreign_fraction() == pytest.approx(1 / 4)


def test_processes_named_by_the_caller_count_as_own() -> None:
    system = FakeSystem()
    system.processes[50] = ProcessTimes(0.0, 0.0, 0.0, 0.0)
    system.processes[51] = ProcessTimes(0.0, 0.0, 0.0, 0.0)
    system.children[50] = [51]
    probe = CpuProbe(lambda: [10, 50, 999], system)
    probe.poll()
    system.machine = MachineTimes(10.0, 0.0, 10.0, 0.0, 0.0, 0.0)
    system.processes[50] = ProcessTimes(3.0, 0.0, 0.0, 0.0)
    system.processes[51] = ProcessTimes(5.0, 0.0, 0.0, 0.0)
    probe.poll()
    assert probe.foreign_fraction() == pytest.approx(2 / 20)
    assert probe.own_pids_seen == {1, 10, 11, 50, 51}


def test_the_share_stays_within_its_bounds() -> None:
    system = FakeSystem()
    probe = CpuProbe(none, system)
    probe.poll()
    system.machine = MachineTimes(1.0, 0.0, 3.0, 0.0, 0.0, 0.0)
    system.processes[10] = ProcessTimes(1.02, 0.0, 0.0, 0.0)  # the kernel's two clocks differ by a tick
    probe.poll()
    assert probe.foreign_fraction() == 0.0


def test_frequency() -> None:
    system = FakeSystem()
    probe = CpuProbe(none, system)
    for current in (2000.0, 4000.0, 3000.0):
        system.frequency = SimpleNamespace(current=current, max=4000.0)
        probe.poll()
    assert probe.frequency_fraction() == pytest.approx(0.75)


@pytest.mark.parametrize("frequency", [None, SimpleNamespace(current=2600.0, max=0.0)])
def test_frequency_unknown(frequency: Any) -> None:
    system = FakeSystem()
    system.frequency = frequency
    probe = CpuProbe(none, system)
    probe.poll()
    assert probe.frequency_fraction() is None


def test_frequency_that_fails() -> None:
    system = FakeSystem()

    def fail() -> Any:
        raise NotImplementedError

    system.cpu_freq = fail  # type: ignore[method-assign]
    probe = CpuProbe(none, system)
    probe.poll()
    assert probe.frequency_fraction() is None


# --- GPUs ---


def test_lowest_clock_of_a_busy_gpu() -> None:
    nvml = FakeNvml(2)
    probe = GpuProbe([0, 1], none, nvml)
    for clock, reasons, utilization in ((1980, 0, 100), (1485, 0x4, 100), (345, 0x1, 0), (345, 0, 0), (1700, 0x2, 90)):
        nvml.clock, nvml.reasons, nvml.utilization = clock, reasons, utilization
        probe.poll()
    assert probe.clock_fraction() == pytest.approx(0.75)
    assert probe.throttle_reasons() == "sw_power_cap"
    probe.close()
    assert nvml.open == 0


def test_throttle_reasons_are_a_union_by_name() -> None:
    nvml = FakeNvml(1)
    probe = GpuProbe([0], none, nvml)
    for reasons in (0x1 | 0x2, 0x40, 0x4 | 0x8, 0x80):
        nvml.reasons = reasons
        probe.poll()
    assert probe.throttle_reasons() == "sw_power_cap;hw_slowdown;hw_thermal_slowdown;hw_power_brake_slowdown"


def test_bits_are_those_of_the_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert pynvml.nvmlClocksEventReasonGpuIdle == 0x1
    for bit, name in telemetry.THROTTLE_REASONS.items():
        camel = "".join(part.capitalize() for part in name.split("_"))
        assert getattr(pynvml, f"nvmlClocksEventReason{camel}") == bit
    for name in (name for name in vars(FakeNvml) if name.startswith("nvml")):
        assert hasattr(pynvml, name), f"the fake has {name}, pynvml has not"


def test_default_clock_unknown_takes_the_highest() -> None:
    nvml = FakeNvml(1)
    nvml.default_clock, nvml.clock = None, 1000
    probe = GpuProbe([0], none, nvml)
    probe.poll()
    assert probe.clock_fraction() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("seen", "own", "foreign"),
    [([], [7], 0), ([7], [7], 0), ([7, 8, 9], [7], 2), ([8, 9], [7], None), (None, [7], None)],
)
def test_foreign_processes(seen: list[int] | None, own: list[int], foreign: int | None) -> None:
    nvml = FakeNvml(2)
    nvml.pids = seen
    probe = GpuProbe([0, 1], lambda: own, nvml)
    probe.poll()
    assert probe.foreign_processes(set()) == foreign


def test_children_of_ranks_are_not_foreign() -> None:
    nvml = FakeNvml(1)
    nvml.pids = [7, 70]
    probe = GpuProbe([0], lambda: [7], nvml)
    probe.poll()
    assert probe.foreign_processes({70}) == 0


@pytest.mark.parametrize("nvml", [NoDriver(), FakeNvml(0)])
def test_gpus_that_do_not_answer_are_blank(nvml: Any) -> None:
    probe = GpuProbe([0], none, nvml)
    probe.poll()
    assert (probe.clock_fraction(), probe.throttle_reasons(), probe.foreign_processes(set())) == (None, None, None)
    probe.close()


def test_a_gpu_lost_on_the_way_keeps_what_was_seen() -> None:
    nvml = FakeNvml(1)
    nvml.clock = 990
    probe = GpuProbe([0], none, nvml)
    probe.poll()
    nvml.clock = nvml.reasons = nvml.utilization = nvml.pids = None
    probe.poll()
    assert (probe.clock_fraction(), probe.throttle_reasons()) == (0.5, "")


# --- the whole ---


def polled(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline, "the thread did not poll"
        time.sleep(0.001)


def test_result_has_exactly_its_columns() -> None:
    nvml = FakeNvml(2)
    nvml.clock, nvml.reasons, nvml.pids = 990, 0x4, [10, 77]
    with Telemetry("cuda", [0, 1], lambda: [10], 0.001, system=FakeSystem(), nvml=nvml) as watch:
        polled(lambda: watch.result()["gpu_clock_fraction"] is not None)
    result = watch.result()
    assert tuple(result) == telemetry.RESULT_COLUMNS == tuple(names(RUN_COLUMNS)[-6:])
    assert result == {
        "foreign_cpu_fraction": None,
        "load_average_start": 1.5,
        "cpu_frequency_fraction": 0.5,
        "gpu_clock_fraction": 0.5,
        "gpu_throttle_reasons": "sw_power_cap",
        "gpu_foreign_processes": 1,
    }
    assert nvml.open == 0


def test_cpu_runs_ask_no_gpu() -> None:
    nvml = FakeNvml(2)
    with Telemetry("cpu", [0], none, 0.001, system=FakeSystem(), nvml=nvml) as watch:
        pass
    assert [watch.result()[name] for name in telemetry.RESULT_COLUMNS[3:]] == [None, None, None]


def test_the_thread_ends_when_the_run_raises() -> None:
    def run() -> None:
        with Telemetry("cpu", [], none, 60.0, system=FakeSystem()):
            raise NVMLError("the run failed")

    before = set(threading.enumerate())
    with pytest.raises(NVMLError, match="the run failed"):
        run()
    assert set(threading.enumerate()) <= before


def test_a_probe_is_called_no_more_often_than_its_cost_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(wall=0.0, cpu=0.0)
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: clock.wall)
    monkeypatch.setattr(telemetry.time, "thread_time", lambda: clock.cpu)

    def dear() -> None:
        clock.cpu += 0.030

    paced = telemetry._Paced(dear)
    for second in range(1000):
        clock.wall = float(second)
        paced()
    assert clock.cpu / 1000 <= telemetry.PROBE_SHARE * 1.05
    assert 2 * telemetry.PROBE_SHARE < 0.005


def test_cost_on_this_machine() -> None:
    """One real poll costs the thread less than 5 ms, so that one a second is below 0.5 % of a core."""
    probe = CpuProbe(lambda: [os.getpid()])
    probe.poll()
    costs = []
    for _ in range(20):
        start = time.thread_time()
        probe.poll()
        costs.append(time.thread_time() - start)
    assert sorted(costs)[len(costs) // 2] < 0.005


def test_on_this_machine() -> None:
    with Telemetry("cpu", [], none, 0.01) as watch:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    share = watch.result()["foreign_cpu_fraction"]
    assert isinstance(share, float)
    assert 0.0 <= share <= 1.0
