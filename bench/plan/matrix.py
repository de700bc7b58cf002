"""What is to be measured: a preset or a TOML file, changed by the command's options. A Matrix that exists is valid.

Top-level keys hold for the whole campaign. The keys of a group (`strategies`, `devices`, ...) may stand at the top,
and then make one group, or in `[[cells]]` tables, each of which is a group of its own that inherits what it does
not say. The matrix is the product of each group's lists; what two groups have in common is measured once.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.plan.toml import line_of, toml_text, toml_value

SCALINGS = ("strong", "weak")

PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16")

MEMORY_FORMATS = ("contiguous", "channels_last")

DATA_PIPELINES = ("resident", "loader", "synthetic_device")

COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune")

DEVICE_KINDS = ("auto", "cpu", "cuda")

DATASETS = ("auto", "cifar10", "cifar100", "synthetic")


@dataclass(frozen=True)
class Group:
    """One product of lists. None or an empty tuple means: as the strategy, the workload or the machine has it."""

    strategies: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    scaling: tuple[str, ...] = ("strong",)
    precision: tuple[str, ...] = ()
    batch: int | None = None
    accumulate: int = 1
    memory_format: str | None = None
    compile: str | None = None
    data_pipeline: str = "resident"


@dataclass(frozen=True)
class Matrix:
    """A campaign's plan as asked for. Durations in seconds; `steps` None is a whole epoch; `blocks` 0 is auto."""

    name: str
    groups: tuple[Group, ...]
    description: str = ""
    device: str = "auto"
    workload: str = "resnet50-cifar10"
    dataset: str = "auto"
    steps: int | None = None
    warmup_steps: int = 2
    epochs: int = 1
    blocks: int = 1
    seed: int = 0
    threads_per_device: int | None = None
    timeout: float = 3600.0
    baseline: str = "single@1"
    control: bool = True
    breakdown: bool = False
    trace: bool = False
    precision_target: float | None = None
    max_blocks: int = 30
    time_limit: float | None = None
    repeat_disturbed: int = 0
    loader_workers: int = 2
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# -- one table of keys: how a value is read and what is right ---------------------------------------------------------


class _Wrong(Exception):
    """What would be right."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Wrong("a text")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise _Wrong("one of " + ", ".join(choices))
        return str(value)

    return read


def _integer(low: int, high: int | None = None) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or value > (high or value):
            raise _Wrong(f"a whole number of at least {low}" + (f" and at most {high}" if high else ""))
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise _Wrong("a number above 0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("true or false")
    return value


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise _Wrong("at least one value")
        return tuple(dict.fromkeys(read(item) for item in values))

    return read_all


def _devices(value: Any) -> tuple[int, ...]:
    return () if value == "auto" else _list_of(_integer(1))(value)


def _steps(value: Any) -> int | None:
    if value == "epoch":
        return None
    try:
        return _integer(1)(value)
    except _Wrong:
        raise _Wrong('a whole number of at least 1, or "epoch"') from None


def _blocks(value: Any) -> int:
    if value == "auto":
        return 0
    try:
        return _integer(1)(value)
    except _Wrong:
        raise _Wrong('a whole number of at least 1, or "auto"') from None


def _options(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise _Wrong("tables such as [options.ddp]")
    return value


GROUP_KEYS: dict[str, Callable[[Any], Any]] = {
    "strategies": _list_of(_text),
    "devices": _devices,
    "scaling": _list_of(_one_of(*SCALINGS)),
    "precision": _list_of(_one_of(*PRECISIONS)),
    "batch": _integer(1),
    "accumulate": _integer(1),
    "memory_format": _one_of(*MEMORY_FORMATS),
    "compile": _one_of(*COMPILE_MODES),
    "data_pipeline": _one_of(*DATA_PIPELINES),
}

TOP_KEYS: dict[str, Callable[[Any], Any]] = {
    "description": _text,
    "device": _one_of(*DEVICE_KINDS),
    "workload": _text,
    "dataset": _one_of(*DATASETS),
    "steps": _steps,
    "warmup_steps": _integer(0),
    "epochs": _integer(1),
    "blocks": _blocks,
    # torch's generators take 64 bits, and each epoch's order has a seed of its own made from this one.
    "seed": _integer(0, 2**32 - 1),
    "threads_per_device": _integer(1),
    "timeout": _number,
    "baseline": _text,
    "control": _flag,
    "breakdown": _flag,
    "trace": _flag,
    "precision_target": _number,
    "max_blocks": _integer(2),
    "time_limit": _number,
    "repeat_disturbed": _integer(0),
    "loader_workers": _integer(0),
    "options": _options,
}


def _read(key: str, value: Any, readers: Mapping[str, Callable[[Any], Any]], where: Callable[[str], str]) -> Any:
    if key not in readers:
        raise UserError(f"{where(key)}: unknown key {key!r}; known are {', '.join(readers)}")
    try:
        return readers[key](value)
    except _Wrong as wrong:
        raise UserError(f"{where(key)}: {key} = {_shown(value)} is not right; it takes {wrong}") from None


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


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


def parse_matrix(text: str, *, name: str, source: str) -> Matrix:
    """The matrix that a TOML text describes. Raises UserError naming key and line."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}") from None

    def where(section: int | None) -> Callable[[str], str]:
        def place(key: str) -> str:
            line = line_of(text, key, section)
            return f"{source}, line {line}" if line else source

        return place

    # A campaign's matrix.toml also says its name and, under [campaign], what was found; it can be run again as it is.
    name = _read("name", table.pop("name", name), {"name": _text}, where(None))
    if not isinstance(table.pop("campaign", {}), dict):
        raise UserError(f"{where(None)('campaign')}: campaign must be a table")
    cells = table.pop("cells", [])
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{where(None)('cells')}: cells must be tables, each under [[cells]]")
    readers = {**TOP_KEYS, **GROUP_KEYS}
    values = {key: _read(key, value, readers, where(None)) for key, value in table.items()}
    common = Group(**{key: values.pop(key) for key in list(values) if key in GROUP_KEYS})
    groups = tuple(
        replace(common, **{key: _read(key, value, GROUP_KEYS, where(index)) for key, value in cell.items()})
        for index, cell in enumerate(cells)
    )
    return Matrix(name=name, groups=groups or (common,), **values)


def override(matrix: Matrix, options: Mapping[str, Any]) -> Matrix:
    """The matrix changed by the command's options (None: not given). A group's option replaces the key in all groups.

    Raises UserError naming the option.
    """
    given = {key: value for key, value in options.items() if value is not None}
    readers = {**TOP_KEYS, **GROUP_KEYS}
    values = {key: _read(key, value, readers, lambda key: "--" + key.replace("_", "-")) for key, value in given.items()}
    shared = {key: values.pop(key) for key in list(values) if key in GROUP_KEYS}
    if "options" in values:
        merged = {name: dict(table) for name, table in matrix.options.items()}
        for name, table in values["options"].items():
            merged.setdefault(name, {}).update(table)
        values["options"] = merged
    groups = tuple(dict.fromkeys(replace(group, **shared) for group in matrix.groups))
    return replace(matrix, groups=groups, **values)


def to_toml(matrix: Matrix, extra: Mapping[str, Any]) -> str:
    """The matrix as TOML that `parse_matrix` reads back, with further facts of the campaign under [campaign]."""
    words = {"steps": "epoch", "blocks": "auto"}
    top = {item.name: getattr(matrix, item.name) for item in fields(Matrix) if item.name not in ("groups", "options")}
    top = {key: words[key] if key in words and not value else value for key, value in top.items() if value != ""}
    sections: list[tuple[str, Mapping[str, Any]]] = [("", top)]
    sections += [("[[cells]]", {key: getattr(group, key) for key in GROUP_KEYS}) for group in matrix.groups]
    sections += [(f"[options.{toml_value(strategy)}]", table) for strategy, table in matrix.options.items()]
    return toml_text([*sections, ("[campaign]", extra)])


def from_resolved(text: str, *, source: str) -> tuple[Matrix, dict[str, Any]]:
    """What `to_toml` wrote: the matrix, and the facts under [campaign]. Raises UserError for anything else."""
    matrix = parse_matrix(text, name="matrix", source=source)
    return matrix, dict(tomllib.loads(text).get("campaign", {}))


def option_sets(options: Mapping[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of a strategy's options; a list sweeps that option."""
    names = list(options)
    values = [value if isinstance(value, list) else [value] for value in options.values()]
    return [tuple(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]
