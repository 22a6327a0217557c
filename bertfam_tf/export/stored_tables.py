"""Weights in another dtype, and embeddings that are the matrix of an output layer too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.export.merged_projections import SMALL_TABLE
from bertfam_tf.heads.head import TiedOutput


class StoredWeight(NamedTuple):
    """One stored weight: values · scales · factors + offset.

    Fields:
        values: bfloat16 or int8, in the weight's shape.
        scales: float32, with size 1 along the axis that shares a scale; None for bfloat16.
        factors: float32, of the last axis; None for 1.
        offset: float32, of the last axis; None for 0.
    """

    values: tf.Variable
    scales: tf.Variable | None
    factors: np.ndarray | None = None
    offset: np.ndarray | None = None

    def dequantize(self, read: Callable[[Any], Any] = tf.convert_to_tensor) -> tf.Tensor:
        """Returns the weight in float32, or the part of it that ``read`` takes."""
        values = tf.cast(read(self.values), tf.float32)
        values = values if self.scales is None else values * read(self.scales)
        values = values if self.factors is None else values * self.factors
        return values if self.offset is None else values + self.offset


def is_plain_output(layer: Any) -> bool:
    """Returns whether a layer is a float32 ``TiedOutput`` of a large embedding alone."""
    if not (isinstance(layer, TiedOutput) and layer.built and layer.more is None):
        return False
    table = layer.table()
    return (
        isinstance(table, keras.Variable)
        and table.shape[0] > SMALL_TABLE
        and layer.compute_dtype == layer.variable_dtype == table.dtype == "float32"
    )


def mean_row(table: np.ndarray) -> np.ndarray:
    """Returns the mean of an embedding's rows, float32 (width,)."""
    return table.mean(axis=0, dtype="float64").astype("float32")
