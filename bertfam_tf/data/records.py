"""Reads TSV, CSV, JSON lines and JSON arrays."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.data.rows import InvalidRow, Row, as_bytes
from bertfam_tf.names import truncated, unknown

Column = str | int | list[str | int]
# The cells of a row, its first line and its number of lines.
_Record = tuple[int, int, list[str]]
_LABEL, _ID = "label", "id"
_LARGEST_CELL = 2**31 - 1
_PIECE = 1 << 16
_WHITE_SPACE = " \t\r\n"
# What separates columns where neither commas in CSV nor tabs in TSV do.
_SEPARATORS = {
    ";": ("Semicolons", "save the file with commas or tabs"),
    "\t": ("Tabs", "its format is tsv"),
    ",": ("Commas", "its format is csv"),
}
# Tokens of a JSON array, and the tokens that may be before them.
_PUNCTUATION = {("[", ""), (",", "element")}


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
        for number, line in enumerate(parsing.byte_lines(file), 1):
            text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            yield number, 1, text.split("\t")

    return _cells(file, columns, records())


def csv_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of comma-separated values (RFC 4180), with quotes and line breaks inside them.

    An unclosed quote includes all lines up to the next quote in its cell, because text lines inside
    quotes cannot be distinguished from rows. The error gives the number of lines affected.

    Arguments and errors as for ``tsv_rows``.
    """

    def records() -> Iterator[_Record | InvalidRow]:
        reader = csv_reader(file, strict=True)
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


def csv_reader(file: Path, errors: str = "surrogateescape", **options: Any) -> Any:
    """Returns Python's reader of a file, with the ``errors`` of ``bytes.decode``."""
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_CELL))
    return csv.reader(_lines(file, errors), **options)


def _lines(file: Path, errors: str) -> Iterator[str]:
    """Yields lines with their ends, where a carriage return alone is one too."""
    for line in parsing.byte_lines(file):
        text = line.decode("utf-8", errors)
        if "\r" in text.removesuffix("\n").removesuffix("\r"):
            yield from io.StringIO(text, newline="")
        else:
            yield text


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
        location = f"{file}: line {number}"
        text = " ".join(cells)
        problem = ""
        if not text.isascii():
            problem = parsing.not_utf8(location, text.encode("utf-8", "surrogateescape"))
        if header is None:
            if problem and not numbered:
                raise ValueError(problem)
            header = cells
            positions = {
                name: [_position(file, header, c) for c in column]
                if isinstance(column, list)
                else _position(file, header, column)
                for name, column in columns.items()
            }
            if not numbered:
                continue
        if len(cells) != len(header):
            expected = f"expected {len(header)}, as in the first line."
            yield InvalidRow("columns", f"{location} has {len(cells)} columns; {expected}", lines)
            continue
        values = {
            name: [cells[p] for p in position] if isinstance(position, list) else cells[position]
            for name, position in positions.items()
        }
        yield _row(location, values, lines)._replace(not_utf8=problem)


def jsonl_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of a file with one JSON object per line.

    Args:
        file: UTF-8; empty lines are skipped.
        columns: maps names to keys; ``a.b`` is the key b in the object at a, or element b of the
            list at a. A list of keys, or a key with a list, is a feature of several strings, or for
            ``text`` the words of a text.
    """
    for number, line in enumerate(parsing.byte_lines(file), 1):
        if not line.strip():
            continue
        location = f"{file}: line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield InvalidRow("JSON", f"{location} is not JSON: {error}.")
            continue
        yield record_row(location, record, columns)


def json_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields rows of a file with a JSON array of objects, or with one JSON object per line.

    The array is read object by object. Arguments as for ``jsonl_rows``.

    Raises:
        ValueError: if the array is damaged.
    """
    if not is_json_array(file):
        yield from jsonl_rows(file, columns)
        return
    for number, record in elements(file):
        yield record_row(f"{file}: line {number}", record, columns)


def is_json_array(file: Path) -> bool:
    """Returns whether a file begins with a JSON array."""
    return first_bytes(file).startswith(b"[")


def first_bytes(file: Path) -> bytes:
    """Returns the first bytes of a file, decompressed, without white space before them."""
    with parsing.open_binary(file) as stream:
        return stream.read(1 << 20).removeprefix(b"\xef\xbb\xbf").lstrip()


def elements(file: Path) -> Iterator[tuple[int, Any]]:
    """Yields the elements of a JSON array with the lines that they begin in.

    Raises:
        ValueError: if the array is damaged.
    """
    parse = json.JSONDecoder().raw_decode
    with parsing.open_binary(file) as stream:
        decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        text, at, line, size, ended = "", 0, 1, _PIECE, False

        def problem(what: object) -> ValueError:
            return ValueError(f"{file}: line {line} is not JSON: {truncated(what)}.")

        before = ""  # the array's last token: "[", "," or "element"
        while True:
            # Between elements.
            start = at
            while at < len(text) and text[at] in _WHITE_SPACE:
                at += 1
            line += text.count("\n", start, at)
            if at < len(text):
                if text[at] == "]" and before != ",":
                    at += 1
                    break
                if (text[at], before) in _PUNCTUATION:
                    at, before = at + 1, text[at]
                    continue
                if text[at] in ",]":
                    raise problem(f"there is no element before {text[at]!r}")
                if before == "element":
                    raise problem("there is no comma between two elements")
                try:
                    record, end = parse(text, at)
                except RecursionError:
                    raise problem("it is nested too deeply") from None
                except ValueError as error:
                    if ended:
                        raise problem(error) from None
                else:
                    if end < len(text) or ended:  # a number may continue in the next piece
                        yield line, record
                        line += text.count("\n", at, end)
                        at, size, before = end, _PIECE, "element"
                        continue
            elif ended:
                raise problem("the array does not end")
            if len(text) - at > parsing.MAX_COMPRESSED_LINE:
                raise problem("an element is larger than 64 MiB, or not closed")
            piece = stream.read(size)
            ended = not piece
            try:
                text, at = text[at:] + decode(piece, ended), 0
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start) + text.count("\n", at)
                raise ValueError(parsing.not_utf8(f"{file}: line {line}", error.object)) from None
            # An element that does not fit is parsed from its start each time.
            size *= 2
        rest = text[at:].encode()
        while rest:
            after = rest.lstrip()
            line += rest.count(b"\n", 0, len(rest) - len(after))
            if after:
                raise problem("there is more after the array's end")
            rest = stream.read(_PIECE)


def record_row(location: str, record: Any, columns: Mapping[str, Column]) -> Row | InvalidRow:
    """Returns the row of a JSON object, or of a record of another format.

    Args:
        location: the place of the object, for errors.
        record: the object.
        columns: the same as for ``jsonl_rows``.
    """
    if not isinstance(record, dict):
        return InvalidRow("JSON", f"{location} is not a JSON object.")
    try:
        values = {
            name: [_text(location, record, c) for c in column]
            if isinstance(column, list)
            else (_label if name == _LABEL else _text)(location, record, column)
            for name, column in columns.items()
        }
        row = _row(location, values)
        number = _lookup(location, record, str(columns[_ID])) if _ID in columns else None
    except InvalidRow as error:
        return error
    # The feature is text.
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return row._replace(id=number) if is_number else row


def _label(location: str, record: dict, key: str | int) -> Any:
    value = _lookup(location, record, str(key))
    # SQuAD's answers; ``Answers`` reads them.
    structured = value if isinstance(value, list) else [value]
    if structured and all(isinstance(record, dict) for record in structured):
        return value
    return None if value is None else _text(location, record, key)


def _text(location: str, record: dict, key: str | int) -> Any:
    value = _lookup(location, record, str(key))
    if isinstance(value, list) and all(map(_is_plain, value)):
        return list(map(_written, value))
    if isinstance(value, bytes):
        error = parsing.not_utf8(f"{location}: {key}", value)
        if error:
            raise InvalidRow("encoding", error)
        return value.decode()
    if _is_plain(value):
        return _written(value)
    raise InvalidRow("value", f"{location}: {key} must be a string or number, got {_short(value)}.")


def _is_plain(value: Any) -> bool:
    # Python and pandas write missing values as NaN, which JSON does not have; Python reads numbers
    # such as 1e400 as infinity, which JSON does not have either.
    return isinstance(value, str | int) or (
        isinstance(value, float | Decimal) and math.isfinite(value)
    )


def _written(value: str | float | Decimal) -> str:
    return str(value) if isinstance(value, str | Decimal) else json.dumps(value)


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
    text = json.dumps(value, default=str)
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
            problem = unknown("column", column, header) + other_separator(header)
            raise ValueError(f"{file}, first line: {problem}")
        if header.count(column) > 1:
            raise ValueError(f"{file} has {header.count(column)} columns {column!r}, expected one.")
        return header.index(column)
    if not 0 <= column < len(header):
        problem = f"there is no column {column}.{other_separator(header)}"
        raise ValueError(f"{file} has {len(header)} columns; {problem}")
    return column


def other_separator(header: list[str]) -> str:
    """Returns the end of an error about a table's columns, if other characters separate them.

    Args:
        header: the cells of its first line.
    """
    for character, (name, remedy) in _SEPARATORS.items():
        if len(header) == 1 and character in header[0]:
            return f" {name} seem to separate the columns: {remedy}."
    return ""
