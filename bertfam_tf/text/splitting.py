"""Splits texts into words with offsets."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text.kernels import unicode
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.graph import text_begins, word_edges
from bertfam_tf.text.kernels.internals import parts_of
from bertfam_tf.validation import one_of

# Replaces each punctuation mark, in a copy of the text that is only used to compute offsets.
_MARK = 0x01

Split: TypeAlias = Literal["spaces", "punctuation"]


class Words(NamedTuple):
    """The words of a batch of texts.

    Fields:
        text: string, ragged (batch, (words)), the original bytes.
        start, end: int32, of the same shape, offsets in characters (code points; end exclusive).
            Bytes that are not UTF-8 count as ``bytes.decode(errors="replace")`` decodes them.
        first_byte, end_byte: the same in bytes.
    """

    text: tf.RaggedTensor
    start: tf.RaggedTensor
    end: tf.RaggedTensor
    first_byte: tf.RaggedTensor
    end_byte: tf.RaggedTensor


class WordSplitter(tf.Module):
    """Splits texts into words, in the graph.

    Args:
        split: ``"spaces"`` splits at the white space that Python's ``str.split`` splits at: U+0009
            to U+000D, U+001C to U+0020, U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
            U+202F, U+205F and U+3000. With ``"punctuation"`` each punctuation mark is also a word,
            as in BERT's basic tokenizer: Unicode's category P, and every ASCII character that is
            neither letter, digit nor control character.

    Raises:
        ValueError: ``split`` is unknown.
    """

    def __init__(self, split: Split = "spaces"):
        super().__init__(name="word_splitter")
        one_of("split", split, get_args(Split))
        self.split = split
        with tf.init_scope():
            self._marker = _marker(split == "punctuation")

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: tf.Tensor) -> Words:
        """Splits texts, string (batch,)."""
        marked, source = self._marker.normalize_with_offsets(texts)
        data = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(marked), tf.uint8), tf.int32)
        row, first, last = word_edges(data, source, _MARK)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(row), row, tf.size(texts, tf.int64))
        splits = tf.concat([[0], tf.cumsum(counts)], 0)

        # The copy has as many characters as the text.
        leads = tf.cast((data < 0x80) | (data >= 0xC0), tf.int32)
        characters = tf.concat([[0], tf.cumsum(leads)], 0)
        begin = tf.gather(characters, tf.gather(text_begins(source), row))
        byte, end = (
            tf.cast(tf.gather(source.values, at + row), tf.int32) for at in (first, last + 1)
        )
        values = (
            parts_of(texts, byte, end, splits),
            tf.gather(characters, first) - begin,
            tf.gather(characters, last + 1) - begin,
            byte,
            end,
        )
        return Words(
            *(tf.RaggedTensor.from_row_splits(value, splits, validate=False) for value in values)
        )


def _marker(punctuation: bool) -> tf_text.FastBertNormalizer:
    table = CharacterMap()
    if punctuation:
        table.put(unicode.classes().punctuation, bytes([_MARK]))
    table.put(_MARK, "x")
    table.put(list(unicode.SPACES), " ")
    return table.kernel()
