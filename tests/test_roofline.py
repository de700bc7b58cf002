"""Achieved rates against the machine's own, worked out by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from bench.results.limits import arithmetic, calibration, exchange

CELL = {"series": "ddp", "devices": 4, "scaling": "strong", "cell": "ddp 4", "role": "measure", "status": "ok"}
RUN = {
    "series": "ddp",
    "devices": 4,
    "scaling": "strong",
    "role": "measure",
    "status": "ok",
    "backend": "nccl",
    "replicas": 4,
    "same_work": True,
    "gradient_bytes": 100_000_000,
    "step_seconds_median": 0.05,
    "timed_steps": 10,
    "comm_trace_seconds": None,
}
MEASURED = {"all_reduce_bus_bytes_per_second": 30e9, "matrix_flops_per_second": {"fp32": 100e9}}


def found(*runs: dict, measured: object = None) -> list[dict[str, str]]:
    frame = pd.DataFrame(runs).astype({"comm_trace_seconds": "float64", "gradient_bytes": "Int64"})
    return exchange(pd.DataFrame([CELL]), frame, MEASURED if measured is None else measured)


def test_arithmetic_is_set_against_all_devices_at_the_precision_s_own_rate() -> None:
    """150 GFLOP/s on two devices of 100 GFLOP/s each: 75 %; another precision has no rate, so no row."""
    summary = pd.DataFrame(
        {
            "cell": ["ddp 2", "ddp_amp 2", "dp 2"],
            "precision": ["fp32", "amp-bf16", "fp32"],
            "devices": [2, 2, 2],
            "status": ["ok", "ok", "unsupported"],
            "achieved_flops_per_second": [150e9, 150e9, None],
        }
    )
    (row,) = arithmetic(summary, MEASURED)
    assert row == {"cell": "ddp 2", "achieved": "150", "limit": "200", "share": "75%"}


def test_the_least_time_of_an_exchange() -> None:
    """100 MB over 4 replicas: 150 MB past each, 5 ms at 30 GB/s, 10 % of a step of 50 ms."""
    (row,) = found(RUN)
    assert row == {
        "cell": "ddp 4",
        "gradients": "100",
        "least": "5",
        "share": "10.0%",
        "achieved": "",
        "limit": "30",
    }


def test_the_achieved_rate_comes_from_the_traces_of_breakdown_runs() -> None:
    """150 MB a step in 0.1 s over 10 steps: 15 GB/s."""
    (row,) = found(RUN, RUN | {"role": "breakdown", "comm_trace_seconds": 0.1})
    assert (row["achieved"], row["limit"]) == ("15", "30")


@pytest.mark.parametrize(
    "change",
    [{"backend": ""}, {"replicas": 1}, {"same_work": False}, {"gradient_bytes": None}, {"status": "crashed"}],
    ids=str,
)
def test_runs_without_an_exchange_of_known_size_have_no_row(change: dict) -> None:
    assert found(RUN | change) == []


@pytest.mark.parametrize("rate", [None, "x", 0, True])
def test_without_a_measured_rate_there_is_no_table(rate: object) -> None:
    assert found(RUN, measured={"all_reduce_bus_bytes_per_second": rate}) == []
    assert found(RUN, measured={}) == []


@pytest.mark.parametrize("environment", [{}, {"volatile": 3}, {"volatile": {"calibration": None}}])
def test_an_environment_without_rates(environment: dict) -> None:
    assert calibration(environment) == {}
