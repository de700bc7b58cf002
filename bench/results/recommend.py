"""The answer in words: which strategy to use on this machine, by fixed rules from the summary alone.

The rules, in order:

1. No cell counts, or the baseline does not: nothing can be said, and the first reason is given.
2. Only the baseline counts: there is nothing to compare.
3. The fastest cell has no interval (fewer than two paired blocks): it is named, and that this may be chance.
4. The fastest cell's interval lies below 1: stay with the baseline.
5. Its interval contains 1, or its Holm-adjusted p is 0.05 or more, or the A/A control differs from 1 by as much:
   unclear, stay with the baseline until more blocks say otherwise.
6. Otherwise it is recommended. Cells whose intervals overlap with its own are named as not told apart from it, and
   among all of these the one on the fewest devices is named where it needs fewer.

Strong scaling is judged where it was run, since there all cells do the same work; weak scaling otherwise.
"""

from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from bench.factors import (
    CELL_FACTORS,
    CONTROL,
    FAILED_STATUSES,
    MEASURE,
    OK,
    STRONG,
    UNSUPPORTED,
    WEAK,
    is_baseline_row,
)

ALPHA = 0.05
MOST_NAMED = 4


@dataclass(frozen=True)
class Answer:
    """`headline` is one sentence; `details` are sentences that belong under it; `verdict` is which rule gave it."""

    verdict: Literal["use", "unclear", "stay", "no_interval", "nothing"]
    headline: str
    details: tuple[str, ...] = ()


def name_of(row: Any, summary: pd.DataFrame) -> str:
    """`ddp_amp on 2 devices`, with whatever else tells the cell from its namesakes in this summary."""
    same = summary[(summary["strategy"] == row["strategy"]) & (summary["devices"] == row["devices"])]
    same = same[(same["scaling"] == row["scaling"]) & (same["role"] == row["role"])]
    extra = []
    told = ("strategy", "devices", "scaling", "role")
    for column in (factor.name for factor in CELL_FACTORS if factor.name not in told):
        if len(same) > 1 and same[column].nunique() > 1 and pd.notna(row[column]) and row[column] != "":
            extra.append(f"{column.replace('_', ' ')} {row[column]}")
    count = int(row["devices"])
    words = f"{row['strategy']} on {count} device{'' if count == 1 else 's'}"
    return f"{words} ({', '.join(extra)})" if extra else words


def times(row: Any, *, decimals: int = 2, unit: str = "x") -> str:
    """A speedup in words: `1.83x [1.79, 1.87]`, without the brackets where there is no interval."""
    return " ".join(filter(None, (f"{row['speedup']:.{decimals}f}{unit}", interval_words(row, decimals=decimals))))


def interval_words(row: Any, *, decimals: int = 2) -> str:
    """The interval of a speedup, `[1.79, 1.87]`; "" where there is none."""
    low, high = row["speedup_low"], row["speedup_high"]
    return "" if pd.isna(low) or pd.isna(high) else f"[{low:.{decimals}f}, {high:.{decimals}f}]"


def answer(summary: pd.DataFrame) -> Answer:
    """Judge the summary of one machine and workload by the rules above."""
    measured = summary[summary["role"] == MEASURE]
    scaling = STRONG if (measured["scaling"] == STRONG).any() else WEAK
    cells = measured[(measured["scaling"] == scaling) & (measured["status"] == OK) & measured["speedup"].notna()]
    others = cells[[not is_baseline_row(row) for _, row in cells.iterrows()]] if len(cells) else cells
    trouble = _trouble(measured)
    if not len(cells):
        return Answer(
            "nothing", "Nothing can be compared: no cell and its baseline both have a run that counts.", trouble
        )
    if not len(others):
        return Answer("nothing", "Only the baseline has a run that counts, so there is nothing to compare.", trouble)
    best = others.sort_values("speedup", ascending=False, kind="stable").iloc[0]
    found = _judge(best, others, summary)
    weak = ("Weak scaling: more devices make fewer updates in an epoch, so accuracy may differ.",)
    return Answer(found.verdict, found.headline, found.details + (weak if scaling == WEAK else ()) + trouble)


def _judge(best: Any, others: pd.DataFrame, summary: pd.DataFrame) -> Answer:
    """Rules 3 to 6."""
    base = str(best["baseline"]).rsplit("@", 1)[0]
    name = name_of(best, summary)
    if pd.isna(best["speedup_low"]) or pd.isna(best["speedup_high"]):
        verdict = f"{times(best)} over {base}, from one pair of runs"
        if best["speedup"] > 1:
            headline = f"Fastest seen: {name}, {verdict}: there is no interval, so this may be chance."
        else:
            headline = f"Nothing was faster than {base}; the best other is {name}, {verdict}, without an interval."
        return Answer("no_interval", headline, ("Measure again with --blocks 5 or more to know how sure this is.",))
    if best["speedup_high"] < 1:
        return Answer("stay", f"Stay with {base}: nothing beats it. The best other is {name}, {times(best)}.", ())
    doubt = _doubt(best, summary)
    if doubt:
        headline = f"Unclear: {name} is the fastest seen, {times(best)} over {base}, but {doubt}."
        return Answer("unclear", headline, (f"Stay with {base}, or take more blocks.",))
    headline = f"On this machine use {name}: {times(best)} over {base}, {_efficiency(best)}."
    return Answer("use", headline, (*_rivals(best, others, summary), *_costs(best, summary)))


def _efficiency(row: Any) -> str:
    return f"{100 * row['efficiency']:.0f} % efficiency" if pd.notna(row["efficiency"]) else "efficiency not known"


def _doubt(best: Any, summary: pd.DataFrame) -> str:
    """Why the fastest cell cannot be told from the baseline, '' where it can."""
    if best["speedup_low"] <= 1:
        return "its interval contains 1"
    if pd.notna(best["p_value_holm"]) and best["p_value_holm"] >= ALPHA:
        return f"among so many cells one may look this fast by chance (adjusted p = {best['p_value_holm']:.2g})"
    control = summary[(summary["role"] == CONTROL) & (summary["scaling"] == best["scaling"])]
    control = control[control["speedup_high"].notna()]
    if len(control) and best["speedup"] <= max(
        float(control["speedup_high"].max()), 1 / float(control["speedup_low"].min())
    ):
        return "the baseline differs from itself by as much (A/A control)"
    return ""


def _rivals(best: Any, others: pd.DataFrame, summary: pd.DataFrame) -> tuple[str, ...]:
    """Cells whose intervals reach into the best one's, and the cheapest of them."""
    near = others[(others.index != best.name) & (others["speedup_high"] >= best["speedup_low"])]
    near = near.sort_values("speedup", ascending=False, kind="stable")
    if not len(near):
        return ("No other cell's interval overlaps with this one.",) if len(others) > 1 else ()
    words = [f"{name_of(row, summary)} {times(row)}" for _, row in near.head(MOST_NAMED).iterrows()]
    more = f" and {len(near) - MOST_NAMED} more" if len(near) > MOST_NAMED else ""
    sentences = [f"Unclear whether it is faster than {'; '.join(words)}{more}: the intervals overlap."]
    cheapest = near.sort_values(["devices", "speedup"], ascending=[True, False], kind="stable").iloc[0]
    if cheapest["devices"] < best["devices"]:
        sentences.append(f"Of these, {name_of(cheapest, summary)} needs the fewest devices.")
    return tuple(sentences)


def _costs(best: Any, summary: pd.DataFrame) -> tuple[str, ...]:
    """What the recommended cell costs in accuracy and memory beside its baseline, and which precision it needs."""
    base = summary[(summary["role"] == MEASURE) & (summary["scaling"] == best["scaling"])]
    base = base[[is_baseline_row(row) and row["baseline"] == best["baseline"] for _, row in base.iterrows()]]
    sentences = []
    if len(base):
        other = base.iloc[0]
        if pd.notna(best["test_accuracy"]) and pd.notna(other["test_accuracy"]):
            sentences.append(
                f"Test accuracy {100 * best['test_accuracy']:.1f} %, baseline {100 * other['test_accuracy']:.1f} %."
            )
        if pd.notna(best["peak_memory_bytes"]) and pd.notna(other["peak_memory_bytes"]):
            sentences.append(
                f"Peak memory {best['peak_memory_bytes'] / 2**30:.2f} GiB per device, "
                f"baseline {other['peak_memory_bytes'] / 2**30:.2f} GiB."
            )
        if best["precision"] != other["precision"]:
            sentences.append(f"It computes in {best['precision']}, the baseline in {other['precision']}.")
    return tuple(sentences)


def _trouble(measured: pd.DataFrame) -> tuple[str, ...]:
    """How many cells have no figure."""
    failed = int(measured["status"].isin(FAILED_STATUSES).sum())
    unsupported = int((measured["status"] == UNSUPPORTED).sum())
    sentences = []
    if failed:
        sentences.append(f"{failed} cell{'' if failed == 1 else 's'} failed; the table gives the reasons.")
    if unsupported:
        sentences.append(f"{unsupported} cell{' is' if unsupported == 1 else 's are'} not supported here.")
    return tuple(sentences)
