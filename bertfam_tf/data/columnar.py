"""Reads Parquet files, and Arrow files and streams (Feather version 2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.data import columnar_limits
from bertfam_tf.data.records import Column, record_row
from bertfam_tf.data.rows import InvalidRow, Row
from bertfam_tf.names import truncated, unknown

_ARROW_FILE = b"ARROW1"


def columnar_rows(file: Path, columns: Mapping[str, Column]) -> Iterator[Row | InvalidRow]:
    """Yields the rows of a Parquet file, or of an Arrow file or stream, some of them at a time.

    Classes that the ``datasets`` library stored as numbers (``ClassLabel``) are read as the names
    that the file has for them.

    Args:
        file: a file, which may be compressed inside, as Parquet is.
        columns: maps names to columns, as for ``jsonl_rows``; ``a.b`` is the field b of the struct
            at a. Columns that are not named are not read.

    Raises:
        ValueError: if pyarrow is not installed, the file is damaged or of another format, or a
            column is missing or appears twice.
    """
    number = 0
    with opened(file) as (schema, batches):
        names = _top_names(file, columns, schema.names)
        classes = class_names(schema.metadata)
        for record in records(file, batches(names)):
            if isinstance(record, InvalidRow):
                yield record
            else:
                for name in classes.keys() & record.keys():
                    record[name] = named(record[name], classes[name])
                yield record_row(f"{file}: row {number}", record, columns)
            number += 1


def records(file: Path, batches: Iterable[Any]) -> Iterator[dict[str, Any] | InvalidRow]:
    """Yields the rows of record batches as dicts, of which few are in memory if they are large.

    Args:
        file: the file, for errors.
        batches: its record batches.
    """
    number = 0
    for batch in batches:
        # Rows that share a value of a dictionary are separate strings in Python.
        step = columnar_limits.rows_at_a_time(batch.get_total_buffer_size())
        for start in range(0, batch.num_rows, step):
            rows = batch.slice(start, step)
            try:
                yield from rows.to_pylist()
            except (ValueError, OverflowError):  # strings not in UTF-8, dates that Python lacks
                for row in range(rows.num_rows):
                    yield _record(f"{file}: row {number + row}", rows.slice(row, 1))
            number += rows.num_rows


def _record(location: str, batch: Any) -> dict[str, Any] | InvalidRow:
    """Returns the row of a batch of one."""
    record = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            [record[name]] = column.to_pylist()
        except UnicodeDecodeError as error:
            problem = parsing.not_utf8(f"{location}: {name}", error.object)
            return InvalidRow("encoding", problem)
        except (ValueError, OverflowError) as error:
            return InvalidRow("value", f"{location}: {name} cannot be read: {error}.")
    return record


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Returns the names of classes by column that ``datasets`` wrote into an Arrow schema."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names_of = {name: _names_of(feature) for name, feature in features.items()}
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        return {}
    return {name: names for name, names in names_of.items() if names}


def _names_of(feature: Any) -> list[str]:
    inner = feature[0] if isinstance(feature, list) else feature
    if inner.get("_type") == "ClassLabel":
        return list(map(str, inner["names"]))
    return _names_of(inner["feature"]) if "feature" in inner else []


def named(value: Any, names: list[str]) -> Any:
    """Returns the name of a class, or of each class of a list; None for -1, which is no label."""
    if isinstance(value, list):
        return [named(item, names) for item in value]
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None if value == -1 else value
    return value


def pyarrow(what: str) -> Any:
    """Imports pyarrow.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(f"{what} needs the package pyarrow: pip install pyarrow.") from error
    return pyarrow


@contextmanager
def opened(file: Path) -> Iterator[tuple[Any, Any]]:
    """Opens a file; yields its schema, and a function from names of columns to record batches."""
    arrow = pyarrow(f"{file}, a Parquet or Arrow file,")
    parsing.check_regular(file)
    with file.open("rb") as stream:
        start = stream.read(len(_ARROW_FILE))
    if start.startswith(parsing.GZIP):
        raise ValueError(
            f"{file} is compressed by gzip; Parquet and Arrow files are compressed inside. "
            "Decompress it, such as with gunzip."
        )
    try:
        if start.startswith(b"PAR1"):
            from pyarrow import parquet

            with parquet.ParquetFile(file) as table:
                yield table.schema_arrow, lambda names: _parquet_batches(file, table, names)
        else:
            is_stream = start != _ARROW_FILE
            with (arrow.OSFile if is_stream else arrow.memory_map)(str(file)) as source:
                columnar_limits.check_arrow(file, source, stream=is_stream)
                source.seek(0)
                open_arrow = arrow.ipc.open_stream if is_stream else arrow.ipc.open_file
                with open_arrow(source) as table:
                    yield table.schema, lambda names: _selected(_arrow_batches(table), names)
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(
            f"{file} cannot be read as Parquet or Arrow; it may be truncated or damaged: "
            f"{truncated(error)}"
        ) from error


def _parquet_batches(file: Path, table: Any, names: list[str]) -> Iterator[Any]:
    """Yields record batches of a ``ParquetFile``, of as many rows as its pages allow."""
    for number, group in enumerate(columnar_limits.row_groups(file)):
        size = columnar_limits.largest_value(file, table.schema, group, names)
        rows = columnar_limits.rows_at_a_time(size)
        yield from table.iter_batches(rows, row_groups=[number], columns=names)


def _arrow_batches(table: Any) -> Iterable[Any]:
    """Returns the record batches of a reader of files or of streams."""
    if not hasattr(table, "num_record_batches"):
        return table
    return (table.get_batch(number) for number in range(table.num_record_batches))


def _selected(batches: Iterable[Any], names: list[str]) -> Iterator[Any]:
    """Yields columns of record batches, checked: pyarrow reads whatever offsets point to."""
    for batch in batches:
        selected = batch.select(names)
        for column in selected.columns:
            _check(column)
        yield selected


def _check(column: Any) -> None:
    """Checks a column's offsets and indices; strings need not be UTF-8."""
    arrow = pyarrow("An Arrow file")
    bytes_of = {
        arrow.string(): arrow.binary(),
        arrow.large_string(): arrow.large_binary(),
        arrow.string_view(): arrow.binary_view(),
    }
    column = column.view(bytes_of[column.type]) if column.type in bytes_of else column
    column.validate(full=True)


def _top_names(file: Path, columns: Mapping[str, Column], known: list[str]) -> list[str]:
    """Returns the columns that hold the requested columns and fields of structs."""
    names: dict[str, None] = {}
    for column in columns.values():
        for path in map(str, column if isinstance(column, list) else [column]):
            name = path if path in known else path.split(".")[0]
            if name not in known:
                raise ValueError(f"{file}: {unknown('column', path, known)}")
            if known.count(name) > 1:
                raise ValueError(f"{file} has {known.count(name)} columns {name!r}, expected one.")
            names[name] = None
    return list(names)
