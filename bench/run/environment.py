"""The variables that ranks and their server are started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.kinship import PARENT_VARIABLE
from bench.machine import network
from bench.machine.environment import BINDING_VARIABLES
from bench.run.leftovers import RUN_VARIABLE
from bench.wire import RunSpec

SPAWN_VARIABLE = "STRATEGYBENCH_SPAWN_NS"

UNDONE = BINDING_VARIABLES | {PARENT_VARIABLE}
"""Variables that ranks do not inherit."""


def load_time_variables(spec: RunSpec) -> dict[str, str]:
    """What libraries read while they are loaded, so that it stands in the server's environment: the same for all runs.

    Every cell gets the same threads, whatever the user's shell says.
    """
    variables = {
        "OMP_NUM_THREADS": str(spec.threads_per_device),
        "MKL_NUM_THREADS": str(spec.threads_per_device),
        # numpy would start threads as it is imported, and a process with threads must not fork.
        "OPENBLAS_NUM_THREADS": "1",
        # The driver's numbering, so that the GPUs a run uses are those that were detected and whose telemetry is read.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if spec.device_kind == "cpu":
        # torch.nn.DataParallel takes every GPU that it can see, wherever the model is.
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


def rank_environment(spec: RunSpec, rank: int, *, asked: int) -> dict[str, str]:
    """Variables of one rank, beside those it inherits; `asked` is when its run was asked for, in nanoseconds.

    All ranks of a run are on this machine, so they meet on the loopback interface whatever a preset variable says:
    another one would have them listen where other machines reach them. A variable that names no interface at all was
    refused before, since it is more likely a mistake than meant for other programs.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.processes),
        "LOCAL_WORLD_SIZE": str(spec.processes),
        SPAWN_VARIABLE: str(asked),
        RUN_VARIABLE: str(Path(spec.folder).resolve()),
        **load_time_variables(spec),
        **network.loopback_variables(),
    }


def passed_on(inherited: Mapping[str, str]) -> dict[str, str]:
    """What ranks inherit."""
    return {name: value for name, value in inherited.items() if name not in UNDONE}


def server_environment(spec: RunSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a server: it holds what all its ranks share, and says which campaign it is of."""
    marker = {RUN_VARIABLE: str(Path(spec.folder).resolve().parent)}
    return passed_on(inherited) | load_time_variables(spec) | marker


def agent_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent, which finds the same packages as this process: not those of the current folder."""
    return {**inherited, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
