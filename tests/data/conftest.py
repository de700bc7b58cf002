"""Folders of a test's own, with and without the tiny dataset in them."""

from pathlib import Path

import pytest
from tiny_dataset import FOLDER, ROWS, official


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own, and no proxy between it and its server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with the tiny dataset's batch files in it."""
    folder = tmp_path / "data" / FOLDER
    folder.mkdir(parents=True)
    for name in ROWS:
        (folder / name).write_bytes(official(name))
    return tmp_path / "data"
