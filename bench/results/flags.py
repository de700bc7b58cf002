"""What a careful reader should know about a cell: each flag with its cause, and a floor below which it is quiet.

Flags never remove a run or change a figure. `what_to_do` gives the advice that goes with each.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.factors import CONTROL
from bench.results.cells import MeasuredCell, MeasuredRun
from bench.results.statistics import Interval, drift, median, modified_z

UNSTEADY_COV = 0.10
UNSTEADY_STEPS = 4
OUTLIER_Z = 3.5
OUTLIER_DEVIATION = 0.02
OUTLIER_RUNS = 5
DRIFT_PERCENT = 2.0
DRIFT_P = 0.01
DRIFT_RUNS = 10
FOREIGN_CPU = 0.10
CLOCK_FRACTION = 0.75
DROPPED_SHARE = 0.01
SKIPPED_SHARE = 0.01
CONTROL_DEVIATION = 0.005
HARMLESS_THROTTLE = frozenset({"none", "gpu_idle", "applications_clocks_setting", "display_clock_setting"})
"""Bits that say why the clock is what it is, without the device being held back."""

ADVICE = {
    "unsteady_steps": "Raise --warmup-steps or --steps, and look in steps.csv for the steps that stand out.",
    "stalled_run": "Look in steps.csv and in its log for what held it up; it stays in the figures: take more blocks.",
    "outlying_run": "Read that run's log and what else the machine did then; the run stays in the figures.",
    "drift": "Let the machine warm up before the campaign, and take more blocks: their random order protects speedups.",
    "foreign_cpu": "Stop other programs and measure again: they took cores from the runs.",
    "gpu_throttle": "See to cooling and the power limit, or lock the clocks with nvidia-smi -lgc, and measure again.",
    "low_clock": "Look for a power or thermal limit, or a locked clock, with nvidia-smi -q -d CLOCK,PERFORMANCE.",
    "foreign_gpu_process": "Stop the other processes on the device (nvidia-smi lists them) and measure again.",
    "dropped_samples": "Choose a --batch that divides the dataset more evenly if accuracy matters to you.",
    "skipped_steps": "Use bfloat16 where the device has it; the loss scale that warm-up found was too large.",
    "control_differs": "Equal runs differ more than chance explains: trust no speedup closer to 1 than this one.",
    "out_of_race": "It got no further blocks, so its interval rests on fewer; without --race it gets as many as all.",
    "measured_again": "The first attempts stay in runs.csv with their reasons; check there that they deserved it.",
}


@dataclass(frozen=True)
class Flag:
    """`key` is one of `ADVICE`; `text` names the cause with its figures."""

    key: str
    text: str


def what_to_do(flag_key: str) -> str:
    """One sentence of advice. Raises KeyError for a key that no flag has."""
    return ADVICE[flag_key]


_WORDS = {
    "unsteady_steps": "unsteady steps",
    "stalled_run": "stalled run",
    "outlying_run": "outlying run",
    "drift": "drift over the campaign",
    "foreign_cpu": "load from other processes",
    "gpu_throttle": "GPU throttled",
    "low_clock": "low GPU clock",
    "foreign_gpu_process": "foreign process on the GPU",
    "dropped_samples": "dropped samples",
    "skipped_steps": "skipped AMP steps",
    "control_differs": "A/A interval excludes 1",
    "out_of_race": "out of the race",
    "measured_again": "measured again",
}


def flagged(key: str, text: str) -> Flag:
    """The flag whose text begins with the words of its key. Raises KeyError for a key that no flag has."""
    return Flag(key, f"{_WORDS[key]}: {text}")


def cell_flags(cell: MeasuredCell, *, interval: Interval | None = None) -> list[Flag]:
    """The flags of one cell; `interval` is its speedup's, which only a control cell is judged by."""
    found = [check(cell.ok_runs) for check in _CHECKS] if cell.ok_runs else []
    if cell["role"] == CONTROL and interval is not None:
        found.append(_control(interval))
    if cell.superseded:
        found.append(
            flagged("measured_again", f"{_runs(cell.superseded)} repeated, the last attempt that was measured counts")
        )
    return [flag for flag in found if flag is not None]


def disturbances(run: MeasuredRun) -> list[Flag]:
    """What outside the suite disturbed this run. Its speed plays no part in it.

    So a stalled run is none: runs that are measured again because they were slow would make their cell look faster than
    it is, and just those cells whose runs vary most.
    """
    checks = (_foreign_cpu, _throttle, _low_clock, _foreign_gpu)
    return [flag for check in checks if (flag := check([run])) is not None]


def campaign_drift(cells: Sequence[MeasuredCell]) -> Flag | None:
    """Whether throughput changed with the order of the runs, over all cells of one machine together."""
    runs = sorted(((run.moment, cell.key, run) for cell in cells for run in cell.ok_runs), key=lambda item: item[:1])
    rates = [run.samples_per_second or 0.0 for _, _, run in runs]
    if len(runs) < DRIFT_RUNS:
        return None
    trend = drift(rates, range(len(runs)), [key for _, key, _ in runs])
    if trend is None or trend.p >= DRIFT_P or abs(trend.percent) <= DRIFT_PERCENT:
        return None
    return flagged("drift", f"samples/s changed by {trend.percent:+.1f} % from first to last run (p = {trend.p:.2g})")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _over(runs: Sequence[MeasuredRun], column: str, floor: float) -> list[float]:
    """The largest value of each run that lies above the floor."""
    largest = [max(run.values(column), default=0.0) for run in runs]
    return [value for value in largest if value > floor]


def _unsteady(runs: Sequence[MeasuredRun]) -> Flag | None:
    values = [
        value
        for run in runs
        for row in run.rows
        if (value := row.get("step_seconds_cov")) is not None and (row.get("timed_steps") or 0) >= UNSTEADY_STEPS
    ]
    middle = median(values)
    if middle is None or middle <= UNSTEADY_COV:
        return None
    return flagged("unsteady_steps", f"step times vary by {100 * middle:.0f} % (CoV, median over {_runs(len(runs))})")


def _outlier(runs: Sequence[MeasuredRun]) -> Flag | None:
    if len(runs) < OUTLIER_RUNS:
        return None
    rates = [run.samples_per_second or 0.0 for run in runs]
    middle = median(rates) or 1.0
    found = [
        (abs(z), run, rate / middle - 1)
        for run, rate, z in zip(runs, rates, modified_z(rates), strict=True)
        if abs(z) > OUTLIER_Z and abs(rate / middle - 1) > OUTLIER_DEVIATION
    ]
    if not found:
        return None
    z, run, deviation = max(found, key=lambda item: item[0])
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return flagged(
        "outlying_run",
        f"{run.first('run_id')}{more}, {100 * deviation:+.1f} % from the median samples/s (modified z {z:.1f})",
    )


def _foreign_cpu(runs: Sequence[MeasuredRun]) -> Flag | None:
    found = _over(runs, "foreign_cpu_fraction", FOREIGN_CPU)
    if not found:
        return None
    return flagged("foreign_cpu", f"up to {100 * max(found):.0f} % of all cores in {_runs(len(found))} of {len(runs)}")


def _throttle(runs: Sequence[MeasuredRun]) -> Flag | None:
    names: set[str] = set()
    touched = 0
    for run in runs:
        words = {word for text in run.values("gpu_throttle_reasons") for word in re.split(r"[;,|\s]+", text) if word}
        words -= {word for word in words if word.lower() in HARMLESS_THROTTLE}
        names |= words
        touched += bool(words)
    if not names:
        return None
    return flagged("gpu_throttle", f"{', '.join(sorted(names))} in {_runs(touched)} of {len(runs)}")


def _low_clock(runs: Sequence[MeasuredRun]) -> Flag | None:
    lowest = [min(run.values("gpu_clock_fraction"), default=1.0) for run in runs]
    found = [value for value in lowest if value < CLOCK_FRACTION]
    if not found:
        return None
    return flagged("low_clock", f"down to {100 * min(found):.0f} % of default in {_runs(len(found))} of {len(runs)}")


def _foreign_gpu(runs: Sequence[MeasuredRun]) -> Flag | None:
    found = _over(runs, "gpu_foreign_processes", 0)
    if not found:
        return None
    return flagged("foreign_gpu_process", f"up to {int(max(found))} in {_runs(len(found))} of {len(runs)}")


def _dropped(runs: Sequence[MeasuredRun]) -> Flag | None:
    shares = [
        (row["dropped_samples"] / row["epoch_samples"], row)
        for run in runs
        for row in run.rows
        if row.get("dropped_samples") and row.get("epoch_samples")
    ]
    share, row = max(shares, key=lambda item: item[0], default=(0.0, {}))
    if share <= DROPPED_SHARE:
        return None
    return flagged(
        "dropped_samples",
        f"{row['dropped_samples']} of {row['epoch_samples']} ({100 * share:.1f} %) fill no global batch",
    )


def _skipped(runs: Sequence[MeasuredRun]) -> Flag | None:
    pairs = [(sum(run.values("skipped_steps")), run.total("timed_steps") or 0) for run in runs]
    found = [(skipped / steps, skipped, steps) for skipped, steps in pairs if steps and skipped / steps > SKIPPED_SHARE]
    if not found:
        return None
    _, skipped, steps = max(found)
    return flagged("skipped_steps", f"up to {skipped} of {steps} in {_runs(len(found))} of {len(runs)}")


def _control(interval: Interval) -> Flag | None:
    """Half a percent is the floor: a smaller difference is beyond what the suite claims to resolve."""
    if not interval.excludes_one or abs(interval.ratio - 1) <= CONTROL_DEVIATION:
        return None
    return flagged(
        "control_differs",
        f"the baseline measured twice gives {interval.ratio:.3f} [{interval.low:.3f}, {interval.high:.3f}]",
    )


_CHECKS: tuple[Callable[[Sequence[MeasuredRun]], Flag | None], ...] = (
    _unsteady,
    _outlier,
    _foreign_cpu,
    _throttle,
    _low_clock,
    _foreign_gpu,
    _dropped,
    _skipped,
)
