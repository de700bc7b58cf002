"""Rows as a campaign stores them, and a disk that takes only part of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


def a_run(run_id: str, **values: object) -> dict[str, object]:
    return {
        "schema_version": 1,
        "role": "measure",
        "run_id": run_id,
        "strategy": "ddp",
        "block": 0,
        "status": "ok",
    } | values


def a_step(run_id: str, step: int) -> dict[str, object]:
    return {"run_id": run_id, "rank": 0, "epoch": 1, "step": step, "seconds": 0.5, "data_wait_seconds": 0.0}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel takes no byte beyond that size, and takes the part before it: as a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- a disk that refuses ---------------------------------------------------------------------------------------------
