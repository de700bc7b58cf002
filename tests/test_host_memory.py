"""Host memory of a run: one copy of the dataset for all ranks, and on each rank its own state and little more.

Read from the kernel's own account, /proc/PID/smaps, of rank 0 while both ranks are alive.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from campaigns import save_arrays, spec

from bench.machine.network import loopback_interface
from bench.run.launch import launch
from bench.run.node import LocalNode
from bench.wire import Measurement, RunSpec
from bench.worker.account import shared_once

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="smaps is Linux's"),
    pytest.mark.timeout(180),
]

ACCOUNT = '''
import re
from pathlib import Path

def kernel_bytes(file, key):
    """Sum in bytes of one value over the mappings whose path ends so."""
    total, wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            wanted = line.endswith(file)
        elif wanted and line.startswith(key + ":"):
            total += int(line.split()[1]) * 1024
    return total
'''
PLUGIN = (
    ACCOUNT
    + '''
from strategies.ddp import DDP

class Accountant(DDP):
    def details(self):
        return {
            "rss": str(kernel_bytes("train-x.npy", "Rss")),
            "pss": str(kernel_bytes("train-x.npy", "Pss")),
            "anonymous": str(kernel_bytes("", "Anonymous")),
        }

class ReadsOnly(Accountant):
    """Takes every batch and computes nothing."""

    def forward_backward(self, micro):
        return sum(inputs.mean() for inputs, _ in micro)

    def apply(self):
        pass

STRATEGIES = {"accountant": Accountant, "reads_only": ReadsOnly}
'''
)
FLOOR = (
    ACCOUNT
    + """
import os, sys, torch, torchvision
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=int(os.environ["RANK"]), world_size=2)
dist.barrier()
print(kernel_bytes("", "Anonymous"), flush=True)
dist.barrier()
"""
)


def measured(folder: Path, data: dict[str, Path], *, strategy: str, **changes: object) -> Measurement:
    """A run of two ranks with the accountant's details."""
    plugin = folder / "accountant.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    outcome = launch(spec(folder / "run", data, strategy=strategy, strategy_files=(str(plugin),), **changes))
    assert outcome.measurement is not None, outcome.reason
    return outcome.measurement


def test_the_ranks_of_a_machine_share_one_copy_of_the_dataset(tmp_path: Path) -> None:
    """Every page of the file is in rank 0's memory, and half of each is charged to it: the other half is rank 1's."""
    batch, steps = 2048, 20
    data = {}
    for part, count in (("train", batch * steps), ("test", 8)):
        data[f"{part}_inputs"], data[f"{part}_targets"] = tmp_path / f"{part}-x.npy", tmp_path / f"{part}-y.npy"
        np.save(data[f"{part}_inputs"], np.zeros((count, 3, 32, 32), dtype=np.uint8))
        np.save(data[f"{part}_targets"], np.zeros(count, dtype=np.int64))
    work = {"workload": "cnn-cifar100", "synthetic": True, "batch_global": batch, "steps": steps}
    found = measured(tmp_path, data, strategy="reads_only", **work)
    size = data["train_inputs"].stat().st_size
    assert int(found.details["rss"]) == pytest.approx(size, rel=0.02)
    assert int(found.details["pss"]) == pytest.approx(size / 2, rel=0.02)
    assert found.host_memory_bytes is not None
    assert size < found.host_memory_bytes < found.host_peak_rss_bytes


def torch_itself(folder: Path) -> int:
    """Anonymous memory in bytes of a process that has imported torch and torchvision and joined a group, no more."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback_interface() or "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FLOOR, str(folder / "floor-store")]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return max(int(rank.communicate(timeout=60)[0]) for rank in ranks)


def test_a_rank_holds_weights_gradients_and_momentum_once_and_little_more(tmp_path: Path) -> None:
    """ResNet-50 at two samples a rank: activations are small, and DDP's buckets are a second copy of the gradients."""
    data = save_arrays(tmp_path, workload="resnet50-cifar10")
    found = measured(tmp_path, data, strategy="accountant", workload="resnet50-cifar10", batch_global=4, steps=2)
    assert found.gradient_bytes == 4 * 23_528_522
    held = int(found.details["anonymous"]) - torch_itself(tmp_path)
    assert 3.9 * found.gradient_bytes < held < 5 * found.gradient_bytes, held / found.gradient_bytes


def test_what_processes_share_counts_once_however_many_share_it() -> None:
    """Two ranks of 5 and 7 own bytes that share 100: 112, and the same with a third process that only shares."""
    assert shared_once([[(5, 100)], [(7, 100)]]) == 112
    assert shared_once([[(5, 100), (0, 100)], [(7, 100)]]) == 112
    assert shared_once([[(5, 3)]]) == 8
    assert shared_once([[(5, 100)], None]) is None


def test_a_sibling_that_shares_pages_changes_no_figure(tmp_path: Path) -> None:
    """The same run beside a process that was forked from the same server, and without one."""
    data = save_arrays(tmp_path / "data")
    with LocalNode() as node:
        alone = launch(spec(tmp_path / "one", data, start="warm"), node=node).measurement
        made = spec(tmp_path / "waiting", data, start="warm")
        # A second run of the same server, alive while the third is measured.
        run = node.start(made, _written(made))
        try:
            beside = launch(spec(tmp_path / "three", data, start="warm"), node=node).measurement
        finally:
            node.end(run)
    assert alone is not None
    assert beside is not None
    assert beside.host_memory_bytes == pytest.approx(alone.host_memory_bytes, rel=0.05)
    assert beside.host_peak_rss_bytes == pytest.approx(alone.host_peak_rss_bytes, rel=0.05)


def _written(made: RunSpec) -> Path:
    path = Path(made.folder) / "spec.json"
    path.parent.mkdir(parents=True)
    made.write(path)
    return path
