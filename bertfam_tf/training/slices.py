"""Sparse gradients, such as an embedding's, with a slice for each token that was looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def dense(gradients: Sequence[Any]) -> list[Any]:
    """Converts sparse gradients to tensors; None remains."""
    return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def values(gradients: Sequence[Any]) -> list[Any]:
    """Returns the slices of sparse gradients, and dense ones as they are."""
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def with_values(gradients: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Replaces the slices of sparse gradients, and dense ones."""
    return [
        tf.IndexedSlices(x, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else x
        for g, x in zip(gradients, new, strict=True)
    ]


def one_per_row(gradient: Any) -> Any:
    """Adds the slices of each row of a sparse gradient; a dense one is returned as it is.

    The number of slices remains: XLA has to know it. Slices that are left are zeros, of row 0.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices)
    rows, count = tf.gather(gradient.indices, order), tf.size(order)
    begins = tf.concat([[0], tf.cast(rows[1:] != rows[:-1], tf.int32)], axis=0)
    number = tf.cumsum(begins)[:count]  # not one of no slices
    slices = tf.math.unsorted_segment_sum(tf.gather(gradient.values, order), number, count)
    rows = tf.maximum(tf.math.unsorted_segment_max(rows, number, count), 0)
    return tf.IndexedSlices(slices, rows, gradient.dense_shape)
