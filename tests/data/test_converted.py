"""Where converted data are written, by whom, and that their description can be read."""

import hashlib
import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tiny_dataset import FOLDER, assert_tiny, converted_names, leftovers, run

from bench.data import cifar, converted
from bench.errors import UserError

# ---------------------------------------------------------------------------------------------- where it is written


def unwritable(monkeypatch: pytest.MonkeyPatch, *roots: Path) -> None:
    """Make folders read-only in the eyes of the suite; permissions would not do for a superuser."""
    monkeypatch.setattr(converted.os, "access", lambda path, mode: Path(path) not in roots)


def test_read_only_root_sends_converted_files_to_the_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(root.rglob("*"))
    unwritable(monkeypatch, root)
    data = run(root)
    assert_tiny(data)
    assert data.train_inputs.is_relative_to(tmp_path / "cache" / "strategybench")
    assert sorted(root.rglob("*")) == before
    monkeypatch.setattr(cifar, "read", lambda *_: pytest.fail("sources were read again"))
    assert run(root) == data


def test_default_root_is_the_cache_folder(tmp_path: Path) -> None:
    data = run(None, "synthetic")
    assert data.train_inputs.is_relative_to(tmp_path / "cache" / "strategybench")


def test_nothing_writable(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unwritable(monkeypatch, root, tmp_path / "cache" / "strategybench")
    with pytest.raises(
        UserError,
        match=r"no folder for the data can be written to: .*\(Permission denied\), .*\(Permission denied\);\n",
    ):
        run(root, report=pytest.fail)


def test_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; as data root give a folder"):
        run(tmp_path / "file")
    with pytest.raises(UserError, match="the data folder cannot be written to"):
        run(tmp_path / "file" / "below")
    assert run(tmp_path / "file" / "below", "auto").synthetic


def test_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"could not write the converted data to .*: No space left on device"):
        run(root)
    assert not converted_names(root)
    assert not leftovers(root)


# ---------------------------------------------------------------------------------------------- two at once


def _prepare_in_child(root: Path, pipe: Connection) -> None:
    conversions = []
    read = cifar.read
    cifar.read = lambda *args: (conversions.append(1), read(*args))[1]  # type: ignore[func-returns-value]
    data = run(root, report=pipe.send)
    pipe.send((data, len(conversions)))


def test_two_processes_at_once_convert_once(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    with FileLock(root / ".strategybench.lock"):
        for _ in range(2):
            ours, theirs = context.Pipe()
            children.append(context.Process(target=_prepare_in_child, args=(root, theirs)))
            children[-1].start()
            pipes.append(ours)
        for pipe in pipes:
            assert pipe.poll(60)
            assert pipe.recv() == f"waiting for another process that prepares data in {root}"
    results = []
    for pipe, child in zip(pipes, children, strict=True):
        assert pipe.poll(60)
        results.append(pipe.recv())
        child.join(60)
        assert child.exitcode == 0
    assert results[0][0] == results[1][0]
    assert results[0][1] + results[1][1] == 1
    assert_tiny(results[0][0])
    assert len(converted_names(root)) == 1
    assert not leftovers(root)


def test_description_is_readable(root: Path) -> None:
    data = run(root)
    description = json.loads((data.train_inputs.parent / "dataset.json").read_text())
    assert description["fingerprint"] == data.fingerprint
    recorded = description["files"]["train_inputs.npy"]
    assert recorded["bytes"] == data.train_inputs.stat().st_size
    assert recorded["sha256"] == hashlib.sha256(data.train_inputs.read_bytes()).hexdigest()
    assert list(description["recipe"]["sources"]) == [str(root / FOLDER / name) for name in ("one", "two", "test")]
