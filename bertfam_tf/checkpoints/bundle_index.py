"""Validates the index of a TensorFlow checkpoint: TensorFlow aborts the process for a damaged one.

``*.index`` is a table in LevelDB's format: the entry with the empty key describes the bundle, all
others a tensor. TensorFlow's reader only verifies checksums; other damage makes it abort.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

from bertfam_tf import parsing
from bertfam_tf.sources import CheckpointError

_FOOTER, _MAGIC = 48, 0xDB4775248B80FB57
_TYPE_AND_CHECKSUM = 5
# The valid types of tensors; TensorFlow aborts for all others.
_KNOWN_TYPES = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in """
    FLOAT DOUBLE HALF BFLOAT16 BOOL STRING INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64
    """.split()
)
_MAX_ELEMENTS = 2**62


def check(index: Path) -> None:
    """Validates the whole index.

    Raises:
        CheckpointError: if TensorFlow cannot read the index, or its entries are not tensors.
    """
    data = parsing.read_bytes(index, CheckpointError)
    try:
        for key, value in _entries(data):
            if key:
                _check_entry(value)
            else:
                tensor_bundle_pb2.BundleHeaderProto.FromString(value)
    except (ValueError, IndexError, struct.error, DecodeError) as error:
        raise CheckpointError(
            f"{index} cannot be read as a TensorFlow checkpoint; it may be truncated or damaged: "
            f"{error}"
        ) from error


def _check_entry(value: bytes) -> None:
    entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
    sizes = [dim.size for dim in entry.shape.dim]
    if entry.dtype not in _KNOWN_TYPES:
        raise ValueError(f"a tensor has the invalid type {entry.dtype}")
    if entry.shape.unknown_rank or min(sizes, default=0) < 0 or len(sizes) > 254:
        raise ValueError(f"a tensor has the invalid shape {sizes[:8]}")
    if math.prod(size or 1 for size in sizes) > _MAX_ELEMENTS:
        raise ValueError(f"a tensor has the invalid shape {sizes[:8]}")
    if min(entry.offset, entry.size, entry.shard_id) < 0:
        raise ValueError(f"a tensor has the offset {entry.offset} and {entry.size} bytes")


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the key and value of each entry of the table."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end with the footer of a table")
    _, at = _handle(footer, 0)
    handle, _ = _handle(footer, at)
    for _, place in _block(data, handle):
        yield from _block(data, _handle(place, 0)[0])


def _block(data: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    begin, size = handle
    end = begin + size
    if size < 4 or end + _TYPE_AND_CHECKSUM > len(data):
        raise ValueError(f"a block of {size} bytes at {begin} exceeds the file")
    if data[end]:
        raise ValueError("a block is compressed, which is not supported")
    restarts = struct.unpack_from("<I", data, end - 4)[0]
    content = data[begin : end - 4 * restarts - 4]
    if 4 * restarts + 4 > size:
        raise ValueError(f"a block of {size} bytes has {restarts} restarts")
    at, key = 0, b""
    while at < len(content):
        shared, at = _number(content, at)
        added, at = _number(content, at)
        length, at = _number(content, at)
        if shared > len(key) or at + added + length > len(content):
            raise ValueError("an entry exceeds its block")
        key = key[:shared] + content[at : at + added]
        at += added + length
        yield key, content[at - length : at]


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    begin, at = _number(data, at)
    size, at = _number(data, at)
    return (begin, size), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Returns a varint, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is not terminated")
