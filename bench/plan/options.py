"""What an option is: how a value is read and what is right, how the command takes it, and where its help stands.

An option is stated once, where its value is kept: a factor in `bench.factors`, a key of the campaign as a field of
`Matrix`, a place or a switch as a field of the command's request. The keys of a TOML file, the options of `bench run`,
their help page, and the messages about wrong values are derived from there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bench.errors import UserError
from bench.factors import MATRIX_FACTORS, Factor

WHAT, HOW_MUCH, COMPARED, RESULTS, MACHINE = (
    "What is measured",
    "How much of it",
    "What it is compared with",
    "Where results go",
    "How runs are made",
)
PANELS = (WHAT, HOW_MUCH, COMPARED, RESULTS, MACHINE)
"""The groups of the help page, in their order."""

Shape = Literal[
    "text", "whole", "number", "switch", "either", "path", "paths", "commas", "whole commas", "whole or word", "sets"
]
Reader = Callable[[Any], Any]


class Wrong(Exception):
    """The message says what would be right."""


@dataclass(frozen=True)
class Option:
    """One option. `read` checks a value from TOML or the command; `shape` is how the command takes it.

    `flag` is its spelling where that is not --name: `--no-name` of a switch that gives False, `--name/--no-name` of one
    that gives either. Without `help` the command has no
    such option.
    """

    name: str
    help: str = ""
    panel: str = WHAT
    shape: Shape = "text"
    flag: str = ""
    read: Reader | None = None

    @property
    def spelling(self) -> str:
        return self.flag or "--" + self.name.replace("_", "-")


def option(
    default: Any = None,
    *,
    help: str = "",
    panel: str = WHAT,
    shape: Shape = "text",
    flag: str = "",
    read: Reader | None = None,
) -> Any:
    """A field of a dataclass that is an option."""
    facts = {"help": help, "panel": panel, "shape": shape, "flag": flag, "read": read}
    if isinstance(default, (dict, list)):
        return field(default_factory=type(default), metadata={"option": facts})
    return field(default=default, metadata={"option": facts})


def options_of(owner: type) -> Iterator[Option]:
    """The options among the fields of a dataclass, in their order."""
    for item in fields(owner):
        if "option" in item.metadata:
            yield Option(item.name, **item.metadata["option"])


def factor_options() -> Iterator[Option]:
    """The options of the factors that a matrix names, by their keys."""
    for factor in MATRIX_FACTORS:
        shape: Shape = "whole" if factor.kind == "int" else "text"
        if factor.many:
            shape = "whole commas" if factor.kind == "int" else "commas"
        yield Option(factor.key, factor.help, WHAT, shape, "", reader_of(factor))


# -- values: how they are read, and what is right ---------------------------------------------------------------------


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("a text")
    return value


def one_of(*choices: str) -> Reader:
    def read(value: Any) -> str:
        if value not in choices:
            raise Wrong("one of " + ", ".join(choices))
        return str(value)

    return read


def whole(low: int, high: int | None = None) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or value > (high or value):
            raise Wrong(f"a whole number of at least {low}" + (f" and at most {high}" if high else ""))
        return value

    return read


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Wrong("a number above 0")
    return float(value)


_UNITS = {"h": 3600, "m": 60, "min": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)\s*(h|min|m|s)?\s*)")


def seconds(value: Any) -> float:
    """A number of seconds above 0, or a text such as 90, 90s, 20m or 1h30m."""
    if not isinstance(value, str):
        return number(value)
    parts = _DURATION.findall(value)
    whole_text = re.fullmatch(f"(?:{_DURATION.pattern})+", value.strip())
    if not whole_text or (len(parts) > 1 and not all(unit for _, unit in parts)):
        raise Wrong('a time above 0, such as 90, "90s", "20m" or "1h30m"')
    return number(sum(float(count) * _UNITS[unit or "s"] for count, unit in parts))


def seconds_or(*words: str) -> Reader:
    """A time above 0, or one of some words."""

    def read(value: Any) -> Any:
        if value in words:
            return value
        try:
            return seconds(value)
        except Wrong:
            said = ", ".join(f'"{word}"' for word in words)
            raise Wrong(f'{said}, or a time above 0 such as 2 or "2s"') from None

    return read


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong("true or false")
    return value


def list_of(read: Reader) -> Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise Wrong("at least one value")
        return tuple(dict.fromkeys(read(item) for item in values))

    return read_all


def whole_or(words: Mapping[str, Any]) -> Reader:
    """A whole number of at least 1, or a word that stands for a value of its own."""

    def read(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return words[value]
        try:
            return whole(1)(value)
        except Wrong:
            said = " or ".join(f'"{word}"' for word in words)
            raise Wrong(f"a whole number of at least 1, or {said}") from None

    return read


def tables(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise Wrong("tables such as [options.ddp]")
    return value


def reader_of(factor: Factor) -> Reader:
    """How a matrix reads a factor: by its vocabulary, or a text, or a whole number from 1; counts may be `auto`."""
    item = one_of(*factor.values) if factor.values else whole(1) if factor.kind == "int" else text
    if not factor.many:
        return item
    each = list_of(item)
    if factor.kind == "str":
        return each
    return lambda value: () if value == "auto" else each(value)


# -- from the command's words to values -------------------------------------------------------------------------------


def from_words(option: Option, given: Any) -> Any:
    """The value of an option as typed; None, not given, stays None. Raises UserError naming the option."""
    if given is None:
        return None
    if option.shape == "switch":
        return (not option.spelling.startswith("--no-")) if given else None
    if option.shape in ("commas", "whole commas"):
        if given == "auto":
            return given
        return comma_list(given, option.spelling, int if option.shape == "whole commas" else str)
    if option.shape == "whole or word":
        return number_or_word(given)
    return parse_settings(given) if option.shape == "sets" else given


def comma_list(given: str, spelling: str, read: Callable[[str], Any] = str) -> list[Any]:
    """`1,2` -> [1, 2]. Raises UserError naming the option."""
    try:
        values = [read(part.strip()) for part in given.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"{spelling} {given}: give whole numbers with commas between, such as {spelling} 1,2") from None
    if not values:
        raise UserError(f"{spelling} {given!r}: give at least one value")
    return values


def number_or_word(given: str) -> int | str:
    try:
        return int(given)
    except ValueError:
        return given


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]] | None:
    """`ddp.bucket_cap_mb=5` -> {"ddp": {"bucket_cap_mb": 5}}; several values with commas sweep. Raises UserError."""
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        place, equals, words = setting.partition("=")
        strategy, dot, name = place.partition(".")
        if not (equals and dot and strategy and name and words):
            raise UserError(f"--set {setting}: give STRATEGY.OPTION=VALUE, such as ddp.bucket_cap_mb=5")
        values = [_value(part) for part in words.split(",")]
        found.setdefault(strategy, {})[name] = values[0] if len(values) == 1 else values
    return found or None


def _value(words: str) -> Any:
    """A number, true or false as JSON writes it; any other text is itself."""
    try:
        value = json.loads(words)
    except ValueError:
        return words
    plain = isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else words


def read_key(key: str, value: Any, readers: Mapping[str, Reader], where: Callable[[str], str]) -> Any:
    """A key's value, read by its reader. Raises UserError, beginning with `where(key)`, where it is wrong."""
    if key not in readers:
        raise UserError(f"{where(key)}: unknown key {key!r}; known are {', '.join(readers)}")
    try:
        return readers[key](value)
    except Wrong as wrong:
        raise UserError(f"{where(key)}: {key} = {_shown(value)} is not right; it takes {wrong}") from None


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
