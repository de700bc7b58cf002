"""Where a speedup comes from, and what it costs: gains from precision and from devices, and COST."""

from collections import defaultdict
from collections.abc import Sequence

from bench.results.cells import Key, MeasuredCell, find_reference, sort_key
from bench.results.columns import FACTORS
from bench.results.statistics import geometric_mean, median

TUNED = "single_tuned"
PLAIN_NAME_SUFFIX = "_amp"
"""`ddp_amp` is the DDP strategy at another precision: its twin at the baseline's precision is `ddp`."""


def paired_ratio(cell: MeasuredCell, reference: MeasuredCell | None) -> float | None:
    """Geometric mean over blocks of samples/s ÷ the reference's, so that it multiplies up with speedups."""
    if reference is None or cell.status != "ok":
        return None
    own, other = cell.paired_rates(reference)
    return geometric_mean([a / b for a, b in zip(own, other, strict=True)]) if own else None


def gains(cell: MeasuredCell, reference: MeasuredCell | None, cells: Sequence[MeasuredCell]) -> dict[str, float | None]:
    """`gain_from_precision` and `gain_from_devices` of a cell whose baseline is `reference`; None where unknown.

    A cell at the baseline's precision, or on one device, is its own twin: its gain there is 1.
    """
    if cell["role"] != "measure":
        return {"gain_from_precision": None, "gain_from_devices": None}

    def one_device(other: MeasuredCell) -> bool:
        own = ("strategy", "precision", "memory_format", "compile", "variant")
        return other["role"] == "measure" and other["devices"] == 1 and all(other[n] == cell[n] for n in own)

    twin = _twin_at_baseline_precision(cell, reference, cells) if reference is not None else None
    return {
        "gain_from_precision": paired_ratio(cell, twin),
        "gain_from_devices": paired_ratio(cell, cell if one_device(cell) else find_reference(cell, cells, one_device)),
    }


def _twin_at_baseline_precision(
    cell: MeasuredCell, reference: MeasuredCell, cells: Sequence[MeasuredCell]
) -> MeasuredCell | None:
    """The same cell at the baseline's precision: of the same name, else of the name without `_amp`."""
    if cell["precision"] == reference["precision"]:
        return cell
    varying = {"strategy", "precision", "memory_format", "variant"}
    fixed = [name for name in (*FACTORS, "environment_id") if name not in varying]
    names = (cell["strategy"], cell["strategy"].removesuffix(PLAIN_NAME_SUFFIX))
    twins = [
        other
        for other in cells
        if other.counts
        and other["precision"] == reference["precision"]
        and other["strategy"] in names
        and all(other[name] == cell[name] for name in fixed)
    ]

    def preference(other: MeasuredCell) -> Key:
        differs = [other[name] != cell[name] for name in ("strategy", "memory_format", "variant")]
        return (*differs, sort_key(other.key))

    return min(twins, key=preference, default=None)


def compile_pays(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> str:
    """Epochs after which torch.compile has saved the time it took: median compile seconds / seconds saved an epoch.

    Against the same cell with compile off; `never` where it saves none, "" where there is no such cell.
    """
    if cell["compile"] in ("off", "") or not cell.counts or cell["role"] != "measure":
        return ""
    same = [name for name in (*FACTORS, "environment_id") if name != "compile"]
    eager = next(
        (o for o in cells if o["compile"] == "off" and o.counts and all(o[name] == cell[name] for name in same)), None
    )
    seconds = median([value for run in cell.ok_runs if (value := run.first("compile_seconds")) is not None])
    if eager is None or seconds is None:
        return ""
    before, after = (median([run.epoch_seconds or 0.0 for run in c.ok_runs]) or 0.0 for c in (eager, cell))
    return f"{seconds / (before - after):.3g}" if before > after else "never"


def costs(cells: Sequence[MeasuredCell]) -> dict[Key, str]:
    """COST by cell key: the fewest devices at which the cell's strategy beats single_tuned, or never.

    McSherry, Isard and Murray, "Scalability! But at what COST?", HotOS 2015. A strategy's cells that differ only in
    devices and batch share one answer; the fastest single_tuned that fits is the one to beat.
    """
    families: dict[Key, list[MeasuredCell]] = defaultdict(list)
    varying = {"devices", "batch_global", "accumulate"}
    for cell in cells:
        if cell["role"] == "measure" and cell["strategy"] != TUNED:
            families[tuple(value for name, value in sorted(cell.factors.items()) if name not in varying)].append(cell)
    answers = {}
    for family in families.values():
        rivals = [(cell, rate) for cell in family if cell.counts and (rate := _tuned_rate(cell, cells))]
        beating = [cell["devices"] for cell, rate in rivals if (cell.middle_rate or 0) > rate]
        if rivals:
            answers.update({cell.key: str(min(beating)) if beating else "never" for cell in family})
    return answers


def _tuned_rate(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> float | None:
    """Samples/s of the fastest single_tuned on one device that did comparable work, at whatever precision."""
    tuned = [
        other for other in cells if other["strategy"] == TUNED and other["devices"] == 1 and other["role"] == "measure"
    ]
    fitting = (find_reference(cell, [other], lambda _: True) for other in tuned)
    return max((other.middle_rate or 0.0 for other in fitting if other is not None), default=None)
