"""How far each cell is from what the machine can do: its arithmetic and its exchange against measured rates.

The rates are those of `bench doctor --measure`: a plain matrix product by precision, and the bus bandwidth of an
all-reduce. Without them both tables are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.factors import BREAKDOWN, MEASURE, OK

CELL_KEYS = ["series", "devices", "scaling"]


def calibration(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """What environment.json holds of the machine's measured rates, {} where it holds none."""
    return _table(_table(environment.get("volatile")).get("calibration"))


def arithmetic(summary: pd.DataFrame, measured: Mapping[str, Any]) -> list[dict[str, str]]:
    """Achieved FLOP/s of each ok cell, and its share of devices x the measured rate of its precision."""
    rates = _table(measured.get("matrix_flops_per_second"))
    found = []
    for _, row in summary.iterrows():
        rate = _positive(rates.get(str(row["precision"])))
        if row["status"] != OK or rate is None or pd.isna(row["achieved_flops_per_second"]):
            continue
        achieved, limit = float(row["achieved_flops_per_second"]), rate * int(row["devices"])
        found.append(
            {
                "cell": str(row["cell"]),
                "achieved": f"{achieved / 1e9:.4g}",
                "limit": f"{limit / 1e9:.4g}",
                "share": f"{achieved / limit:.0%}",
            }
        )
    return found


def exchange(summary: pd.DataFrame, runs: pd.DataFrame, measured: Mapping[str, Any]) -> list[dict[str, str]]:
    """What exchanging the gradients costs at least, and at which rate it went, for each ok cell of several processes.

    A ring all-reduce over n replicas moves 2 (n - 1) / n times the gradients' bytes past each (nccl-tests' bus
    bandwidth). Over the measured rate that is the least time an exchange takes; compute may hide it. The achieved
    rate is the same bytes over the collectives' time in the traces of breakdown runs, waiting for peers included.
    `runs` needs `series` beside the columns of runs.csv. Strategies that compress their gradients are left out.
    """
    limit = _positive(measured.get("all_reduce_bus_bytes_per_second"))
    if limit is None:
        return []
    found = []
    for _, row in summary[(summary["status"] == OK) & (summary["role"] == MEASURE)].iterrows():
        own = runs[(runs[CELL_KEYS] == row[CELL_KEYS]).all(axis=1) & (runs["status"] == OK)]
        own = own[own["gradient_bytes"].notna() & own["backend"].ne("") & own["replicas"].gt(1)]
        own = own[own["same_work"].fillna(True)]
        headline, split = own[own["role"] == MEASURE], own[own["role"] == BREAKDOWN]
        if not len(headline):
            continue
        replicas = int(headline["replicas"].iloc[0])
        gradients = int(headline["gradient_bytes"].iloc[0])
        moved = 2 * (replicas - 1) / replicas * gradients
        step = float(headline["step_seconds_median"].median())
        # A row a run: collectives' seconds of one step.
        communicating = (split["comm_trace_seconds"] / split["timed_steps"].astype("float64")).median()
        found.append(
            {
                "cell": str(row["cell"]),
                "gradients": f"{gradients / 1e6:.4g}",
                "least": f"{moved / limit * 1e3:.3g}",
                "share": f"{moved / limit / step:.1%}",
                "achieved": "" if not communicating > 0 else f"{moved / communicating / 1e9:.3g}",
                "limit": f"{limit / 1e9:.3g}",
            }
        )
    return found


def _table(value: Any) -> Mapping[str, Any]:
    """A part of environment.json, whatever an edited file has in its place."""
    return value if isinstance(value, Mapping) else {}


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None
