"""Limits for the size of Parquet and Arrow files' values after decompression.

Both formats declare the size of each compressed part before its bytes. The sizes are read before
pyarrow allocates them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import flatbuffers

from bertfam_tf import parsing
from bertfam_tf.names import truncated

# Text that real writers compress shrinks 3 to 20 times.
_MAX_COMPRESSION = 64
# Values of a batch of rows, in bytes, where rows may share one value of a dictionary.
_BATCH_BYTES = 256 << 20
_BATCH_ROWS = 1024
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY = 1, 2, 3, 4, 5, 6, 7, 8
_LIST, _SET, _STRUCT = 9, 10, 12
# Fields of Parquet's FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_NUM_VALUES, _DATA_PAGE, _DICTIONARY_PAGE = 5, 9, 11
# Fields of Parquet's PageHeader: sizes, and the headers of data, dictionary and version 2 pages.
_UNCOMPRESSED, _COMPRESSED, _DICTIONARY = 2, 3, 7
_OF_KINDS = (5, _DICTIONARY, 8)
# Errors of reading headers that are damaged.
_DAMAGE = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
    OSError,
)
# Vtable offsets in Arrow's flatbuffers.
_HEADER = 8  # Message
_BUFFERS, _COMPRESSION = 8, 10  # RecordBatch
_DATA = 6  # DictionaryBatch
_DICTIONARIES, _BATCHES = 8, 10  # Footer


def rows_at_a_time(size: int) -> int:
    """Returns the number of rows that are read together.

    Args:
        size: the largest value that the rows may have, in bytes.
    """
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(size, 1)))


def row_groups(file: Path) -> list[list[dict[int, Any]]]:
    """Returns the ``ColumnMetaData`` of each row group of a Parquet file, as fields by number.

    pyarrow ends the process for some damaged metadata of columns, so it is not asked for them.

    Raises:
        ValueError: if the metadata are damaged.
    """
    try:
        with file.open("rb") as stream:
            stream.seek(-8, 2)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(-8 - length, 2)
            footer = _thrift_struct(io.BytesIO(stream.read(length)))
        groups = footer.get(_ROW_GROUPS, [])
        return [[chunk[_META_DATA] for chunk in group[_COLUMNS]] for group in groups]
    except _DAMAGE as error:
        raise ValueError(
            f"{file} has metadata of columns that cannot be read; it may be truncated or damaged."
        ) from error


def largest_value(
    file: Path, schema: Any, group: Sequence[Mapping[int, Any]], names: list[str]
) -> int:
    """Returns the size that no value of a Parquet file's row group exceeds, in bytes.

    Args:
        file: the file.
        schema: its ``ParquetSchema``.
        group: the row group, of ``row_groups``.
        names: the columns that will be read.

    Raises:
        ValueError: if a page expands to more than its compressed size explains, or is damaged.
    """
    largest = 0
    with file.open("rb") as stream:
        for number, column in enumerate(group):
            path = schema.column(number).path
            if not any(path == name or path.startswith(f"{name}.") for name in names):
                continue
            location = f"{file}: column {path}"
            expanded = stored = values = 0
            for compressed, uncompressed, count in _pages(stream, column, location):
                stored += compressed
                values += count
                _check(location, "a page", uncompressed, compressed)
                expanded = max(expanded, uncompressed)
            if schema.column(number).max_repetition_level > 0:  # one row may have all of them
                _check(location, "its lists", values, stored)
                expanded = max(expanded, values)
            largest = max(largest, expanded)
    return largest


def check_arrow(file: Path, source: Any, *, stream: bool) -> None:
    """Checks the sizes that the compressed buffers of an Arrow file or stream declare.

    Args:
        file: the file, for errors.
        source: it as pyarrow opened it.
        stream: whether it is a stream, which has no footer.

    Raises:
        ValueError: if a record batch expands to more than its compressed size explains.
    """
    from pyarrow import ipc  # type: ignore[import-untyped]

    try:
        for number, message in enumerate(_stream(source, ipc) if stream else _blocks(source, ipc)):
            _check(str(file), f"the record batch or dictionary {number}", *_sizes(message))
    except (struct.error, AttributeError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{file} cannot be read as Arrow; it may be truncated or damaged: {truncated(error)}"
        ) from error


def _sizes(message: Any) -> tuple[int, int]:
    """Returns the sizes of an Arrow message's buffers, decompressed and compressed, in bytes."""
    if message.type not in ("record batch", "dictionary"):
        return 0, 0
    batch = _table(_root(message.metadata.to_pybytes()), _HEADER)
    if message.type == "dictionary":
        batch = _table(batch, _DATA)
    if _table(batch, _COMPRESSION) is None:
        return 0, 0
    body = memoryview(message.body)
    expanded = sum(
        max(int.from_bytes(body[offset : offset + 8], "little", signed=True), 0)
        for offset, length in _structs(batch, _BUFFERS, 16, (0, 8))
        if length >= 8 and 0 <= offset <= len(body) - 8
    )
    return expanded, len(body)


def _check(location: str, what: str, expanded: int, stored: int) -> None:
    """Raises an error if compressed bytes expand to more than text does."""
    limit = max(parsing.MAX_BYTES, stored * _MAX_COMPRESSION)
    if expanded > limit:
        raise ValueError(
            f"{location}: {what} of {stored:,} bytes would expand to {expanded:,}, expected at "
            f"most {limit:,}. If the file is yours, write it again without compression."
        )


def _pages(
    stream: IO[bytes], column: Mapping[int, Any], location: str
) -> Iterator[tuple[int, int, int]]:
    """Yields the compressed and the uncompressed size and the number of values of pages."""
    try:
        value_count, position = column[_NUM_VALUES], column[_DATA_PAGE]
        if 0 < column.get(_DICTIONARY_PAGE, 0) < position:
            position = column[_DICTIONARY_PAGE]
    except _DAMAGE as error:
        raise ValueError(f"{location} has no pages; the file may be damaged.") from error
    values = 0
    while values < value_count:
        try:
            stream.seek(position)
            page = _thrift_struct(stream)
            compressed, uncompressed = page[_COMPRESSED], page[_UNCOMPRESSED]
            header: dict[int, int] = next((page[k] for k in _OF_KINDS if k in page), {})
            count = header.get(1, 0)
            if min(compressed, uncompressed, count) < 0:
                raise ValueError("a negative size")
        except _DAMAGE as error:
            raise ValueError(
                f"{location} has a page at byte {position:,} that cannot be read; the file may be "
                "truncated or damaged."
            ) from error
        yield compressed, uncompressed, count
        values += 0 if _DICTIONARY in page else count  # a dictionary's values are no rows
        position = stream.tell() + compressed


def _thrift_struct(stream: IO[bytes]) -> dict[int, Any]:
    """Returns the fields of a struct in Thrift's compact protocol by their numbers."""
    fields: dict[int, Any] = {}
    number = 0
    while head := stream.read(1)[0]:
        number = number + (head >> 4) if head >> 4 else _zigzag(stream)
        fields[number] = _thrift_value(stream, head & 15)
    return fields


def _thrift_value(stream: IO[bytes], kind: int) -> Any:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE
    if kind in (_I16, _I32, _I64):
        return _zigzag(stream)
    if kind == _STRUCT:
        return _thrift_struct(stream)
    if kind in (_LIST, _SET):
        head = stream.read(1)[0]
        size, element = head >> 4, head & 15
        size = _varint(stream) if size == 15 else size
        # In lists, booleans are bytes.
        element = _BYTE if element in (_TRUE, _FALSE) else element
        return [_thrift_value(stream, element) for _ in range(size)]
    if kind not in (_BYTE, _DOUBLE, _BINARY):  # Parquet has no others
        raise ValueError(f"the type {kind}")
    length = {_BYTE: 1, _DOUBLE: 8}.get(kind) or _varint(stream)
    value = stream.read(length)
    if len(value) < length:
        raise ValueError("the end of the file")
    return value


def _varint(stream: IO[bytes]) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("an integer of more than 64 bits")


def _zigzag(stream: IO[bytes]) -> int:
    number = _varint(stream)
    return (number >> 1) ^ -(number & 1)


def _stream(source: Any, ipc: Any) -> Iterator[Any]:
    """Yields the messages of an Arrow stream."""
    messages = ipc.MessageReader.open_stream(source)
    with suppress(StopIteration):  # at the end
        while True:
            yield messages.read_next_message()


def _blocks(source: Any, ipc: Any) -> Iterator[Any]:
    """Yields the messages that an Arrow file's footer names."""
    size = source.size()
    source.seek(size - 10)
    length = int.from_bytes(source.read(4), "little", signed=True)
    source.seek(max(size - 10 - max(length, 0), 0))
    footer = _root(source.read(max(length, 0)))
    for field in (_DICTIONARIES, _BATCHES):
        for (offset,) in _structs(footer, field, 24, (0,)):
            source.seek(offset)
            yield ipc.read_message(source)


def _root(data: bytes) -> Any:
    return flatbuffers.table.Table(data, int.from_bytes(data[:4], "little"))


def _table(table: Any, field: int) -> Any:
    """Returns a table's field, which is a table; None if it is missing."""
    offset = table.Offset(field)
    if not offset:
        return None
    return flatbuffers.table.Table(table.Bytes, table.Indirect(table.Pos + offset))


def _structs(
    table: Any, field: int, size: int, members: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Yields 64-bit members of a vector of structs of ``size`` bytes."""
    offset = table.Offset(field)
    if not offset:
        return
    start = table.Vector(offset)
    for number in range(table.VectorLen(offset)):
        place = start + size * number
        yield tuple(
            table.Get(flatbuffers.number_types.Int64Flags, place + member) for member in members
        )
