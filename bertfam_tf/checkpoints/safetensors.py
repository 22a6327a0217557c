"""Tensors of a ``.safetensors`` checkpoint, one file or several with an index."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors

from bertfam_tf.names import listed
from bertfam_tf.sources import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Tensors(Mapping[str, np.ndarray]):
    """Name -> array, read from disk one at a time when asked for.

    Raises:
        CheckpointError: for a directory without such files, a shard that is missing, a file that
            is cut off or damaged, or an index that names what its shards do not hold.
    """

    def __init__(self, directory: Path):
        self._place: dict[str, tuple[Path, str]] = {}
        if (directory / SINGLE).is_file():
            self._add(directory / SINGLE)
        elif (directory / INDEX).is_file():
            self._add_shards(directory)
        else:
            raise CheckpointError(f"No weights in {directory}: expected {SINGLE} or {INDEX}.")

    def _names(self, file: Path) -> list[str]:
        try:
            with safetensors.safe_open(file, framework="numpy") as opened:
                return list(opened.keys())
        except (safetensors.SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} cannot be read as safetensors; it may be cut off or damaged: {error}"
            ) from error

    def _add(self, file: Path) -> None:
        self._place.update({name: (file, name) for name in self._names(file)})

    def _add_shards(self, directory: Path) -> None:
        try:
            index = json.loads((directory / INDEX).read_text("utf-8"))["weight_map"]
            shards = {name: Path(shard).name for name, shard in index.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{directory / INDEX} is not an index of shards: {error!r}"
            ) from error
        for shard in sorted(set(shards.values())):
            if not (directory / shard).is_file():
                raise CheckpointError(f"{directory / INDEX} names {shard}, which is missing.")
            self._add(directory / shard)
        missing = sorted(set(shards) - set(self._place))
        if missing:
            raise CheckpointError(
                f"{directory / INDEX} names tensors that its shards do not hold: {listed(missing)}."
            )

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """The same tensors under the names that ``rename`` gives them.

        Raises:
            CheckpointError: when two tensors get the same name.
        """
        other = copy.copy(self)
        other._place = {}
        for name, place in self._place.items():
            first = other._place.setdefault(rename(name), place)
            if first is not place:
                raise CheckpointError(
                    f"{place[0]} holds the same tensor twice, as {first[1]} and {place[1]}."
                )
        return other

    def stored_name(self, name: str) -> str:
        """What the file calls the tensor."""
        return self._place[name][1]

    def __getitem__(self, name: str) -> np.ndarray:
        file, stored = self._place[name]
        with safetensors.safe_open(file, framework="numpy") as opened:
            return opened.get_tensor(stored)

    def dtype(self, name: str) -> str:
        """The tensor's type as the format names it, such as ``F32`` or ``BF16``."""
        file, stored = self._place[name]
        with safetensors.safe_open(file, framework="numpy") as opened:
            return opened.get_slice(stored).get_dtype()

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading the tensor."""
        file, stored = self._place[name]
        with safetensors.safe_open(file, framework="numpy") as opened:
            return tuple(opened.get_slice(stored).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)
