"""Tokenizes texts of several languages, each by the rules of its language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bertfam_tf.text.kernels.graph import unlikely
from bertfam_tf.text.tokenizers.base import Tokenizer


class ByLanguage:
    """Tokenizers of several languages for the texts of one batch.

    Args:
        tokenizers: tokenizers with the same vocabulary, from ``Tokenizer.in_language``.
        index: int32 (batch,), the index of each text's tokenizer.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], index: tf.Tensor) -> None:
        self.tokenizers = tokenizers
        self.index = index

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the first tokenizer; the others differ in the language."""
        return self.tokenizers[0].get_config()

    def tokenize(self, text: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
        """Splits texts into piece ids, as ``Tokenizer.tokenize``.

        Args:
            text: string (batch,), or words, ragged (batch, (words)).
        """
        if isinstance(text, tf.RaggedTensor):
            index = tf.gather(self.index, text.value_rowids())
            return text.with_values(ByLanguage(self.tokenizers, index).tokenize(text.values))
        return self._tokenized(text, "tokenize")[0]

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Splits texts into piece ids and byte offsets, as ``Tokenizer.tokenize_with_offsets``.

        Args:
            text: string (batch,).
        """
        return self._tokenized(text, "tokenize_with_offsets")

    def _tokenized(self, text: tf.Tensor, method: str) -> tuple[tf.RaggedTensor, ...]:
        rows, results = [], []
        for number, tokenizer in enumerate(self.tokenizers):
            row = tf.where(self.index == number)[:, 0]
            rows.append(row)
            results.append(_pieces(getattr(tokenizer, method), tf.gather(text, row)))
        lengths, *columns = (tf.concat(column, 0) for column in zip(*results, strict=True))
        order = tf.argsort(tf.concat(rows, 0))
        return tuple(
            tf.gather(tf.RaggedTensor.from_row_lengths(column, lengths, validate=False), order)
            for column in columns
        )


def _pieces(tokenize: Any, texts: tf.Tensor) -> list[tf.Tensor]:
    """Returns the numbers of pieces, int64 (texts,), and the values of ``tokenize``'s results."""
    count = 3 if tokenize.__name__ == "tokenize_with_offsets" else 1
    empty = [tf.zeros([0], tf.int64), *[tf.zeros([0], tf.int32)] * count]

    def pieces(*tensors: tf.Tensor) -> list[tf.Tensor]:
        ragged = tokenize(tensors[-1])
        ragged = ragged if isinstance(ragged, tuple) else (ragged,)
        return [tf.cast(ragged[0].row_lengths(), tf.int64), *(rows.values for rows in ragged)]

    # Most batches have one or two languages.
    return unlikely(tf.size(texts) > 0, pieces, empty, [texts])
