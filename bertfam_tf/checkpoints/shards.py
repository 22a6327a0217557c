"""Hugging Face's weights in a single file, or in shards with an index."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bertfam_tf import parsing
from bertfam_tf.checkpoints.tensors import Stored
from bertfam_tf.names import join_names, truncated
from bertfam_tf.sources import CheckpointError


def read(
    directory: Path, single: str, index: str, tensors: Callable[[Path], Iterator[Stored]]
) -> Iterator[tuple[str, Stored]]:
    """Returns the tensors of ``single``, or of the files that ``index`` lists.

    Raises:
        CheckpointError: if a shard is missing, the index is damaged, or it names tensors that its
            shards do not contain.
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
    shards = {name: Path(shard).name for name, shard in table.items()}
    missing = set(shards)
    for shard in sorted(set(shards.values())):
        # Path.is_file raises an OSError for names that are too long.
        if not os.path.isfile(directory / shard):
            raise CheckpointError(
                f"{directory / index} names {truncated(shard)}, which is missing."
            )
        for tensor in tensors(directory / shard):
            missing.discard(tensor.name)
            yield tensor.name, tensor
    if missing:
        raise CheckpointError(
            f"{directory / index} names tensors that its shards do not contain: "
            f"{join_names(sorted(missing))}."
        )
