"""What is to be measured: a preset or a TOML file, changed by the command's options. A Matrix that exists is valid.

Top-level keys hold for the whole campaign. The keys of a group (`strategies`, `devices`, ...) may stand at the top,
and then make one group, or in `[[cells]]` tables, each of which is a group of its own that inherits what it does
not say. The matrix is the product of each group's lists; what two groups have in common is measured once.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.factors import DATASET_NAMES, DEFAULT_BASELINE, DEVICE_KINDS, MATRIX_FACTORS, STARTS, Factor
from bench.plan.options import (
    COMPARED,
    HOW_MUCH,
    MACHINE,
    Reader,
    factor_options,
    number,
    one_of,
    option,
    options_of,
    read_key,
    seconds,
    seconds_or,
    switch,
    tables,
    text,
    whole,
    whole_or,
)
from bench.plan.toml import line_of, toml_text, toml_value

AUTO = 0
WORDS: dict[str, dict[str, Any]] = {"steps": {"epoch": None, "auto": AUTO}, "blocks": {"auto": AUTO}}
"""Words that stand for a value in a matrix, and for which."""

MANY_CELLS = 12
"""A matrix of more cells is a race unless it says otherwise."""

TURNS_AUTO, TURNS_OFF = "auto", "off"
TURN_SECONDS = {"cpu": 2.0, "cuda": 0.5}
"""About how long a turn is where the matrix leaves it to the suite."""


def _unsaid(factor: Factor) -> Any:
    """What stands in a group that does not say: the factor's default, or as strategy, workload or machine have it."""
    settled = None if factor.by_strategy else factor.default
    return ((settled,) if settled is not None else ()) if factor.many else settled


GROUP_DEFAULTS: dict[str, Any] = {factor.key: _unsaid(factor) for factor in MATRIX_FACTORS}


@dataclass(frozen=True, init=False)
class Group:
    """One product of lists, by the keys of the factors. None or () means: as strategy, workload or machine have it."""

    values: Mapping[str, Any]

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - GROUP_DEFAULTS.keys()
        if unknown:
            raise TypeError(f"a group has no key {', '.join(sorted(unknown))}")
        object.__setattr__(self, "values", GROUP_DEFAULTS | given)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def changed(self, **given: Any) -> Group:
        return Group(**{**self.values, **given})


@dataclass(frozen=True)
class Matrix:
    """A campaign's plan as asked for. Durations in seconds.

    `steps` None is a whole epoch, 0 as many as fit `time_target`; `blocks` 0 is auto. `turns` is about how long a turn
    is, "auto" or "off".
    """

    name: str
    groups: tuple[Group, ...]
    description: str = option("", read=text)
    device: str = option("auto", help="auto, cpu or cuda.", read=one_of("auto", *DEVICE_KINDS))
    workload: str = option("resnet50-cifar10", help="See `bench list workloads`.", read=text)
    dataset: str = option("auto", help="auto, cifar10, cifar100 or synthetic.", read=one_of(*DATASET_NAMES))
    steps: int | None = option(
        None,
        help="Timed steps of an epoch, at most its full batches; epoch; or auto, by --time-target.",
        panel=HOW_MUCH,
        shape="whole or word",
        read=whole_or(WORDS["steps"]),
    )
    warmup_steps: int = option(
        2, help="Untimed steps before the model goes back to its start.", panel=HOW_MUCH, shape="whole", read=whole(0)
    )
    epochs: int = option(1, help="Epochs to train; one row each.", panel=HOW_MUCH, shape="whole", read=whole(1))
    blocks: int = option(
        1,
        help="Repeats of the whole matrix, or auto.",
        panel=HOW_MUCH,
        shape="whole or word",
        read=whole_or(WORDS["blocks"]),
    )
    # torch's generators take 64 bits, and each epoch's order has a seed of its own made from this one.
    seed: int = option(
        0, help="Seed of weights, order and augmentation.", panel=MACHINE, shape="whole", read=whole(0, 2**32 - 1)
    )
    threads_per_device: int | None = option(
        None, help="CPU threads of each device.", panel=MACHINE, shape="whole", read=whole(1)
    )
    start: str = option(
        "auto",
        help="warm (ranks forked from a process that has torch loaded), cold (a fresh interpreter each), or auto.",
        panel=MACHINE,
        read=one_of("auto", *STARTS),
    )
    timeout: float = option(3600.0, help="Seconds a single run may take.", panel=MACHINE, shape="number", read=number)
    baseline: str = option(DEFAULT_BASELINE, help="NAME[@DEVICES] that speedups refer to.", panel=COMPARED, read=text)
    control: bool = option(
        True, help="No A/A twin of the baseline.", panel=COMPARED, shape="switch", flag="--no-control", read=switch
    )
    breakdown: bool = option(
        False, help="Add marked runs that time the parts of a step.", panel=COMPARED, shape="switch", read=switch
    )
    trace: bool = option(
        False,
        help="With --breakdown: keep the profiler's trace in the run's log folder.",
        panel=COMPARED,
        shape="switch",
        read=switch,
    )
    precision_target: float | None = option(
        None, help="blocks auto: half-width to reach, such as 0.01.", panel=HOW_MUCH, shape="number", read=number
    )
    max_blocks: int = option(30, help="blocks auto: most blocks.", panel=HOW_MUCH, shape="whole", read=whole(2))
    time_target: float | None = option(
        None,
        help="How long the campaign should take, such as 20m: steps and blocks that are auto follow from it.",
        panel=HOW_MUCH,
        read=seconds,
    )
    turns: float | str = option(
        TURNS_AUTO,
        help="Runs of a block side by side, timed in turns: about so many seconds each, auto, or off.",
        panel=HOW_MUCH,
        read=seconds_or(TURNS_AUTO, TURNS_OFF),
    )
    time_limit: float | None = option(
        None, help="Seconds after which no further block begins.", panel=HOW_MUCH, shape="number", read=number
    )
    race: bool | None = option(
        None,
        help=f"No further blocks for cells surely slower than the fastest; default with more than {MANY_CELLS} cells.",
        panel=HOW_MUCH,
        shape="either",
        flag="--race/--no-race",
        read=switch,
    )
    repeat_disturbed: int = option(
        0,
        help="Times to repeat a run that a throttling device or another process disturbed.",
        panel=HOW_MUCH,
        shape="whole",
        read=whole(0),
    )
    loader_workers: int = option(2, help="DataLoader workers a process.", panel=MACHINE, shape="whole", read=whole(0))
    options: Mapping[str, Mapping[str, Any]] = option(
        {}, help="STRATEGY.OPTION=VALUE, commas sweep; repeatable.", shape="sets", flag="--set", read=tables
    )


GROUP_KEYS: dict[str, Reader] = {known.name: known.read for known in factor_options() if known.read}
TOP_KEYS: dict[str, Reader] = {known.name: known.read for known in options_of(Matrix) if known.read}


# -- reading ----------------------------------------------------------------------------------------------------------


def preset_folder() -> Path:
    """Where the presets are, inside the package."""
    return Path(__file__).with_name("presets")


def preset_names() -> list[str]:
    """Names of the presets inside the package."""
    return sorted(path.stem for path in preset_folder().glob("*.toml"))


def load_matrix(name: str) -> Matrix:
    """A preset by name, or a TOML file by path. Raises UserError naming what is wrong, with its line."""
    if name in preset_names():
        text = (preset_folder() / f"{name}.toml").read_text(encoding="utf-8")
        return parse_matrix(text, name=name, source=f"preset {name}")
    path = Path(name)
    if not name.endswith(".toml"):
        raise UserError(
            f"unknown preset {name!r}; known are {', '.join(preset_names())}, or give a file ending in .toml"
        )
    try:
        # Some editors begin a file with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"could not read {path}: {getattr(error, 'strerror', None) or error}") from None
    return parse_matrix(text, name=path.stem, source=str(path))


def parse_matrix(source_text: str, *, name: str, source: str) -> Matrix:
    """The matrix that a TOML text describes. Raises UserError naming key and line."""
    try:
        table = tomllib.loads(source_text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}") from None

    def where(section: int | None) -> Callable[[str], str]:
        def place(key: str) -> str:
            line = line_of(source_text, key, section)
            return f"{source}, line {line}" if line else source

        return place

    # A campaign's matrix.toml also says its name and, under [campaign], what was found; it can be run again as it is.
    name = read_key("name", table.pop("name", name), {"name": text}, where(None))
    if not isinstance(table.pop("campaign", {}), dict):
        raise UserError(f"{where(None)('campaign')}: campaign must be a table")
    cells = table.pop("cells", [])
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{where(None)('cells')}: cells must be tables, each under [[cells]]")
    readers = {**TOP_KEYS, **GROUP_KEYS}
    values = {key: read_key(key, value, readers, where(None)) for key, value in table.items()}
    common = Group(**{key: values.pop(key) for key in list(values) if key in GROUP_KEYS})
    groups = tuple(
        common.changed(**{key: read_key(key, value, GROUP_KEYS, where(index)) for key, value in cell.items()})
        for index, cell in enumerate(cells)
    )
    return Matrix(name=name, groups=groups or (common,), **values)


def override(matrix: Matrix, options: Mapping[str, Any]) -> Matrix:
    """The matrix changed by the command's options (None: not given). A group's option replaces the key in all groups.

    Raises UserError naming the option.
    """
    given = {key: value for key, value in options.items() if value is not None}
    readers = {**TOP_KEYS, **GROUP_KEYS}
    values = {
        key: read_key(key, value, readers, lambda key: "--" + key.replace("_", "-")) for key, value in given.items()
    }
    shared = {key: values.pop(key) for key in list(values) if key in GROUP_KEYS}
    if "options" in values:
        merged = {name: dict(table) for name, table in matrix.options.items()}
        for name, table in values["options"].items():
            merged.setdefault(name, {}).update(table)
        values["options"] = merged
    groups = tuple(dict.fromkeys(group.changed(**shared) for group in matrix.groups))
    return replace(matrix, groups=groups, **values)


def to_toml(matrix: Matrix, extra: Mapping[str, Any]) -> str:
    """The matrix as TOML that `parse_matrix` reads back, with further facts of the campaign under [campaign]."""
    top = {item.name: getattr(matrix, item.name) for item in fields(Matrix) if item.name not in ("groups", "options")}
    top = {key: in_words(key, value) for key, value in top.items() if value != ""}
    sections: list[tuple[str, Mapping[str, Any]]] = [("", top)]
    sections += [("[[cells]]", group.values) for group in matrix.groups]
    sections += [(f"[options.{toml_value(strategy)}]", table) for strategy, table in matrix.options.items()]
    return toml_text([*sections, ("[campaign]", extra)])


def in_words(key: str, value: Any) -> Any:
    """The value as a matrix spells it."""
    return next((word for word, stands_for in WORDS.get(key, {}).items() if stands_for == value), value)


def from_resolved(text: str, *, source: str) -> tuple[Matrix, dict[str, Any]]:
    """What `to_toml` wrote: the matrix, and the facts under [campaign]. Raises UserError for anything else."""
    matrix = parse_matrix(text, name="matrix", source=source)
    return matrix, dict(tomllib.loads(text).get("campaign", {}))


def option_sets(options: Mapping[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of a strategy's options; a list sweeps that option."""
    names = list(options)
    values = [value if isinstance(value, list) else [value] for value in options.values()]
    return [tuple(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]
