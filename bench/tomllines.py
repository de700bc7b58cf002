"""Where a key stands in a TOML text: the standard parser keeps no lines, and an error should name one."""

from __future__ import annotations

import re

_TABLE = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""^\s*["']?([A-Za-z0-9_-]+)["']?\s*(?:\.|=)""")


def line_of(text: str, key: str, section: int | None) -> int | None:
    """Line of `key`, from 1: in the top table where `section` is None, else in that [[cells]] table, from 0.

    For a key that is itself a table, such as `options`, its header's line. None where it is not found.
    """
    cells, table = -1, ""
    for number, line in enumerate(text.splitlines(), start=1):
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
