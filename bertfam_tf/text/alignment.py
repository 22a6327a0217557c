"""Words that come apart already, for tagging: from words to pieces and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.text._graph import row_of_each
from bertfam_tf.text.packing import Packer
from bertfam_tf.text.tokenizer import Tokenizer


def reading_words(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer that reads words as if a space stood before each, as `tokenize_words` needs it.

    One that sees the beginning of a word by the space before it, and was made without
    `add_prefix_space`, is made again with it; any other is returned as it is.
    """
    if tokenizer._table.options.get("add_prefix_space") is False:
        return tokenizer.from_config({**tokenizer.get_config(), "add_prefix_space": True})
    return tokenizer


def tokenize_words(tokenizer: Tokenizer, words: Any) -> tf.RaggedTensor:
    """Splits each word on its own, as Hugging Face's `is_split_into_words` does.

    Args:
        tokenizer: the tokenizer.
        words: strings, ragged (batch, (words)), or nested lists.

    Returns:
        ragged int32 (batch, (words), (pieces)); a word of nothing but control characters, say, may
        have no piece.

    Raises:
        ValueError: `words` has not two dimensions, or the tokenizer is one that sees the beginning
            of a word by the space before it and was made without `add_prefix_space`.
    """
    if tokenizer._table.options.get("add_prefix_space") is False:
        raise ValueError(
            "words have no spaces before them; expected a tokenizer made with add_prefix_space=True"
        )
    if not isinstance(words, tf.Tensor | tf.RaggedTensor):
        words = tf.ragged.constant(words, tf.string, ragged_rank=1)
    if words.shape.rank != 2:
        raise ValueError(f"words have rank {words.shape.rank}, expected (batch, (words))")
    return tokenizer.tokenize(words)


@tf.autograph.experimental.do_not_convert
def pack_words(packer: Packer, pieces: tf.RaggedTensor) -> dict[str, Any]:
    """Packs the words of each row as one text, and says where each word went.

    Args:
        packer: the packer.
        pieces: ragged int32 (batch, (words), (pieces)), from `tokenize_words`.

    Returns:
        a dict:

        * ``token_ids``, ``padding_mask``, ``segment_ids``: int32 (batch, longest row).
        * ``word``: int32 (batch, longest row), which word of its row each position belongs to;
          -1 at special tokens and padding.
        * ``first_position``: ragged int32 (batch, (words)), where the first piece of each word
          stands; -1 if the word has no piece or none that was kept.
        * ``cut``: ragged bool (batch, (words)), whether the word lost pieces to ``max_length``.
    """
    words = pieces.values
    row_begins = tf.gather(words.row_splits, pieces.row_splits)
    text = tf.RaggedTensor.from_row_splits(words.values, row_begins, validate=False)
    filled = packer.fill([text])

    word_row = row_of_each(pieces.row_splits, tf.size(words.row_splits, tf.int64) - 1)
    piece_word = row_of_each(words.row_splits, tf.size(words.values, tf.int64))
    piece_word -= tf.gather(pieces.row_splits, tf.gather(word_row, piece_word))
    piece = filled.pieces(0)
    begin = tf.cast(row_begins[:-1], tf.int32)[:, tf.newaxis]
    word = tf.gather(
        tf.concat([[-1], tf.cast(piece_word, tf.int32)], 0),
        tf.where(piece >= 0, begin + piece + 1, 0),
    )

    first, behind = (
        tf.cast(splits - tf.gather(row_begins, word_row), tf.int32)
        for splits in (words.row_splits[:-1], words.row_splits[1:])
    )
    kept = tf.gather(filled.counts[0][:, 0], word_row)
    position = first + tf.gather(filled.columns(0), word_row)
    position = tf.where((first < behind) & (first < kept), position, -1)
    return filled.inputs | {
        "word": word,
        "first_position": pieces.with_values(position),
        "cut": pieces.with_values(behind > tf.maximum(kept, first)),
    }
