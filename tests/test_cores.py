"""Which cores each rank is bound to: its own share on CPU, those near its GPUs, and none where that is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from campaigns import rows, run, toy
from fake_nvml import FakeNvml

from bench.machine import gpus, host
from bench.machine.cores import shares
from bench.machine.detect import Machine
from bench.machine.gpus import Gpu
from strategies.places import Place, data_parallel, one_process

CPU = Machine("cpu", "a processor", 4, 4, core_ids=(2, 3, 8, 9))


def gpu(index: int, *cores: int) -> Gpu:
    return Gpu(index, f"GPU-{index}", "a GPU", None, "1", (8, 0), cores)


@pytest.mark.parametrize(
    ("places", "threads", "expected"),
    [
        (one_process().places, 1, ((2,),)),
        (one_process().places, 4, ((2, 3, 8, 9),)),
        (data_parallel(2).places, 2, ((2, 3), (8, 9))),
        (data_parallel(4).places, 1, ((2,), (3,), (8,), (9,))),
        # A rank of two devices has the cores of both, though it computes with one device's threads.
        (data_parallel(2, devices=2).places, 1, ((2, 3), (8, 9))),
        ((Place(devices=1, part=0), Place(devices=2, part=1)), 1, ((2,), (3, 8))),
        # More than there are is refused elsewhere; here nobody is bound.
        (data_parallel(4).places, 2, ()),
    ],
)
def test_each_rank_on_cpu_has_its_own_cores(
    places: tuple[Place, ...], threads: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert shares(CPU, places, threads) == expected


def test_nobody_is_bound_where_only_the_number_of_cores_is_known() -> None:
    assert shares(Machine("cpu", "a processor", 4, 4), data_parallel(2).places, 1) == ()


def test_ranks_on_gpus_have_the_cores_near_them() -> None:
    cards = (gpu(0, 0, 1, 2, 3), gpu(1, 0, 1, 2, 3), gpu(2, 8, 9, 10, 11), gpu(3, 8, 9, 10, 11))
    machine = Machine("cuda", "a GPU", 4, 8, cards, core_ids=(1, 2, 3, 8, 9, 20))
    assert shares(machine, data_parallel(4).places, 1) == ((1, 2, 3), (1, 2, 3), (8, 9), (8, 9))
    assert shares(machine, one_process(4, copies=4).places, 1) == ((1, 2, 3, 8, 9),)
    # A driver that does not say it for one card: nobody is bound.
    silent = Machine("cuda", "a GPU", 2, 8, (gpu(0, 1), gpu(1)), core_ids=(1, 2))
    assert shares(silent, data_parallel(2).places, 1) == ()


def test_the_driver_s_mask_is_read_by_words_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Near(FakeNvml):
        def nvmlDeviceGetCpuAffinity(self, handle: object, words: int) -> list[int]:
            assert words == 2
            return [1 | 1 << 63, 1 << 2]

    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert {card.cores for card in gpus.visible_gpus(env={}, nvml=Near(2))} == {(0, 63, 66)}
    assert {card.cores for card in gpus.visible_gpus(env={}, nvml=FakeNvml(2))} == {()}


def test_a_quota_stands_for_a_number_and_names_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3}, raising=False)
    assert host.core_ids(2) == (3, 7)
    assert host.core_ids(1) == ()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host.core_ids(2) == ()


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_what_binds_openmp_changes_nothing_and_the_row_says_which_cores(tmp_path: Path, how: str) -> None:
    """By these variables OpenMP bound all ranks and threads to core 0, in silence."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("two ranks with cores of their own need two cores")
    binding = {"OMP_PROC_BIND": "true", "OMP_PLACES": "{0}", "GOMP_CPU_AFFINITY": "0"}
    done = run(toy(tmp_path / "out", "--start", how, strategies=["ddp"]), **binding)
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "out")
    assert (row["status"], row["start"], row["cores"]) == ("ok", how, f"{mine[0]};{mine[1]}")
