"""TOML out, and where a key stands in a text: the standard parser only reads, and keeps no lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_TABLE = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""^\s*["']?([A-Za-z0-9_-]+)["']?\s*(?:\.|=)""")


def line_of(text: str, key: str, section: int | None) -> int | None:
    """Line of `key`, from 1: in the top table where `section` is None, else in that [[cells]] table, from 0.

    For a key that is itself a table, such as `options`, its header's line. None where it is not found.
    """
    cells, table, inside = -1, "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        # What stands in a string of several lines is no key.
        within, inside = inside, _open_string(line, inside)
        if within:
            continue
        header = _TABLE.match(line)
        if header:
            table = header[2]
            cells += table == "cells" and header[1] == "[["
            parts = table.split(".")
            if parts[0] == key if section is None else parts == ["cells", key] and cells == section:
                return number
            continue
        found = _KEY.match(line)
        here = table == "" if section is None else table == "cells" and cells == section
        if found and found[1] == key and here:
            return number
    return None


def _open_string(line: str, inside: str) -> str:
    """The quotes of a string of several lines that is open at the end of this line, "" where none is."""
    place = 0
    while place < len(line):
        if inside:
            end = line.find(inside, place)
            if end < 0:
                return inside
            place, inside = end + 3, ""
            continue
        if line[place] == "#":
            return ""
        quote = line[place] if line[place] in "\"'" else ""
        if quote and line.startswith(quote * 3, place):
            place, inside = place + 3, quote * 3
        elif quote:
            end = place + 1
            while end < len(line) and line[end] != quote:
                end += 2 if line[end] == "\\" and quote == '"' else 1
            place = end + 1
        else:
            place += 1
    return inside


def toml_text(sections: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Sections of (header such as `[campaign]`, "" for the top, and its keys) as TOML; None and () are left out."""
    parts = []
    for header, table in sections:
        lines = [header] if header else []
        lines += [
            f"{toml_value(key) if header.startswith('[options') else key} = {toml_value(value)}"
            for key, value in table.items()
            if value is not None and value != ()
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A byte that is no UTF-8, as in the name of a file: TOML has no way to hold it, and must not become unreadable.
        value = value.encode("utf-8", "backslashreplace").decode("utf-8")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)
