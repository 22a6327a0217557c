"""Tensors of a checkpoint by name: what every format's reader hands to the loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertfam_tf.sources import CheckpointError


@dataclass(frozen=True)
class Stored:
    """One tensor as its file has it.

    Attributes:
        file: where it lies.
        name: what the file calls it.
        shape, dtype: known without reading; the type as safetensors writes it, such as ``BF16``.
        read: reads it; what the file's library raises then becomes a ``CheckpointError``.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]

    def reshaped(self, shape: tuple[int, ...], change: Callable) -> Stored:
        """The same tensor after ``change``, which makes it of ``shape``."""
        return dataclasses.replace(self, shape=shape, read=lambda: change(self.read()))


class Tensors(Mapping[str, np.ndarray]):
    """Name -> array, read from disk one at a time when asked for.

    Args:
        stored: each tensor under the name that it gets.

    Raises:
        CheckpointError: when two tensors get the same name.
    """

    def __init__(self, stored: Iterable[tuple[str, Stored]]):
        self._stored: dict[str, Stored] = {}
        for name, tensor in stored:
            first = self._stored.setdefault(name, tensor)
            if first is not tensor:
                raise CheckpointError(
                    f"{tensor.file} holds the same tensor twice, as {first.name} and {tensor.name}."
                )

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """The same tensors under the names that ``rename`` gives them. Errors as above."""
        return Tensors((rename(name), tensor) for name, tensor in self._stored.items())

    def stored(self) -> Iterator[tuple[str, Stored]]:
        """Each name with what the file says about its tensor."""
        yield from self._stored.items()

    def stored_name(self, name: str) -> str:
        """What the file calls the tensor."""
        return self._stored[name].name

    def dtype(self, name: str) -> str:
        """The tensor's type as safetensors names it, such as ``F32`` or ``BF16``."""
        return self._stored[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading the tensor."""
        return self._stored[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._stored[name]
        try:
            return tensor.read()
        except CheckpointError:
            raise
        except Exception as error:  # each format's library has errors of its own
            raise CheckpointError(
                f"{tensor.name} cannot be read from {tensor.file}; the file may be cut off or "
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
    """A NumPy, TensorFlow or torch type's name as safetensors has it, its own where that has none.

    Args:
        dtype: a type, or its name.
    """
    text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return _TYPES.get(text, text)
