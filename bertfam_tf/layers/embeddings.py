"""Embedding layers that Keras lacks."""

from typing import Any

import keras
import numpy as np
from keras import ops

from bertfam_tf.layers.fused import take
from bertfam_tf.layers.initializers import normal
from bertfam_tf.layers.masks import check_length

# Rows of a table that are selected one by one instead of gathered.
_FEW_ROWS = 4


class Embedding(keras.layers.Embedding):
    """``keras.layers.Embedding`` with a table from ``add_table``."""

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        return super().add_weight(*args, autocast=False, **kwargs)

    def call(self, inputs):
        return look_up(self, self.embeddings, ops.cast(inputs, "int32"))


def add_table(layer: keras.layers.Layer, shape: tuple, name: str, **kwargs: Any) -> keras.Variable:
    """Adds an embedding table, whose vectors are looked up before they are cast (see ``look_up``).

    So gradients are summed in float32. Half precision loses the gradients of a vector that
    thousands of tokens share, such as a segment's: on JAX, a sum of equal bfloat16 gradients stops
    growing after 256 of them.

    Args:
        layer: the layer that gets the weight.
        shape, name: the shape and the name of the weight.
        **kwargs: further arguments of ``add_weight``.
    """
    return layer.add_weight(shape=shape, name=name, autocast=False, **kwargs)


def look_up(layer: keras.layers.Layer, table: Any, ids: Any) -> Any:
    """Returns rows ``ids`` of ``table``, in the dtype that ``layer`` computes in.

    On JAX, rows of a table of a few are selected, not gathered: the gradient of a gather writes
    each token's to one of these rows, which GPUs do one after the other.
    """
    if not _selects(table):
        return ops.cast(take(table, ids), layer.compute_dtype)
    table = ops.convert_to_tensor(table)
    ids = ops.expand_dims(ids, -1)
    rows = table[0]
    for i in range(1, table.shape[0]):
        rows = ops.where(ids >= i, table[i], rows)
    return ops.cast(rows, layer.compute_dtype)


def _selects(table: Any) -> bool:
    return keras.backend.backend() == "jax" and table.shape[0] <= _FEW_ROWS


class PositionEmbedding(keras.layers.Layer):
    """Learned absolute position embeddings (arXiv 1810.04805).

    Args:
        max_positions: the number of positions, which is the maximum input length.
        stddev: the standard deviation of the initial weights.
        offset: the index of position 0 in the table; the vectors before it are for negative ids.

    Call:
        x: (batch, length, width), or unpadded (tokens, width); only its shape is read.
        position_ids: int (batch, length), or (tokens,); None for 0, 1, 2, …, where ``x`` is padded.

    Returns:
        The shape of ``x``, or (1, length, width) without ``position_ids``.
    """

    def __init__(self, max_positions: int, stddev: float = 0.02, offset: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.max_positions = max_positions
        self.stddev = stddev
        self.offset = offset

    def build(self, x_shape, position_ids_shape=None):
        shape = (self.offset + self.max_positions, x_shape[-1])
        self.embeddings = add_table(self, shape, "embeddings", **self._weight())

    def _weight(self):
        return {"initializer": normal(self.stddev)}

    def call(self, x, position_ids=None):
        length: Any = ops.shape(x)[1] if len(x.shape) == 3 else None
        check_length(length, self.max_positions)
        if position_ids is not None:
            return look_up(self, self.embeddings, position_ids + self.offset)
        first = self.embeddings[self.offset : self.offset + length]
        return ops.expand_dims(ops.cast(first, self.compute_dtype), 0)

    def compute_output_shape(self, x_shape, position_ids_shape=None):
        return (1 if position_ids_shape is None else x_shape[0], *x_shape[1:])


class SinusoidalEmbedding(PositionEmbedding):
    """Sinusoidal positions (arXiv 1706.03762): sines in even columns, cosines in odd ones.

    The table is a non-trainable weight, because checkpoints contain it. The arguments and the call
    are the same as for ``PositionEmbedding``; ``stddev`` has no effect.
    """

    def _weight(self):
        return {"initializer": _sinusoids, "trainable": False}


def _sinusoids(shape, dtype=None):
    positions, width = shape
    columns = np.arange(width)
    angles = np.arange(positions)[:, None] / np.power(10000.0, 2 * (columns // 2) / width)
    return ops.convert_to_tensor(np.where(columns % 2, np.cos(angles), np.sin(angles)), dtype)


class MaskEmbedding(keras.layers.Layer):
    """One trainable vector for all tokens that are predicted (arXiv 1906.08237, section 2.3).

    Args:
        width: the width of the vector.
        stddev: the standard deviation of the initial weights.

    Call:
        targets: (batch, predictions, length); only its shape is read.

    Returns:
        (batch, predictions, width).
    """

    def __init__(self, width: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.stddev = stddev

    def build(self, targets_shape):
        self.embedding = self.add_weight(
            shape=(1, 1, self.width), initializer=normal(self.stddev), name="embedding"
        )

    def call(self, targets):
        ones = ops.ones_like(targets[:, :, :1], dtype=self.compute_dtype)
        return ones * ops.cast(self.embedding, self.compute_dtype)

    def compute_output_shape(self, targets_shape):
        return (*targets_shape[:2], self.width)
