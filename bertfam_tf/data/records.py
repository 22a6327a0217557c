"""Reads TSV, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertfam_tf.data.rows import InvalidRow, Row, as_bytes
from bertfam_tf.names import unknown

Column = str | int | list[str | int]
# The cells of a row, its first line and its number of lines.
_Record = tuple[int, int, list[str]]
_LABEL = "label"
_LARGEST_CELL = 2**31 - 1


def tsv_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of tab-separated values without quoting; each line is a row, even if empty.

    Args:
        file: UTF-8.
        columns: maps names to columns: a name in the header line, or an index in a file without a
            header line; a list of them for a feature of several strings.

    Raises:
        ValueError: if there is no such column.
    """

    def records() -> Iterator[_Record]:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                text = line.rstrip(b"\n").replace(b"\r", b"").decode("utf-8", "surrogateescape")
                yield number, 1, text.split("\t")

    return _cells(file, columns, records())


def csv_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of comma-separated values (RFC 4180), with quotes and line breaks inside them.

    An unclosed quote includes all lines up to the next quote in its cell, because text lines inside
    quotes cannot be distinguished from rows. The error gives the number of lines affected.

    Arguments and errors as for ``tsv_rows``.
    """

    def records() -> Iterator[_Record | InvalidRow]:
        csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_CELL))
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            while True:
                number = reader.line_num + 1
                try:
                    cells = next(reader, None)
                except csv.Error as error:
                    text = f"{file}: line {number} is not CSV: {error}."
                    yield InvalidRow("quotes", text, reader.line_num - number + 1)
                    continue
                if cells is None:
                    return
                # An empty line has one empty cell.
                yield number, reader.line_num - number + 1, cells or [""]

    return _cells(file, columns, records())


def _cells(
    file: Path, columns: Mapping[str, Column], records: Iterator[_Record | InvalidRow]
) -> Iterator[Row | InvalidRow]:
    numbered = not any(isinstance(c, str) for column in columns.values() for c in _each(column))
    header: list[str] | None = None
    positions: dict[str, Any] = {}
    for record in records:
        if isinstance(record, InvalidRow):
            if header is None:
                raise record
            yield record
            continue
        number, lines, cells = record
        if header is None:
            header = cells
            positions = {
                name: [_position(file, header, c) for c in column]
                if isinstance(column, list)
                else _position(file, header, column)
                for name, column in columns.items()
            }
            if not numbered:
                continue
        location = f"{file}: line {number}"
        if len(cells) != len(header):
            expected = f"expected {len(header)}, as in the first line."
            yield InvalidRow("columns", f"{location} has {len(cells)} columns; {expected}", lines)
            continue
        values = {
            name: [cells[p] for p in position] if isinstance(position, list) else cells[position]
            for name, position in positions.items()
        }
        yield _row(location, values, lines)


def jsonl_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of a file with one JSON object per line.

    Args:
        file: UTF-8; empty lines are skipped.
        columns: maps names to keys; ``a.b`` is the key b in the object at a, or element b of the
            list at a. A list of keys, or a key with a list, is a feature of several strings, or for
            ``text`` the words of a text.
    """
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            location = f"{file}: line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield InvalidRow("JSON", f"{location} is not JSON: {error}.")
                continue
            if not isinstance(record, dict):
                yield InvalidRow("JSON", f"{location} is not a JSON object.")
                continue
            try:
                values = {
                    name: [_text(location, record, c) for c in column]
                    if isinstance(column, list)
                    else _text(location, record, column)
                    for name, column in columns.items()
                }
            except InvalidRow as error:
                yield error
                continue
            yield _row(location, values)


def _text(location: str, record: dict, key: str | int) -> Any:
    value = _lookup(location, record, str(key))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    raise InvalidRow("value", f"{location}: {key} must be a string or number, got {_short(value)}.")


def _lookup(location: str, record: dict, path: str) -> Any:
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            known = list(value) if isinstance(value, dict) else []
            raise InvalidRow("column", f"{location}: {unknown('column', path, known)}")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _row(location: str, values: dict[str, Any], lines: int = 1) -> Row:
    label = values.pop(_LABEL, None)
    features: dict[str, bytes | list[bytes]] = {}
    for name, value in values.items():
        if isinstance(value, list) and name == "text":
            value = " ".join(value)
        features[name] = list(map(as_bytes, value)) if isinstance(value, list) else as_bytes(value)
    return Row(location, features, label, lines=lines)


def _each(column: Column) -> list[str | int]:
    return column if isinstance(column, list) else [column]


def _position(file: Path, header: list[str], column: str | int) -> int:
    if isinstance(column, str):
        if column not in header:
            raise ValueError(f"{file}, first line: {unknown('column', column, header)}")
        return header.index(column)
    if not 0 <= column < len(header):
        raise ValueError(f"{file} has {len(header)} columns; there is no column {column}.")
    return column
