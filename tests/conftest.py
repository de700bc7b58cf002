"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA_VARIABLE = "STRATEGYBENCH_TEST_DATA"


@pytest.fixture(scope="session")
def cifar_root() -> Path:
    """The folder that holds cifar-10-batches-py; tests that need real images skip without it."""
    folder = os.environ.get(DATA_VARIABLE, "")
    if not (Path(folder) / "cifar-10-batches-py").is_dir():
        pytest.skip(f"{DATA_VARIABLE} names no folder with cifar-10-batches-py")
    return Path(folder)
