"""The model of an index."""

from __future__ import annotations

from pathlib import Path

from bertfam_tf import tasks
from bertfam_tf.tasks import TextEmbedder


def embedder(path: str | Path) -> TextEmbedder:
    """Returns the embedder at a path.

    Args:
        path: a saved task, or a checkpoint that ``TextEmbedder.from_pretrained`` reads.

    Raises:
        CheckpointError: as ``tasks.load`` and ``from_pretrained`` raise it.
        ValueError: if the saved task is of another kind.
    """
    if not tasks.is_saved(path):
        return TextEmbedder.from_pretrained(path)
    task = tasks.load(path)
    if not isinstance(task, TextEmbedder):
        raise ValueError(f"{path} is a {type(task).__name__}, expected a TextEmbedder.")
    return task
