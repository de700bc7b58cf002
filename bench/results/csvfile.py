"""Exact CSV in and out: typed by `columns`, blank for no value, appended a row at a time.

Floats are written with `repr`, the shortest text that reads back as the same number, so a round trip is exact.
"""

import csv
import io
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.files import write_text_atomically
from bench.results.columns import Column, names

Row = Mapping[str, Any]


def format_value(column: Column, value: Any) -> str:
    """One cell as text. None, NaN and infinities become blank: a CSV of this suite never holds them."""
    if value is None or (isinstance(value, numbers.Real) and not math.isfinite(value)):
        return ""
    if column.kind == "bool":
        return "true" if value else "false"
    if column.kind == "int":
        return str(int(value))
    if column.kind == "float":
        return repr(float(value))
    # One row is one line, whatever an exception's message contains.
    text = " ".join(str(value).replace("\0", "").split())
    # A message may hold half a surrogate pair, which no UTF-8 file can.
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_value(column: Column, text: str) -> Any:
    """The value of one cell, None where it is blank. Raises ValueError where the text is not of the column's type."""
    if text == "":
        return "" if column.kind == "str" else None
    if column.kind == "bool":
        # Spreadsheets write theirs in capitals.
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() == "true"
    if column.kind == "int":
        return int(text)
    if column.kind == "float":
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{text!r} is not finite")
        return value
    return text


def as_read(columns: tuple[Column, ...], row: Row) -> dict[str, Any]:
    """The row as a file of these columns would give it back."""
    return {column.name: parse_value(column, format_value(column, row.get(column.name))) for column in columns}


def _encode(rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def encode_rows(columns: tuple[Column, ...], rows: Iterable[Row]) -> str:
    """The rows as CSV text without a header."""
    return _encode([format_value(column, row.get(column.name)) for column in columns] for row in rows)


def encode_header(columns: tuple[Column, ...]) -> str:
    return _encode([names(columns)])


def write_rows(path: Path, columns: tuple[Column, ...], rows: Iterable[Row]) -> None:
    """Write a whole file at once, atomically: a reader sees the old file or the new one."""
    write_text_atomically(path, encode_header(columns) + encode_rows(columns, rows))


def check_header(path: Path, columns: tuple[Column, ...]) -> None:
    """Raise UserError unless the file's first line is exactly the header of these columns."""
    # A byte-order mark cannot be seen in a message about the first column.
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    found = next(csv.reader([first]), [])
    expected = names(columns)
    if found == expected:
        return
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    former = {column.formerly for column in columns if column.formerly}
    earlier = all(column.added or column.formerly in found for column in columns if column.name in missing)
    if missing and found and former.issuperset(extra) and earlier:
        raise UserError(
            f"{path} is of an earlier version of the suite (it lacks {', '.join(missing)}): it can be read and drawn, "
            "but not continued; begin a new campaign"
        )
    what = "; ".join(
        part
        for part in (
            f"missing {', '.join(missing)}" if missing else "",
            f"unknown {', '.join(extra)}" if extra else "",
            "empty file" if not found else "",
            "other order" if not missing and not extra else "",
        )
        if part
    )
    raise UserError(f"{path} has another header than this version writes ({what}); use a new folder with --out")


def append_rows(path: Path, columns: tuple[Column, ...], rows: Iterable[Row]) -> None:
    """Append rows to a file of these columns, making it with its header first where it does not exist.

    All rows go down in one write that is flushed to the disk, so a crash of this process or of the machine leaves at
    most these rows incomplete: the first of them whole, one half, and the others missing. Raises UserError when the
    header is another one, and when the disk refuses the write; what was written before is then cut back to the last
    whole line.
    """
    if path.exists():
        check_header(path, columns)
        text = encode_rows(columns, rows)
    else:
        text = encode_header(columns) + encode_rows(columns, rows)
    data = text.encode("utf-8")
    try:
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError("the disk took only part of the row")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise UserError(
            f"could not write {path}: {error.strerror or error}; what was measured before is kept"
        ) from None


def _name_there(column: Column, header: Sequence[str]) -> str:
    """What the column is called in a file of this header, "" where it has none."""
    return next((name for name in (column.name, column.formerly) if name and name in header), "")


def _otherwise(column: Column) -> Any:
    return parse_value(column, "") if column.otherwise is None else column.otherwise


def _check_separator(path: Path, header: Sequence[str]) -> None:
    for name, mark in (("semicolons", ";"), ("tabs", "\t")):
        if len(header) == 1 and mark in header[0]:
            raise UserError(f"{path} has {name} between its values; save it as CSV with commas")


def read_rows(path: Path, columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Read a file of these columns as dictionaries of typed values.

    Columns added by hand are passed over, those that the suite added later read as blank, and what spreadsheets make
    of a file is accepted: CRLF, a byte-order mark, TRUE and FALSE, nameless columns and rows of commas alone.
    Raises UserError naming the file, and the line where there is one, when the file is empty, a column is missing,
    a row has more or fewer values than the header, or a value is not of its column's type.
    """
    return [row for _, row in numbered_rows(path, columns)]


def numbered_rows(path: Path, columns: tuple[Column, ...]) -> list[tuple[int, dict[str, Any]]]:
    """As `read_rows`, each row with the number of its line in the file, from 1; of several, the last."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if not header:
                raise UserError(f"{path} is empty; a file of this suite begins with its header")
            _check_separator(path, header)
            names_there = {column.name: _name_there(column, header) for column in columns}
            missing = [column.name for column in columns if not names_there[column.name] and not column.added]
            if missing:
                raise UserError(f"{path} lacks the columns {', '.join(missing)}; it is not of schema version 1")
            places = [(column, header.index(name)) for column in columns if (name := names_there[column.name])]
            blank = {column.name: _otherwise(column) for column in columns if not names_there[column.name]}
            rows = []
            for cells in reader:
                if not any(cells):
                    continue
                if len(cells) != len(header):
                    raise UserError(f"{path}, line {reader.line_num}: {len(cells)} values for {len(header)} columns")
                row = dict(blank)
                for column, place in places:
                    try:
                        row[column.name] = parse_value(column, cells[place])
                    except ValueError as error:
                        raise UserError(f"{path}, line {reader.line_num}, column {column.name}: {error}") from None
                rows.append((reader.line_num, row))
            return rows
    except csv.Error as error:
        # Such as a quote that nothing closes; the reader has then gone on to the end of the file.
        raise UserError(f"{path}, at or before line {reader.line_num}: {error}") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
