"""Values from a file that another process wrote, held against the types of the dataclass that they are to become."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def build(kind: type[T], values: Any) -> T:
    """A dataclass of JSON's values. Raises ValueError naming the first field that is missing, unknown or of a type."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{_shown(values)} stands in place of its fields")
    hints = _hints(typing.cast(Any, kind))
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in values if name not in fields]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"no {missing[0]}")
    return kind(**{name: _checked(value, hints[name], name) for name, value in values.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(value: Any, hint: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (one for one in arguments if one is not type(None))
        return _checked(value, hint, name)
    if origin is list:
        if isinstance(value, list):
            return [_checked(one, arguments[0], name) for one in value]
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _checked(one, arguments[1], name) for key, one in value.items()}
    elif dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
