"""Reads TFRecord files that may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bertfam_tf.data.errors import MARK

_BATCH = 64


def read_tfrecords(file: Any, count: Any, features: Mapping[str, Any]) -> tf.data.Dataset:
    """Reads a known number of records of type ``tf.train.Example``.

    TensorFlow's own errors name neither the file nor the record. They repeat a record that is not a
    ``tf.train.Example`` as it is, which Python raises as a ``UnicodeDecodeError``.

    Args:
        file: the path of the file; string.
        count: the number of its records; int64.
        features: the features of each record, as for ``tf.io.parse_example``.

    Returns:
        The records, string scalars, in their order. If there are fewer than ``count``, or one is
        damaged or does not have the features, the data set ends with an ``InvalidArgumentError``
        that ``as_value_errors`` raises as a ``ValueError``.
    """
    count = tf.cast(count, tf.int64)

    def checked(index: tf.Tensor, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        value = next(iter(tf.io.parse_example(records, features).values()))
        # Without an output that depends on it, TensorFlow removes the parsing.
        return index, records, tf.size(getattr(value, "flat_values", value))

    def in_order(expected: tf.Tensor, element: tuple) -> tf.Tensor:
        index, records, _ = element
        size = tf.minimum(count - expected * _BATCH, _BATCH)
        valid = (index == expected) & (tf.size(records, tf.int64) == size)
        valid = tf.cond(valid, lambda: True, fail)
        with tf.control_dependencies([valid]):
            return tf.identity(records)

    def fail() -> tf.Tensor:
        single = tf.data.TFRecordDataset(file).ignore_errors().batch(1).enumerate()
        single = single.map(checked).ignore_errors().map(lambda index, *rest: index)
        number = single.reduce(
            tf.constant(1, tf.int64), lambda n, i: n + tf.cast(i == n - 1, n.dtype)
        )
        number, total = tf.strings.as_string(number), tf.strings.as_string(count)
        text = [MARK, file, " has records that are truncated or damaged: record ", number, " of "]
        failure = tf.debugging.Assert(False, [tf.strings.join([*text, total, "."])])
        with tf.control_dependencies([failure]):
            return tf.constant(False)

    records = tf.data.TFRecordDataset(file).ignore_errors().take(count).batch(_BATCH).enumerate()
    valid = records.map(checked).ignore_errors()
    # After the last valid batch comes an index that is not the expected one.
    blank = (tf.constant(-1, tf.int64), tf.zeros([0], tf.string), 0)
    end = tf.data.Dataset.from_tensors(blank)
    positions = tf.data.Dataset.range(-(-count // _BATCH))
    return tf.data.Dataset.zip(positions, valid.concatenate(end)).map(in_order).unbatch()
