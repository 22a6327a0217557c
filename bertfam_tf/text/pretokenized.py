"""Texts that are already split into words, as for tagging."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.text.tokenizers.base import Tokenizer


def lacks_prefix_space(tokenizer: Tokenizer) -> bool:
    """Returns whether tokens of words depend on a space before them, and texts start without one.

    So it is in byte-level BPE with ``add_prefix_space=False``: texts whose tokens are joined need
    a space or a line feed between them.
    """
    return tokenizer.get_config().get("add_prefix_space") is False


def with_prefix_space(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that tokenizes each word as if a space preceded it.

    A tokenizer that recognizes the beginning of a word by the preceding space, and was built
    without ``add_prefix_space``, is rebuilt with it; one whose tokens are words, and that would
    split words at punctuation, is rebuilt to keep them whole; others are returned unchanged.
    """
    config = tokenizer.get_config()
    if lacks_prefix_space(tokenizer):
        return tokenizer.from_config({**config, "add_prefix_space": True})
    if config.get("split") == "punctuation":
        return tokenizer.from_config({**config, "split": "spaces"})
    return tokenizer


def tokenize_words(tokenizer: Tokenizer, words: Any) -> tf.RaggedTensor:
    """Tokenizes each word separately, like Hugging Face's ``is_split_into_words=True``.

    Args:
        tokenizer: a tokenizer, as returned by ``with_prefix_space``.
        words: string, ragged (batch, (words)), or nested lists.

    Returns:
        int32, ragged (batch, (words), (pieces)); a word may have no piece, for example if it
        consists of control characters.

    Raises:
        ValueError: ``words`` does not have two dimensions, or the tokenizer recognizes the
            beginning of a word by the preceding space and was built without ``add_prefix_space``.
    """
    if lacks_prefix_space(tokenizer):
        raise ValueError(
            "tokenizer must have add_prefix_space=True, because words have no space before them."
        )
    if not isinstance(words, tf.Tensor | tf.RaggedTensor):
        words = tf.ragged.constant(words, tf.string, ragged_rank=1)
    if words.shape.rank != 2:
        raise ValueError(
            f"words must have the shape (batch, (words)), got rank {words.shape.rank}."
        )
    return tokenizer.tokenize(words)
