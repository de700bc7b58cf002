"""Where a speedup comes from, and what it costs: gains from precision and from devices, and COST."""

from collections import defaultdict
from collections.abc import Sequence

from bench.factors import BY_NAME, CELL_COLUMNS, FACTOR_NAMES, MEASURE, OK
from bench.results.cells import Key, MeasuredCell, find_reference, sort_key
from bench.results.statistics import geometric_mean, median

MAY_CHANGE_WITH_DEVICES = frozenset({"devices", "scaling", "role", "batch_global", "accumulate"})
"""In what a cell on one device may differ from the one on several that is said to gain from them: under weak scaling
the batch grows with the devices, and micro-batches may then make room for it."""

MAY_CHANGE_WITH_PRECISION = frozenset({"strategy", "precision", "memory_format", "variant"})
"""In what a cell may differ from its twin at another precision: the twin has a name and defaults of its own."""

MAY_CHANGE_IN_COST = frozenset({"devices", "batch_global", "accumulate"})
"""In what the cells of one answer to COST differ."""


def paired_ratio(
    cell: MeasuredCell, reference: MeasuredCell | None, baseline: MeasuredCell | None = None
) -> float | None:
    """Geometric mean over blocks of samples/s ÷ the reference's, so that it multiplies up with speedups.

    Where the two were never in one cohort, each is set against the baseline of its own, and these against each other.
    """
    if reference is None or cell.status != OK:
        return None
    own, other = cell.paired_rates(reference)
    if own:
        return geometric_mean([a / b for a, b in zip(own, other, strict=True)])
    if baseline is None or baseline in (cell, reference):
        return None
    speedup, its = paired_ratio(cell, baseline), paired_ratio(reference, baseline)
    return speedup / its if speedup and its else None


def gains(cell: MeasuredCell, reference: MeasuredCell | None, cells: Sequence[MeasuredCell]) -> dict[str, float | None]:
    """`gain_from_precision` and `gain_from_devices` of a cell whose baseline is `reference`; None where unknown.

    A cell at the baseline's precision, or on one device, is its own twin: its gain there is 1.
    """
    if cell["role"] != MEASURE:
        return {"gain_from_precision": None, "gain_from_devices": None}

    def one_device(other: MeasuredCell) -> bool:
        alike = all(other[name] == cell[name] for name in FACTOR_NAMES if name not in MAY_CHANGE_WITH_DEVICES)
        return other["role"] == MEASURE and other["devices"] == 1 and alike

    alone = cell if one_device(cell) else find_reference(cell, cells, one_device)
    twin = _twin_at_baseline_precision(cell, reference, cells) if reference is not None else None
    return {
        "gain_from_precision": paired_ratio(cell, twin, reference),
        "gain_from_devices": paired_ratio(cell, alone, reference),
    }


def _twin_at_baseline_precision(
    cell: MeasuredCell, reference: MeasuredCell, cells: Sequence[MeasuredCell]
) -> MeasuredCell | None:
    """The same cell at the baseline's precision: of the same name, else of its plain twin's."""
    if cell["precision"] == reference["precision"]:
        return cell
    fixed = [name for name in CELL_COLUMNS if name not in MAY_CHANGE_WITH_PRECISION]
    names = (cell["strategy"], cell.fact("plain_twin"))
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
    if not BY_NAME["compile"].said(cell["compile"]) or not cell.counts or cell["role"] != MEASURE:
        return ""
    same = [name for name in CELL_COLUMNS if name != "compile"]
    eager = next(
        (
            o
            for o in cells
            if o["compile"] == BY_NAME["compile"].default and o.counts and all(o[name] == cell[name] for name in same)
        ),
        None,
    )
    seconds = median([value for run in cell.ok_runs if (value := run.first("compile_seconds")) is not None])
    if eager is None or seconds is None:
        return ""
    before, after = (median([run.epoch_seconds or 0.0 for run in c.ok_runs]) or 0.0 for c in (eager, cell))
    return f"{seconds / (before - after):.3g}" if before > after else "never"


def is_cost_opponent(cell: MeasuredCell) -> bool:
    """Whether this is the tuned single device: a strategy that is its own tuned twin, on one device without a group."""
    alone = cell["devices"] == 1 and not cell.fact("backend")
    return cell["role"] == MEASURE and alone and cell.fact("tuned_twin") == cell["strategy"]


def costs(cells: Sequence[MeasuredCell]) -> dict[Key, str]:
    """COST by cell key: the fewest devices at which the cell's strategy beats the tuned single device, or never.

    McSherry, Isard and Murray, "Scalability! But at what COST?", HotOS 2015. A strategy's cells that differ only in
    devices and batch share one answer; the fastest opponent that fits is the one to beat.
    """
    families: dict[Key, list[MeasuredCell]] = defaultdict(list)
    opponents = [cell for cell in cells if is_cost_opponent(cell)]
    names = {cell["strategy"] for cell in opponents}
    for cell in cells:
        if cell["role"] == MEASURE and cell["strategy"] not in names:
            families[tuple(cell[name] for name in CELL_COLUMNS if name not in MAY_CHANGE_IN_COST)].append(cell)
    answers = {}
    for family in families.values():
        rivals = [(cell, rate) for cell in family if cell.counts and (rate := _rate_to_beat(cell, opponents))]
        beating = [cell["devices"] for cell, rate in rivals if (cell.middle_rate or 0) > rate]
        if rivals:
            answers.update({cell.key: str(min(beating)) if beating else "never" for cell in family})
    return answers


def _rate_to_beat(cell: MeasuredCell, opponents: Sequence[MeasuredCell]) -> float | None:
    """Samples/s of the fastest opponent that did comparable work, at whatever precision."""
    fitting = (find_reference(cell, [other], lambda _: True) for other in opponents)
    return max((other.middle_rate or 0.0 for other in fitting if other is not None), default=None)
