"""The model of an index, and how to tell it from another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf import tasks
from bertfam_tf.models.base import plain_weights
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


def fingerprint(task: TextEmbedder) -> str:
    """Returns the sha256 of an embedder's config, options, tokenizer and weights."""
    digest = hashlib.sha256()
    described = {**task.describe(), "tokenizer": task.tokenizer.get_config()}
    # Releases that read the same files compute the same.
    described.pop("bertfam_tf")
    digest.update(json.dumps(described, sort_keys=True, default=_plain).encode())
    for path, array in sorted(plain_weights(task).items()):
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return repr(value)
