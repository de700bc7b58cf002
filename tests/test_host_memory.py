"""The ranks of a machine share one copy of the dataset: seen by the kernel's own account of shared pages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from campaigns import spec

from bench.launch import launch
from bench.spec import Measurement

BATCH = 2048
IMAGE_BYTES = 3 * 32 * 32
READS_ONLY = """
from strategies.ddp import DDP

class ReadsOnly(DDP):
    def forward_backward(self, micro):
        return sum(inputs.mean() for inputs, _ in micro)

    def apply(self):
        pass

STRATEGIES = {"reads_only": ReadsOnly}
"""


def measured(folder: Path, count: int) -> Measurement:
    """Two ranks over a whole epoch of `count` images, so that every page of the files is read; no arithmetic."""
    folder.mkdir()
    plugin = folder / "reads_only.py"
    plugin.write_text(READS_ONLY, encoding="utf-8")
    data = {}
    for part, size in (("train", count), ("test", 8)):
        data[f"{part}_inputs"], data[f"{part}_targets"] = folder / f"{part}-x.npy", folder / f"{part}-y.npy"
        np.save(data[f"{part}_inputs"], np.zeros((size, 3, 32, 32), dtype=np.uint8))
        np.save(data[f"{part}_targets"], np.zeros(size, dtype=np.int64))
    common = {
        "strategy": "reads_only",
        "strategy_files": (str(plugin),),
        "workload": "cnn-cifar100",
        "synthetic": True,
        "batch_global": BATCH,
        "steps": count // BATCH,
    }
    outcome = launch(spec(folder / "run", data, **common))
    assert outcome.measurement is not None, outcome.reason
    return outcome.measurement


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PSS is Linux's")
@pytest.mark.timeout(180)
def test_two_ranks_hold_one_copy_of_the_dataset(tmp_path: Path) -> None:
    small, large = (measured(tmp_path / name, count) for name, count in (("small", BATCH), ("large", 20 * BATCH)))
    assert small.host_pss_bytes is not None
    assert large.host_pss_bytes is not None
    copy = 19 * BATCH * IMAGE_BYTES
    # The pages are there, once; counted for each rank by itself they are there twice.
    assert 0.8 * copy < large.host_pss_bytes - small.host_pss_bytes < 1.3 * copy
    assert large.host_peak_rss_bytes - small.host_peak_rss_bytes > 1.6 * copy
    assert large.gradient_bytes == small.gradient_bytes > 0
