"""In-graph text: tokenizers with offsets, and packing into a model's inputs."""

from pathlib import Path

from bertfam_tf.sources import CheckpointError, resolve
from bertfam_tf.text.packing import Packer
from bertfam_tf.text.wordpiece import WordPieceTokenizer

__all__ = ["Packer", "WordPieceTokenizer", "load_tokenizer"]


def load_tokenizer(path: str | Path) -> WordPieceTokenizer:
    """The tokenizer stored with a checkpoint.

    Args:
        path: a directory, ``package:NAME``, or a hub id.

    Raises:
        CheckpointError: when there is no such checkpoint, or its tokenizer files are missing,
            damaged or of another kind.
    """
    directory = resolve(path)
    try:
        return WordPieceTokenizer.load(directory)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"The tokenizer of {directory}: {error}") from error
