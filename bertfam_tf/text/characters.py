"""Offsets in characters, as Python counts them, and in bytes, as TensorFlow does."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_text as tf_text


class Characters:
    """Where the characters (code points) of texts begin.

    Args:
        texts: string [batch], UTF-8.
    """

    def __init__(self, texts: tf.Tensor) -> None:
        raw = tf_text.ByteSplitter().split(texts)
        begins = (tf.cast(raw.values, tf.int32) & 0xC0) != 0x80
        splits = tf.cast(raw.row_splits, tf.int32)
        self._first, self._behind = splits[:-1, tf.newaxis], splits[1:, tf.newaxis]
        self._before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)
        self._places = tf.concat([tf.cast(tf.where(begins)[:, 0], tf.int32), splits[-1:]], 0)

    def from_bytes(self, offsets: tf.Tensor) -> tf.Tensor:
        """Offsets in bytes, int32 [batch, n], each within its text, to such in characters."""
        before = tf.gather(self._before, self._first + offsets)
        return before - tf.gather(self._before, self._first)

    def to_bytes(self, offsets: tf.Tensor) -> tf.Tensor:
        """Offsets in characters, int32 [batch, n], to such in bytes; the text's end at most."""
        first, behind = (tf.gather(self._before, at) for at in (self._first, self._behind))
        place = tf.gather(self._places, tf.clip_by_value(first + offsets, first, behind))
        return tf.minimum(place, self._behind) - self._first
