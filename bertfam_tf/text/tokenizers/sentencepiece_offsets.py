"""Offsets of SentencePiece's pieces in the original text.

FastSentencepiece does not return offsets. Pieces tile the normalized text, so offsets are computed
from the number of bytes in each piece and from a second kernel, which normalizes each character
separately and returns the source of each byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.graph import (
    Pieces,
    flags,
    following,
    original_spans,
    previous,
    row_of_each,
    unlikely,
    utf8_width,
)
from bertfam_tf.text.kernels.internals import bytes_of, sentencepiece
from bertfam_tf.text.tokenizers.sentencepiece_model import (
    APOSTROPHE,
    GRAVE,
    ONE_UNKNOWN,
    Kernels,
    character_model,
)

# The id of a space in the model of characters.
_SPACE_CHARACTER = 1


class _Units(NamedTuple):
    """The units in which pieces are measured: elements (bytes or characters), without spaces.

    Fields:
        opening, closing: int64 [n], the first and the last element of each unit.
        span: maps elements, [k], and the indices of their texts, [k], to ``(starts, ends)``, int32
            [k], in bytes of the original texts.
        splits: int64 [batch + 1], row splits of the elements.
        seen: bool [elements], whether an element is the first of a unit.
        bytes: int32 [elements], their values.
    """

    opening: tf.Tensor
    closing: tf.Tensor
    span: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    splits: tf.Tensor
    seen: tf.Tensor
    bytes: tf.Tensor

    def counts_before_rows(self) -> tf.Tensor:
        """Returns int32 [batch + 1], the row splits of the units."""
        before = tf.concat([[0], tf.cumsum(tf.cast(self.seen, tf.int32))], 0)
        return tf.gather(before, self.splits)


class PieceLocator(tf.Module):
    """Finds the offsets of pieces.

    Args:
        kernels: the model's kernels.
        unify_quotes: whether `` and '' become ".
        may_end_in_space: whether a piece may be a space at the end of a text.
    """

    def __init__(self, kernels: Kernels, unify_quotes: bool, may_end_in_space: bool) -> None:
        super().__init__(name="piece_locator")
        self._per_character = kernels.per_character
        self._byte_counts = kernels.byte_counts
        self._first_bytes = kernels.first_bytes
        self._character_counts = kernels.character_counts
        self._unify_quotes = unify_quotes
        self._may_end_in_space = may_end_in_space
        marks = zip((APOSTROPHE, GRAVE), kernels.unknown_quotes, strict=False)
        self._unknown_marks = tuple(mark for mark, unknown in marks if unify_quotes and unknown)
        self._pair_is_unknown = kernels.unknown_quotes[2]
        # The kernel that splits text into characters, built on first use.
        self._make_characters = lambda: sentencepiece(character_model(kernels.model))
        self._characters: Any = None

    def __call__(
        self, pieces: Pieces, texts: tf.Tensor, prepared: tf.Tensor, source: Any
    ) -> Pieces:
        """Returns pieces with offsets.

        Args:
            pieces: the pieces of ``prepared``, with the kernel's ids.
            texts: string [batch], the original texts.
            prepared: string [batch], the input of the tokenizer's kernel.
            source: from the ``normalize_with_offsets`` that produced ``prepared``; None if it is
                ``texts``.
        """
        units = self._byte_units(texts)
        starts, ends = self._spans(pieces, units, self._byte_counts, texts)
        if source is None:
            return pieces._replace(starts=starts, ends=ends)

        def from_characters(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            units = self._character_units(prepared)
            start, end = self._spans(pieces, units, self._character_counts, prepared)
            rows, raw = pieces.rows(), bytes_of(texts)
            length = tf.gather(tf.cast(tf.strings.length(texts), tf.int32), rows)
            over = start >= tf.gather(tf.cast(tf.strings.length(prepared), tf.int32), rows)
            start = tf.cast(tf.where(over, 0, start), tf.int64)
            # If one character became several, only the last of them is not empty in the kernel.
            end = tf.maximum(tf.cast(tf.where(over, 0, end), tf.int64), start + 1)
            bare = tf.gather(self._character_counts, pieces.ids) == 0
            end = tf.where(bare, start + 1, end)
            start, end = original_spans(raw, source, rows, start, end)
            end = tf.minimum(end, length)
            return tf.where(over, length, start), tf.where(over, length, end)

        # They do not match where a rule for several characters was applied.
        differs = ~self._match(pieces, units)
        starts, ends = unlikely(differs, from_characters, [starts, ends], [])
        return pieces._replace(starts=starts, ends=ends)

    def _match(self, pieces: Pieces, units: _Units) -> tf.Tensor:
        """Returns bool, whether each piece begins with the byte of its first unit, and pieces and
        units end together in each text."""
        count = tf.gather(self._byte_counts, pieces.ids)  # [pieces], in units
        end = tf.cumsum(count)
        byte = gather_padded(tf.gather(units.bytes, units.opening), end - count)
        same = (byte == tf.gather(self._first_bytes, pieces.ids)) | (count == 0)
        ends = tf.gather(tf.concat([[0], end], 0), pieces.splits)
        return tf.reduce_all(same) & tf.reduce_all(ends == units.counts_before_rows())

    def _spans(
        self, pieces: Pieces, units: _Units, counts: np.ndarray, texts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ``(starts, ends)``, int32 [pieces], of pieces that tile units.

        Args:
            pieces, units: the pieces and units of all texts.
            counts: int32 [kernel's vocabulary], the units of each piece.
            texts: string [batch].
        """
        count = tf.gather(counts, pieces.ids)  # [pieces], in units
        end = tf.cumsum(count)
        first = end - count
        rows = pieces.rows()
        opening = gather_padded(units.opening, first)
        # A single space covers the next character, or nothing at the end of a text.
        closing = gather_padded(units.closing, first + tf.maximum(count, 1) - 1)
        closing = tf.where(count == 0, opening, closing)
        start, _ = units.span(opening, rows)
        _, end = units.span(closing, rows)
        if not self._may_end_in_space:
            return start, end
        lengths = tf.gather(tf.cast(tf.strings.length(texts), tf.int32), rows)
        over = first >= tf.gather(units.counts_before_rows(), rows + 1)
        return tf.where(over, lengths, start), tf.where(over, lengths, end)

    def _byte_units(self, texts: tf.Tensor) -> _Units:
        """Returns the bytes of the normalized texts, adjacent unknown characters as one unit."""
        normalized, source = self._per_character.normalize_with_offsets(texts)
        split = bytes_of(normalized)
        data, splits = tf.cast(split.values, tf.int32), split.row_splits
        raw = bytes_of(texts)

        def span(at: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # Each row of offsets has one more entry, for the end.
            place = tf.cast(at, tf.int64) + rows
            start = tf.cast(gather_padded(source.values, place), tf.int32)
            after = tf.cast(gather_padded(source.values, place + 1), tf.int32)
            place = tf.gather(raw.row_splits, rows) + tf.cast(start, tf.int64)
            byte = tf.cast(gather_padded(raw.values, place), tf.int32)
            end = start + utf8_width(byte)
            # An invalid UTF-8 sequence may be shorter than its first byte indicates.
            cut = (after > start) & (gather_padded(data, at) != byte)
            return start, tf.where(cut, tf.minimum(end, after), end)

        seen = data != ord(" ")
        opening = tf.where(seen)[:, 0]

        def grouped(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            continues = self._continues_unit(data, source, splits)
            first = seen & ~continues
            opening = tf.where(first)[:, 0]
            count = tf.cumsum(tf.cast(continues, tf.int64))
            before = tf.gather(count, opening)
            return first, opening, opening + following(before, count[-1]) - before

        values = unlikely(self._may_have_groups(data), grouped, [seen, opening, opening], [])
        seen, opening, closing = values
        return _Units(opening, closing, span, splits, seen, data)

    def _may_have_groups(self, data: tf.Tensor) -> tf.Tensor:
        """Returns bool, whether there may be units of several bytes."""
        conditions = [tf.reduce_any(data == code) for code in (ONE_UNKNOWN, *self._unknown_marks)]
        if self._unify_quotes:
            conditions.append(tf.reduce_any(_equal_quotes(data)))
        return tf.reduce_any(tf.stack(conditions))

    def _continues_unit(
        self, data: tf.Tensor, source: tf.RaggedTensor, splits: tf.Tensor
    ) -> tf.Tensor:
        """Returns bool [bytes], which bytes belong to the unit of the previous byte."""
        size = tf.size(data, tf.int64)
        opens_row = flags(splits, size)
        unknown = data == ONE_UNKNOWN
        second = tf.zeros_like(unknown)
        if self._unify_quotes:
            at = tf.gather(source.values, tf.range(size) + row_of_each(splits, size))
            pair = _equal_quotes(data) & (at[1:] == at[:-1] + 1)
            second = _second_of_pairs(tf.concat([[False], pair], 0)[:size] & ~opens_row)
            paired = second | following(second, False)
            for mark in self._unknown_marks:
                unknown |= (data == mark) & ~paired
            if self._pair_is_unknown:
                unknown |= paired
        return (unknown & previous(unknown, False) & ~opens_row) | second

    def _character_units(self, prepared: tf.Tensor) -> _Units:
        """Returns the characters of the normalized texts, adjacent unknown ones as one unit."""
        if self._characters is None:
            with tf.init_scope():
                self._characters = self._make_characters()
        ids, starts, ends = self._characters.tokenize_with_offsets(prepared)
        starts, ends = (tf.cast(part.values, tf.int32) for part in (starts, ends))
        seen = ids.values != _SPACE_CHARACTER
        opening = tf.where(seen)[:, 0]

        def span(at: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return gather_padded(starts, at), gather_padded(ends, at)

        return _Units(opening, opening, span, tf.cast(ids.row_splits, tf.int64), seen, ids.values)


def gather_padded(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the values at positions; the last one beyond the end; 0 if there are no values."""
    last = tf.maximum(tf.size(values, places.dtype) - 1, 0)
    values = tf.concat([values, tf.zeros([1], values.dtype)], 0)
    return tf.gather(values, tf.minimum(places, last))


def _equal_quotes(data: tf.Tensor) -> tf.Tensor:
    """Returns bool [bytes - 1], which bytes are the same quotation mark as the previous byte."""
    return (data[1:] == data[:-1]) & ((data[1:] == APOSTROPHE) | (data[1:] == GRAVE))


def _second_of_pairs(same: tf.Tensor) -> tf.Tensor:
    """Returns bool [bytes], which bytes close a pair; ``same``, bool [bytes], is true at bytes that
    equal the previous byte."""
    run = tf.cumsum(tf.cast(~same, tf.int64)) - 1
    inside = tf.range(tf.size(same, tf.int64)) - tf.gather(tf.where(~same)[:, 0], run)
    return inside % 2 == 1
