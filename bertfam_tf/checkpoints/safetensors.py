"""Reads and writes ``model.safetensors``, a single file or shards with an index."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import save_file

from bertfam_tf import parsing
from bertfam_tf.checkpoints import shards
from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.sources import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def matches(directory: Path) -> bool:
    """Returns whether the directory has weights of this kind."""
    return (directory / SINGLE).is_file() or (directory / INDEX).is_file()


def read(directory: Path) -> Tensors:
    """Returns the tensors of a directory that has such weights.

    Raises:
        CheckpointError: if a shard is missing, a file is truncated or damaged, or the index names
            tensors that its shards do not contain.
    """
    return Tensors(shards.read(directory, SINGLE, INDEX, _tensors))


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
        with safetensors.safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is not a dict)
                about = opened.get_slice(name)
                yield Stored(
                    file, name, tuple(about.get_shape()), about.get_dtype(), _reader(file, name)
                )
    except (safetensors.SafetensorError, OSError, MemoryError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors; it may be truncated or damaged: {error}"
        ) from error


def _reader(file: Path, name: str):
    def read():
        with safetensors.safe_open(file, framework="numpy") as opened:
            return opened.get_tensor(name)

    return read
