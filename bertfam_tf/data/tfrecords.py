"""Reads TFRecord files that may be damaged."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.data.errors import MARK


def read_tfrecords(files: Any, count: Any, name: Any) -> tf.data.Dataset:
    """Reads a known number of records.

    TensorFlow's own errors do not name the file.

    Args:
        files: the path of the file, or paths of several; string.
        count: the number of their records; int64.
        name: the file or folder in the error message; string.

    Returns:
        The records, string scalars. If there are fewer than ``count``, or one is damaged, the data
        set ends with an ``InvalidArgumentError`` that ``as_value_errors`` raises as a
        ``ValueError``.
    """

    def fail(name: tf.Tensor) -> tf.Tensor:
        text = tf.strings.join([MARK, name, " has records that are truncated or damaged."])
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.identity(name)

    end = tf.data.Dataset.from_tensors(name).map(fail)
    return tf.data.TFRecordDataset(files).ignore_errors().concatenate(end).take(count)
