"""Loader workers hand batches over in shared memory; where there is too little, the row says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import rows

LINUX_ROOT = sys.platform.startswith("linux") and os.geteuid() == 0 and shutil.which("unshare") is not None


@pytest.mark.skipif(not LINUX_ROOT, reason="a mount of one's own needs Linux and an administrator")
@pytest.mark.timeout(200)
def test_too_little_shared_memory_is_told_in_the_row(tmp_path: Path) -> None:
    options = "--workload cnn-cifar100 --dataset synthetic --batch 256 --steps 2 --warmup-steps 1 --timeout 90 --quiet"
    matrix = tmp_path / "m.toml"
    matrix.write_text(
        'control = false\n[[cells]]\nstrategies = ["single"]\ndevices = [1]\ndata_pipeline = "loader"\n'
        '[[cells]]\nstrategies = ["single"]\ndevices = [1]\n',
        encoding="utf-8",
    )
    run = f"{sys.executable} -m bench run {matrix} {options} --data-root {tmp_path} --out {tmp_path / 'out'}"
    script = f"mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; exec {run}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system allows no mounts of one's own")
    assert done.returncode == 1, done.stderr
    found = {row["data_pipeline"]: row for row in rows(tmp_path / "out")}
    assert found["resident"]["status"] == "ok"
    assert found["loader"]["status"] in ("crashed", "oom")
    assert "shared memory" in found["loader"]["reason"] or "No space left" in found["loader"]["reason"]
