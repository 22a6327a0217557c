"""Conversion between offsets in characters (Python) and in bytes (TensorFlow)."""

from __future__ import annotations

import tensorflow as tf

from bertfam_tf.text.kernels.internals import bytes_of


class Characters:
    """The characters (code points) of texts.

    Args:
        texts: string [batch], UTF-8.
    """

    def __init__(self, texts: tf.Tensor) -> None:
        raw = bytes_of(texts)
        begins = (tf.cast(raw.values, tf.int32) & 0xC0) != 0x80
        splits = tf.cast(raw.row_splits, tf.int32)
        self._first, self._end = splits[:-1, tf.newaxis], splits[1:, tf.newaxis]
        self._before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)
        self._places = tf.concat([tf.cast(tf.where(begins)[:, 0], tf.int32), splits[-1:]], 0)

    def from_bytes(self, offsets: tf.Tensor) -> tf.Tensor:
        """Converts offsets in bytes, int32 [batch, n], each within its text."""
        before = tf.gather(self._before, self._first + offsets)
        return before - tf.gather(self._before, self._first)

    def to_bytes(self, offsets: tf.Tensor) -> tf.Tensor:
        """Converts offsets in characters, int32 [batch, n]; those beyond the text to its end."""
        first, end = (tf.gather(self._before, at) for at in (self._first, self._end))
        place = tf.gather(self._places, tf.clip_by_value(first + offsets, first, end))
        return tf.minimum(place, self._end) - self._first
