"""The probe of the machine's own speed: its arithmetic, who measures it, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import campaigns
import pytest
import torch
from campaigns import save_arrays, spec
from double import Script, Silent, live_together, make_double, use

from bench.factors import Baseline
from bench.floor import Floor
from bench.wire import RunSpec
from bench.worker import account
from bench.worker import probe as probing
from bench.worker.build import build_run
from bench.worker.epoch import timed_epoch
from bench.worker.probe import LOADS, Load, measure, probe
from bench.worker.rank import Rank
from bench.worker.state import ProbeRates, RunState
from strategies.places import Plan, data_parallel, one_process

SMALL = Load(size=4, type=torch.float32, products=3, block_bytes=1024, copies=2, repeats=3)
RATES = ProbeRates(flops_per_second=1.0, bytes_per_second=2.0)


def clock_of(*seconds: float) -> Callable[[], int]:
    """A clock whose intervals are these, each begun where the one before it ended."""
    times = [0]
    for length in seconds:
        times += [times[-1] + int(length * 1e9), times[-1] + int(length * 1e9)]
    readings = iter(times)
    return lambda: next(readings)


def memory() -> torch.Tensor:
    return torch.zeros(2 * SMALL.block_bytes, dtype=torch.uint8)


def told_of(folder: Path, plan: Plan, **changes: object) -> RunSpec:
    folder.mkdir()
    work = {"workload": "cnn-cifar100", "backend": "", **changes}
    return spec(folder, save_arrays(folder / "data", workload="cnn-cifar100"), plan=plan, **work)


def state(folder: Path, monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, **changes: object) -> RunState:
    use(monkeypatch, lambda: make_double(Script()))
    plan = data_parallel(2) if rank else one_process()
    told = told_of(folder, plan, **changes)
    return build_run(told, Rank(told, rank, len(plan.places), (torch.device("cpu"),)))


def test_rates_are_of_the_median_turn_and_the_first_turn_is_not_counted() -> None:
    """Arithmetic 9 (not counted), 1, 2, 6 s and memory 9, 4, 1, 3 s in turns: medians 2 and 3 s."""
    found = measure(SMALL, memory(), lambda: None, clock=clock_of(9, 9, 1, 4, 2, 1, 6, 3))
    # 3 products of 2 * 4 * 4 * 4 operations, and 2 copies that read and write 1,024 bytes.
    assert found == ProbeRates(flops_per_second=384 / 2, bytes_per_second=4096 / 3)


def test_the_device_is_waited_for_on_both_sides_of_every_interval() -> None:
    events: list[str] = []

    def clock() -> int:
        events.append("clock")
        return len(events)

    measure(SMALL, memory(), lambda: events.append("wait"), clock=clock)
    assert events == ["wait", "clock", "wait", "clock"] * 2 * (SMALL.repeats + 1)


def test_the_work_is_ordinary_numbers_the_same_each_time() -> None:
    used, again = memory(), memory()
    for place in (used, again):
        measure(SMALL, place, lambda: None)
    assert torch.equal(used, again)
    source, target = used.split(SMALL.block_bytes)
    assert torch.equal(source, target)
    numbers = source.view(torch.float32)
    # -125/128, -124/128 and so on: 251 of the 256 values that 1,024 bytes hold, and zeros.
    assert (numbers[0], numbers[250], numbers[251]) == (-125 / 128, 125 / 128, 0)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_both_matrices_and_their_product_fit_into_the_blocks(kind: str) -> None:
    load = LOADS[kind]
    matrix = load.size**2 * load.type.itemsize
    assert 2 * matrix <= load.block_bytes
    assert 2 * LOADS["cpu"].block_bytes == 64 * 2**20


def test_random_numbers_go_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOADS, "cpu", SMALL)
    run = state(tmp_path / "run", monkeypatch, probe=True)
    before = torch.get_rng_state()
    probe(run)
    assert torch.equal(torch.get_rng_state(), before)
    assert run.problems == []
    assert run.probes[0].flops_per_second > 0
    assert run.probes[0].bytes_per_second > 0


@pytest.mark.parametrize(("rank", "asked"), [(0, False), (1, True)])
def test_it_is_measured_where_it_was_asked_for_and_on_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, asked: bool
) -> None:
    run = state(tmp_path / "run", monkeypatch, rank=rank, probe=asked)
    monkeypatch.setattr(probing, "_measure", lambda rank: RATES)
    probe(run)
    assert (run.probes, run.probe_rss) == ([], [])


def test_a_failure_is_a_warning_of_the_run_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rank: Rank) -> ProbeRates:
        raise MemoryError("no room")

    monkeypatch.setattr(probing, "_measure", fail)
    told = told_of(tmp_path / "run", one_process(), probe=True)
    found = live_together(monkeypatch, told, [Script()])
    assert found.warnings == ["no probe of the machine's speed: MemoryError: no room", "a double"]
    assert (found.probe_flops_per_second, found.probe_bytes_per_second) == (None, None)
    assert len(found.epochs) == 1


def test_it_stands_between_warm_up_and_the_first_timed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, seen = Script(), []

    def note(rank: Rank) -> ProbeRates:
        seen.append(list(script.calls))
        script.calls.clear()
        return RATES

    monkeypatch.setattr(probing, "_measure", note)
    told = told_of(tmp_path / "run", one_process(), probe=True, epochs=2)
    found = live_together(monkeypatch, told, [script])
    (before,) = seen
    assert before[-2:] == ["restore", "parameter_sample"]
    assert script.calls[:2] == ["parameter_sample", "epoch"]
    assert (found.probe_flops_per_second, found.probe_bytes_per_second) == (1.0, 2.0)


@pytest.mark.parametrize(("end", "counted"), [(164, 100), (170, 170)])
def test_its_memory_is_not_in_the_run_s_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, counted: int
) -> None:
    """100 before it and 164 after it: 164 in the end is its own peak still, and 170 one of the timed steps."""
    run = state(tmp_path / "run", monkeypatch, probe=True)
    peaks = iter((100, 164, end))
    for module in (probing, account):
        monkeypatch.setattr(module, "peak_rss_bytes", lambda: next(peaks))
    monkeypatch.setattr(probing, "_measure", lambda rank: RATES)
    probe(run)
    timed_epoch(run, 1, Silent(), Floor("r", 0))
    assert account.own_peak_rss_bytes(run) == counted


@pytest.mark.parametrize(
    ("strategy", "devices", "role", "its"),
    [
        ("ddp", 2, "measure", True),
        ("ddp", 2, "control", True),
        ("ddp", 2, "breakdown", False),
        ("ddp", 1, "measure", False),
        ("single", 2, "measure", False),
    ],
)
def test_whose_runs_are_the_baseline_s(strategy: str, devices: int, role: str, its: bool) -> None:
    cell = {"strategy": strategy, "devices": devices, "role": role}
    assert Baseline.parse("ddp@2").has_as_run(cell) is its


def test_a_campaign_has_it_in_the_rows_of_the_baseline_and_its_twin(tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    asked = ("cpu", "--strategies", "single,ddp", "--devices", "1", "--blocks", "1", *campaigns.TOY)
    done = campaigns.run(campaigns.command(*asked, "--quiet", "--out", str(folder)))
    assert done.returncode == 0, done.stderr
    found = {
        (row["strategy"], row["role"]): bool(row["probe_flops_per_second"] and row["probe_bytes_per_second"])
        for row in campaigns.rows(folder)
    }
    assert found == {("single", "measure"): True, ("single", "control"): True, ("ddp", "measure"): False}
