"""The vocabulary: every factor and every word that the files use, once.

A factor is a column that tells one cell from another. Keys of cells and rows, run ids, labels, series in charts, the
columns of runs.csv and summary.csv, keys of a matrix, the options of `bench run`, and how the summary, `compare` and
`--resume` match cells are all derived from `FACTORS`, so that a further factor is one entry here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bench.errors import UserError

PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16")
"""In the order in which they stand in for each other where a baseline of a cell's own precision was not measured."""

MEMORY_FORMATS = ("contiguous", "channels_last")
COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune")
ONE_BATCH = "synthetic_device"
"""The pipeline that gives one batch over and over: other work than an epoch's, on which losses part too far."""

DATA_PIPELINES = ("resident", "loader", ONE_BATCH)
STRONG, WEAK = "strong", "weak"
SCALINGS = (STRONG, WEAK)
DEVICE_KINDS = ("cpu", "cuda")
DATASET_NAMES = ("auto", "cifar10", "cifar100", "synthetic")
"""What can be asked for; `auto` is the real one that the workload wants, or synthetic samples in its place."""

WARM, COLD = "warm", "cold"
STARTS = (WARM, COLD)

OK, INVALID, UNSUPPORTED, CRASHED, INTERRUPTED = "ok", "invalid", "unsupported", "crashed", "interrupted"
STATUSES = (OK, UNSUPPORTED, INVALID, "oom", "timeout", CRASHED, INTERRUPTED)
WORST_FIRST = (INVALID, CRASHED, "oom", "timeout", INTERRUPTED, UNSUPPORTED, OK)
"""Statuses by how much a reader should worry."""

FAILED_STATUSES = tuple(status for status in STATUSES if status not in (OK, UNSUPPORTED))
MEASURED_STATUSES = (OK, INVALID)
"""Statuses of a run that came to its end. Of several attempts the last such counts, and without one the last."""

MEASURE, CONTROL, BREAKDOWN = "measure", "control", "breakdown"
ROLES = (MEASURE, CONTROL, BREAKDOWN)

Matching = Literal["named", "same", "batch", "prefer"]


@dataclass(frozen=True)
class Factor:
    """One factor. `name` is its column, of `kind` str or int, with `unit` and `meaning` as the tables of columns say.

    scope: a value of its own in each cell, or one for the whole campaign.
    key: what a matrix calls it, "" where no matrix names it; `many` where the key takes a list, over which the matrix
        is the product. `values` are its vocabulary, empty where any text or whole number from 1 will do.
    default: what goes without saying, in names and where a matrix does not say; None where every value is said.
    by_strategy: a strategy has a default of its own, `default_<name>`, which stands where a matrix does not say.
    tag: how a value stands in a run's id. words: how it stands in a name that a person reads.
    matching: how the cell that another one is compared with is found. `named` factors are chosen by the baseline,
        `same` ones must agree, `batch` is the global batch, which agrees by the kind of scaling, and of what is left
        a cell that agrees in the `prefer` factors is taken first, those of low `preference` before the others.
    help: the option's text on the help page.
    """

    name: str
    kind: Literal["str", "int"]
    meaning: str
    unit: str = ""
    scope: Literal["cell", "campaign"] = "cell"
    key: str = ""
    many: bool = False
    values: tuple[str, ...] = ()
    default: Any = None
    by_strategy: bool = False
    tag: str = "{}"
    words: str = "{}"
    matching: Matching = "same"
    preference: int = 99
    help: str = ""

    def said(self, value: Any) -> bool:
        """Whether a name says this value: it is there, and not what goes without saying."""
        return value not in (None, "") and value != self.default


FACTORS: tuple[Factor, ...] = (
    Factor("strategy", "str", "registry name", key="strategies", many=True, matching="named",
           help="Names with commas between; see `bench list strategies`."),
    Factor("devices", "int", "GPUs, or equal shares of the CPU cores", unit="devices", key="devices", many=True,
           tag="{}d", matching="named", help="Device counts with commas between, or auto."),
    Factor("scaling", "str", "strong: global batch fixed as devices grow; weak: batch per part fixed", key="scaling",
           many=True, values=SCALINGS, default=STRONG, matching="prefer", preference=1,
           help="strong (global batch fixed), weak (batch per part fixed), or both with a comma."),
    Factor("precision", "str", "fp32, tf32, amp-bf16 or amp-fp16", key="precision", many=True, values=PRECISIONS,
           by_strategy=True, matching="prefer", preference=2, help="fp32, tf32, amp-bf16, amp-fp16; commas between."),
    Factor("role", "str", "measure: a headline run; control: the baseline's A/A twin; breakdown: never headline",
           values=ROLES, default=MEASURE, matching="named"),
    Factor("workload", "str", "registry name: model, loss, optimizer and transforms", scope="campaign"),
    Factor("dataset", "str", "what was trained on", scope="campaign"),
    Factor("data_pipeline", "str", "how batches reach the device", key="data_pipeline", values=DATA_PIPELINES,
           default="resident", help="resident, loader (torchvision transforms and DataLoader) or synthetic_device."),
    Factor("memory_format", "str", "contiguous or channels_last", key="memory_format", values=MEMORY_FORMATS,
           default="contiguous", by_strategy=True, matching="prefer", preference=3,
           help="contiguous or channels_last."),
    Factor("compile", "str", "torch.compile mode, or off", key="compile", values=COMPILE_MODES, default="off",
           tag="compile-{}", words="compile {}", by_strategy=True, matching="prefer", preference=4,
           help="off, default, reduce-overhead or max-autotune."),
    Factor("variant", "str", "options of the strategy that differ from its defaults, as key=value;key=value",
           matching="prefer", preference=6),
    Factor("device_kind", "str", "cpu or cuda", scope="campaign", values=DEVICE_KINDS),
    Factor("threads_per_device", "int", "CPU threads of each device, the same in every cell of a matrix",
           unit="threads", scope="campaign", words="threads {}"),
    Factor("batch_global", "int", "samples per optimizer step over all parts", unit="samples", key="batch",
           tag="g{}", words="batch {}", matching="batch", help="Global batch (strong) or batch per part (weak)."),
    Factor("accumulate", "int", "micro-batches per optimizer step", key="accumulate", default=1, tag="a{}",
           words="accumulate {}", matching="prefer", preference=5, help="Micro-batches per optimizer step."),
)  # fmt: skip

BY_NAME: Mapping[str, Factor] = {factor.name: factor for factor in FACTORS}
FACTOR_NAMES = tuple(BY_NAME)
"""The columns of runs.csv that identify a cell; rows that agree in all of them are repeats of one another."""

CELL_FACTORS = tuple(factor for factor in FACTORS if factor.scope == "cell")
MATRIX_FACTORS = tuple(factor for factor in FACTORS if factor.key)
MACHINE = "environment_id"
"""The column that keeps machines apart: no factor, since a campaign has one machine, but part of what a cell is."""

CELL_COLUMNS = (*FACTOR_NAMES, MACHINE)
"""What tells the cells of any number of campaigns apart."""


class HasFactors(Protocol):
    """A planned or a measured cell, or a row: a value for each factor by its name."""

    def __getitem__(self, name: str, /) -> Any: ...


def cell_key(cell: HasFactors) -> tuple[Any, ...]:
    """What tells a cell from all others of its campaign, from a cell or from a row of runs.csv."""
    return tuple(cell[factor.name] for factor in CELL_FACTORS)


def run_tag(cell: HasFactors) -> str:
    """The part of a run's id that names its cell: every factor whose value does not go without saying."""
    parts = (factor.tag.format(cell[factor.name]) for factor in CELL_FACTORS if factor.said(cell[factor.name]))
    return "-".join("".join(c if c.isalnum() or c in "-_." else "_" for c in part) for part in parts)


def cell_name(cell: HasFactors) -> str:
    """`ddp@2 amp-bf16 weak`: strategy and devices, then what does not go without saying; the batch is left out."""
    rest = [factor for factor in CELL_FACTORS if factor.name not in ("strategy", "devices", "batch_global")]
    rest.sort(key=lambda factor: factor.default is not None)
    said = [factor.words.format(cell[factor.name]) for factor in rest if factor.said(cell[factor.name])]
    return " ".join([f"{cell['strategy']}@{cell['devices']}", *said])


def varying(cells: Iterable[HasFactors], names: Iterable[str] = CELL_COLUMNS) -> list[str]:
    """Those of the names in which these cells differ."""
    found = list(cells)
    return [name for name in names if len({cell[name] for cell in found}) > 1]


# -- the baseline -----------------------------------------------------------------------------------------------------

DEFAULT_BASELINE = "single@1"


@dataclass(frozen=True)
class Baseline:
    """A strategy and a number of devices, written `NAME[@DEVICES]`: what speedups refer to."""

    strategy: str
    devices: int

    @classmethod
    def parse(cls, text: str | None) -> Baseline:
        """The baseline of that spelling, by default single@1. Raises UserError for another one."""
        name, at, devices = (text or DEFAULT_BASELINE).partition("@")
        wrong = f": {devices!r} is no device count" if at and not re.fullmatch(r"[1-9][0-9]*", devices) else ""
        if wrong or not re.fullmatch(r"\S+", name):
            raise UserError(f"--baseline {text!r} is not NAME[@DEVICES], such as single@1 or ddp@2{wrong}")
        return cls(name, int(devices or 1))

    def __str__(self) -> str:
        return f"{self.strategy}@{self.devices}"

    def matches(self, cell: HasFactors) -> bool:
        """Whether this is the cell, planned or measured, that others are compared with; its twin is not."""
        return cell["role"] == MEASURE and self._is_named_by(cell)

    def has_as_run(self, cell: HasFactors) -> bool:
        """Whether a headline run of this cell is one of the baseline's: its own, or its twin's."""
        return cell["role"] in (MEASURE, CONTROL) and self._is_named_by(cell)

    def _is_named_by(self, cell: HasFactors) -> bool:
        return (cell["strategy"], cell["devices"]) == (self.strategy, self.devices)


def baseline_name(cell: HasFactors) -> str:
    """How the column `baseline` of summary.csv names the cell that a speedup refers to: strategy@devices precision."""
    return f"{cell['strategy']}@{cell['devices']} {cell['precision']}"


# -- how cells match --------------------------------------------------------------------------------------------------

SAME_SETTING = (*(factor.name for factor in FACTORS if factor.matching == "same"), MACHINE)
"""What two cells must share to have done comparable work with the same share of the same machine."""

PREFERRED = tuple(
    factor.name for factor in sorted(FACTORS, key=lambda factor: factor.preference) if factor.matching == "prefer"
)


def rank_in(factor: Factor, value: Any) -> int:
    """The place of a value in its factor's vocabulary; one that is not in it comes last."""
    return factor.values.index(value) if value in factor.values else len(factor.values)


def same_setting(cell: HasFactors, other: HasFactors) -> bool:
    """Whether two cells did comparable work on the same machine with the same share of it for each device."""
    return all(cell[name] == other[name] for name in SAME_SETTING)


def is_baseline_row(row: HasFactors) -> bool:
    """Whether a row of summary.csv is the cell that others are compared with."""
    return row["role"] == MEASURE and bool(row["baseline"]) and row["baseline"] == baseline_name(row)
