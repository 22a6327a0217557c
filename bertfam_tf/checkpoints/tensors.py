"""Tensors of a checkpoint by name, as returned by the readers of all formats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertfam_tf import parsing
from bertfam_tf.names import join_names, truncated
from bertfam_tf.sources import CheckpointError


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        file: the file.
        name: the tensor's name in the file.
        shape, dtype: available without reading; the type as in safetensors, such as ``BF16``.
        read: reads the tensor; errors of the format's library become a ``CheckpointError``.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]

    def reshaped(self, shape: tuple[int, ...], change: Callable) -> Stored:
        """Returns the tensor after the function ``change``, which changes it to ``shape``."""
        return dataclasses.replace(self, shape=shape, read=lambda: change(self.read()))


class Tensors(Mapping[str, np.ndarray]):
    """Arrays by name, each read from disk when it is looked up.

    Args:
        stored: pairs of name and tensor.

    Raises:
        CheckpointError: if two tensors have the same name.
    """

    def __init__(self, stored: Iterable[tuple[str, Stored]]):
        self._stored: dict[str, Stored] = {}
        for name, tensor in stored:
            first = self._stored.setdefault(name, tensor)
            if first is not tensor:
                raise CheckpointError(
                    f"{tensor.file} contains the same tensor twice: {first.name}, {tensor.name}."
                )

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """Returns the same tensors under other names; errors as for the constructor."""
        return Tensors((rename(name), tensor) for name, tensor in self._stored.items())

    def stored_name(self, name: str) -> str:
        """Returns the tensor's name in the file."""
        return self._stored[name].name

    def dtype(self, name: str) -> str:
        """Returns the tensor's type as in safetensors, such as ``F32`` or ``BF16``."""
        return self._stored[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the tensor's shape, without reading the tensor."""
        return self._stored[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._stored[name]
        try:
            array = tensor.read()
            if array.shape != tensor.shape:  # the file was replaced after it was opened
                raise ValueError(f"its shape is {array.shape}, and was {tensor.shape} before")
            return array
        except CheckpointError:
            raise
        except Exception as error:  # the error types depend on the format's library
            raise CheckpointError(
                f"{tensor.name} cannot be read from {tensor.file}; the file may be truncated or "
                f"damaged: {error}"
            ) from error

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def type_name(dtype: object) -> str:
    """Returns safetensors' name of a NumPy, TensorFlow or torch type; else the type's own name.

    Args:
        dtype: a type, or its name.
    """
    text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return _TYPES.get(text, text)


def read_shards(
    directory: Path, single: str, index: str, tensors: Callable[[Path], Iterator[Stored]]
) -> Iterator[tuple[str, Stored]]:
    """Yields the tensors of ``single``, or of the files that ``index`` lists, by name.

    Raises:
        CheckpointError: if a shard is missing or outside of the directory, the index is damaged, or
            it names tensors that its shards do not contain.
    """
    if (directory / single).is_file():
        yield from ((tensor.name, tensor) for tensor in tensors(directory / single))
        return
    table = parsing.read_object(directory / index, CheckpointError).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise CheckpointError(
            f"{directory / index} is not an index of shards: expected a weight_map from "
            "tensors to file names."
        )
    missing = set(table)
    root = directory.resolve()
    for shard in sorted(set(table.values())):
        # Path.is_file raises an OSError for names that are too long.
        if not os.path.isfile(directory / shard):
            raise CheckpointError(
                f"{directory / index} names {truncated(shard)}, which is missing."
            )
        # Not of the file itself, which is a link in a hub cache.
        if not (directory / shard).parent.resolve().is_relative_to(root):
            raise CheckpointError(
                f"{directory / index} names {truncated(shard)}, which is outside of the checkpoint."
            )
        for tensor in tensors(directory / shard):
            missing.discard(tensor.name)
            yield tensor.name, tensor
    if missing:
        raise CheckpointError(
            f"{directory / index} names tensors that its shards do not contain: "
            f"{join_names(sorted(missing))}."
        )
