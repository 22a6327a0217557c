"""Words of a text, and where they stand in it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text import _models, _unicode
from bertfam_tf.text._graph import flags, parts_of, row_of_each

# What Python's str.split calls white space.
SPACES = (
    *range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
)  # fmt: skip
# Stands for each mark of punctuation, in a copy of the text that is read for its places alone.
_MARK = 0x01

Split: TypeAlias = Literal["spaces", "punctuation"]


class Words(NamedTuple):
    """The words of a batch of texts.

    Fields:
        text: string, ragged (batch, (words)), the bytes of the text as they are.
        start, end: int32, shaped alike, the first character (code point) of the text, and the one
            behind. Bytes that are not UTF-8 count as ``bytes.decode(errors="replace")`` has them.
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
        split: ``"spaces"``, between the white space that Python's ``str.split`` knows: U+0009 to
            U+000D, U+001C to U+0020, U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
            U+202F, U+205F and U+3000. ``"punctuation"``: besides, each mark of punctuation is a
            word, as in BERT's basic tokenizer: Unicode's category P, and all of ASCII that is
            neither letter nor digit.

    Raises:
        ValueError: for another ``split``.
    """

    def __init__(self, split: Split = "spaces"):
        super().__init__(name="word_splitter")
        if split not in get_args(Split):
            raise ValueError(f"split is one of {', '.join(get_args(Split))}, not {split!r}.")
        self.split = split
        with tf.init_scope():
            self._marker = tf_text.FastBertNormalizer(
                model_buffer=tf.constant(_marking(split == "punctuation"))
            )

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: tf.Tensor) -> Words:
        """Splits texts, string (batch,)."""
        marked, source = self._marker.normalize_with_offsets(texts)
        data = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(marked), tf.uint8), tf.int32)
        row, first, last = word_edges(data, source, _MARK)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(row), row, tf.size(texts, tf.int64))
        splits = tf.concat([[0], tf.cumsum(counts)], 0)

        # Each character of the text is one of the copy.
        leads = tf.cast((data < 0x80) | (data >= 0xC0), tf.int32)
        characters = tf.concat([[0], tf.cumsum(leads)], 0)
        begin = tf.gather(characters, tf.gather(_begins(source), row))
        byte, behind = (
            tf.cast(tf.gather(source.values, at + row), tf.int32) for at in (first, last + 1)
        )
        values = (
            parts_of(texts, byte, behind, splits),
            tf.gather(characters, first) - begin,
            tf.gather(characters, last + 1) - begin,
            byte,
            behind,
        )
        return Words(
            *(tf.RaggedTensor.from_row_splits(value, splits, validate=False) for value in values)
        )


def word_edges(
    data: tf.Tensor, source: tf.RaggedTensor, mark: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds words in rows of text whose only white space is spaces.

    Args:
        data: integers [bytes], the bytes of all rows.
        source: from ``normalize_with_offsets``: for each byte of a row and for its end, the place
            in the text as given.
        mark: a byte that is a word of its own.

    Returns:
        int64 [words], each: the row, the first byte in ``data``, the last.
    """
    size = tf.size(data, tf.int64)
    begins = _begins(source)
    word = data != ord(" ")
    parted = flags(begins, size)[1:] | ~word[1:] | ~word[:-1]
    if mark is not None:
        parted |= (data[1:] == mark) | (data[:-1] == mark)
    first = tf.where(word & tf.concat([[True], parted], 0)[:size])[:, 0]
    last = tf.where(word & tf.concat([parted, [True]], 0)[:size])[:, 0]
    return tf.gather(row_of_each(begins, size), first), first, last


def _begins(source: tf.RaggedTensor) -> tf.Tensor:
    # `source` has one entry more for each row, the end.
    return source.row_splits - tf.range(tf.size(source.row_splits, tf.int64))


def _marking(punctuation: bool) -> np.ndarray:
    strings = [b"", b" ", bytes([_MARK]), b"x"]
    choice = np.zeros(_unicode.CODEPOINTS, np.int64)
    if punctuation:
        choice[_unicode.classes().punctuation] = 2
    choice[_MARK] = 3
    choice[list(SPACES)] = 1
    return _models.normalizer_model(strings, choice, "\ufffd".encode())
