"""Checkpoints of the bare model: written by one strategy, loaded by any other, on any device."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import psutil
import torch

from strategies.base import Strategy


class CheckpointError(Exception):
    """The file cannot be used; the message names it and says why."""


def save_checkpoint(path: Path, state: dict[str, Any], *, workload: str, epoch: int) -> None:
    """Write beside the target and rename: an interruption leaves the old file whole.

    What a process that was killed while writing this target left beside it is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save({"workload": workload, "epoch": epoch, **state}, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """A model's size each time, they would fill the disk; those of a process that is alive are its own."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.([0-9]+)\.tmp")
    for file in path.parent.iterdir():
        match = pattern.fullmatch(file.name)
        if match and not psutil.pid_exists(int(match[1])):
            file.unlink(missing_ok=True)


def read_checkpoint(path: Path, *, workload: str) -> dict[str, Any]:
    """The state in a checkpoint, on the CPU. Raises CheckpointError when it is damaged or of another workload."""
    if not path.exists():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        # torch reads tensors without looking at the archive's checksums: a flipped bit would train on as a weight.
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
        state = None if wrong else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged file fails anywhere in the readers of zip and pickle.
        raise CheckpointError(f"checkpoint {path} is damaged or not a checkpoint: {type(error).__name__}") from None
    if wrong:
        raise CheckpointError(f"checkpoint {path} is damaged: the checksum of {wrong} does not match")
    if not isinstance(state, dict) or not {"workload", "model", "optimizer"} <= state.keys():
        raise CheckpointError(f"checkpoint {path} was not written by this suite")
    if state["workload"] != workload:
        raise CheckpointError(f"checkpoint {path} is of workload {state['workload']}, this run trains {workload}")
    return state


def load_checkpoint(path: Path, strategy: Strategy, *, workload: str) -> None:
    """Start a built strategy from a checkpoint. Raises CheckpointError as `read_checkpoint` does."""
    strategy.load_bare_state(read_checkpoint(path, workload=workload))
