"""Reads and writes ``model.safetensors``, a single file or shards with an index."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bertfam_tf import parsing
from bertfam_tf.checkpoints.tensors import Stored, Tensors, read_shards
from bertfam_tf.names import truncated
from bertfam_tf.sources import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Bytes of the length of the header, which is JSON.
_LENGTH = 8
_TYPES = {
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(bool),
}
# Errors of a header that was changed after safetensors had checked it.
_OF_A_HEADER = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def matches(directory: Path) -> bool:
    """Returns whether the directory has weights of this kind."""
    return (directory / SINGLE).is_file() or (directory / INDEX).is_file()


def read(directory: Path) -> Tensors:
    """Returns the tensors of a directory that has such weights.

    Raises:
        CheckpointError: if a shard is missing, a file is truncated or damaged, or the index names
            tensors that its shards do not contain.
    """
    return Tensors(read_shards(directory, SINGLE, INDEX, _tensors))


def read_file(file: Path) -> Tensors:
    """Returns the tensors of one file; errors as for ``read``."""
    return Tensors((tensor.name, tensor) for tensor in _tensors(file))


def write(
    tensors: Mapping[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Writes a file; safetensors makes it readable only by its owner.

    Raises:
        OSError: if writing fails, for example because the disk is full.
    """
    try:
        save_file(dict(tensors), file, metadata)
    except safetensors.SafetensorError as error:
        # safetensors reports errors of the operating system as text.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def _tensors(file: Path) -> Iterator[Stored]:
    parsing.check_regular(file, CheckpointError)
    try:
        with safetensors.safe_open(file, framework="numpy"):
            pass  # checks the header, whose ranges of bytes are read below
        with file.open("rb") as stream:
            state = _state(stream)
            size = int.from_bytes(stream.read(_LENGTH), "little")
            header = json.loads(stream.read(size))
        header.pop("__metadata__", None)
        for name, about in header.items():
            shape, dtype = tuple(about["shape"]), about["dtype"]
            start = _LENGTH + size + about["data_offsets"][0]
            yield Stored(file, name, shape, dtype, _reader(file, state, start, shape, dtype))
    except (safetensors.SafetensorError, OSError, MemoryError, *_OF_A_HEADER) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors; it may be truncated or damaged: "
            f"{truncated(error)}"
        ) from error


def _state(stream: BinaryIO) -> tuple[int, ...]:
    """Tells a file from another one in its place, and from itself after a change."""
    stat = os.fstat(stream.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _reader(file: Path, state: tuple[int, ...], start: int, shape: tuple[int, ...], dtype: str):
    def read() -> np.ndarray:
        if dtype not in _TYPES:
            raise ValueError(f"the type {dtype} is not supported")
        # safetensors maps files into memory: the process would die if one became shorter meanwhile.
        with file.open("rb") as stream:
            stream.seek(start)
            values = np.fromfile(stream, _TYPES[dtype], math.prod(shape))
            if _state(stream) != state:
                raise ValueError("it was changed or replaced while it was read")
        return values.reshape(shape)

    return read
