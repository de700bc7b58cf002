"""A campaign's folder that is open for writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.run.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "campaign")
    yield made
    made.close()
