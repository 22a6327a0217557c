"""Positions within attention, applied between the split into heads and the scores.

The functions and layers take ``(query, key, positions)`` and return ``(query, key, bias)``; the
bias, or None, is added to the scaled scores. Query and key are (batch, heads, length, head size). A
model computes angles, buckets and biases that all its blocks share once, and passes them as
``positions``.
"""

import math

import keras
from keras import ops

from bertfam_tf.layers.attention import split_heads
from bertfam_tf.layers.embeddings import add_table, look_up
from bertfam_tf.layers.fused import Dropout
from bertfam_tf.layers.initializers import normal
from bertfam_tf.layers.relative import shift


class RotaryAngles(keras.layers.Layer):
    """Cosines and sines for ``rotate`` (RoFormer, arXiv 2104.09864).

    Args:
        head_size: the even width of an attention head.
        base: the base of the geometric series of frequencies.

    Call:
        position_ids: int (batch or 1, length).

    Returns:
        ``(cosines, sines)``, both (batch or 1, 1, length, head_size).
    """

    def __init__(self, head_size: int, base: float = 10000.0, **kwargs):
        super().__init__(**kwargs)
        if head_size % 2:
            raise ValueError(f"head_size must be even for rotary positions, got {head_size}.")
        self.head_size = head_size
        self.base = base

    def call(self, position_ids):
        # Half precision could not tell neighbouring positions apart.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        rates = [self.base ** (-i / self.head_size) for i in range(0, self.head_size, 2)]
        angles = ops.expand_dims(ops.cast(position_ids, dtype), -1)
        # One conversion from float64: a cast would round to float32 first.
        angles = angles * ops.convert_to_tensor(rates, dtype)
        angles = ops.concatenate([angles, angles], axis=-1)  # (batch, length, head size)
        angles = ops.expand_dims(angles, 1)  # (batch, 1, length, head size)
        return tuple(ops.cast(f(angles), self.compute_dtype) for f in (ops.cos, ops.sin))

    def compute_output_spec(self, position_ids):
        shape = (position_ids.shape[0], 1, position_ids.shape[1], self.head_size)
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for _ in range(2))


def rotate(query, key, positions):
    """Applies rotary positions: rotates the pairs of columns (i, i + head size / 2).

    Args:
        positions: the output of ``RotaryAngles``.
    """
    cosines, sines = positions

    def rotated(x):
        half = x.shape[-1] // 2
        other = ops.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return x * cosines + other * sines

    return rotated(query), rotated(key), None


def add_bias(query, key, positions):
    """Returns ``positions`` itself as the bias, a relative position bias from ``RelativeBias``."""
    return query, key, positions


def symmetric_buckets(distances, num_buckets: int, max_distance: int):
    """Assigns distances to buckets, half of them for keys after the query (T5, arXiv 1910.10683).

    In each half, half of the buckets hold one distance each, and the others grow logarithmically up
    to ``max_distance``.

    Args:
        distances: int (queries, keys), the query position minus key position.

    Returns:
        int32, the same shape, from 0 to ``num_buckets`` - 1.
    """
    side, exact = num_buckets // 2, num_buckets // 4
    size = ops.abs(distances)
    widening = (side - exact) / math.log(max_distance / exact)
    far = ops.log(ops.cast(ops.maximum(size, exact), "float32") / exact) * widening
    far = ops.minimum(exact + ops.cast(far, "int32"), side - 1)
    return ops.where(distances < 0, side, 0) + ops.where(size < exact, size, far)


def log_buckets(distances, num_buckets: int, max_distance: int):
    """Computes log-scaled distances, exact up to ``num_buckets`` / 2 (DeBERTa, arXiv 2006.03654).

    Args:
        distances: int (…), the query position minus the key position.
        num_buckets: at least 2.
        max_distance: the first distance that is ``num_buckets`` or more, larger than
            ``num_buckets`` / 2 + 1.

    Returns:
        int32, the same shape, with the sign of the distances.

    Raises:
        ValueError: if a number is out of these ranges.
    """
    exact = num_buckets // 2
    if not 1 <= exact < max_distance - 1:
        raise ValueError(
            "num_buckets must be at least 2, and less than twice max_distance - 1, got "
            f"num_buckets = {num_buckets} and max_distance = {max_distance}."
        )
    size = ops.abs(distances)
    widening = (exact - 1) / math.log((max_distance - 1) / exact)
    far = ops.log(ops.cast(ops.maximum(size, exact), "float32") / exact) * widening
    far = ops.cast(ops.ceil(far), "int32")
    # The last distance before the maximum maps to an integer, which rounding may exceed.
    far = ops.where(size < max_distance, ops.minimum(far, exact - 1), far)
    return ops.where(size <= exact, distances, (far + exact) * ops.sign(distances))


class RelativeBias(keras.layers.Layer):
    """A trainable bias for each head and bucket of distances.

    Args:
        num_buckets: the number of buckets.
        num_heads: the number of attention heads.
        stddev: the standard deviation of the initial weights.

    Call:
        buckets: int (queries, keys).

    Returns:
        (1, num_heads, queries, keys).
    """

    def __init__(self, num_buckets: int, num_heads: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.shape = (num_buckets, num_heads)
        self.stddev = stddev

    def build(self, buckets_shape):
        initializer = normal(self.stddev)
        self.embeddings = add_table(self, self.shape, "embeddings", initializer=initializer)

    def call(self, buckets):
        bias = look_up(self, self.embeddings, buckets)  # (queries, keys, heads)
        return ops.expand_dims(ops.transpose(bias, (2, 0, 1)), 0)

    def compute_output_shape(self, buckets_shape):
        return (1, self.shape[1], *buckets_shape)


class DistanceEmbedding(keras.layers.Layer):
    """A trainable vector for each distance.

    Args:
        count: the number of distances.
        stddev: the standard deviation of the initial weights.

    Call:
        x: (batch, length, width); only its width is used.

    Returns:
        (1, count, width).
    """

    def __init__(self, count: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.stddev = stddev

    def build(self, x_shape):
        self.embeddings = self.add_weight(
            shape=(self.count, x_shape[-1]), initializer=normal(self.stddev), name="embeddings"
        )

    def call(self, x):
        return ops.expand_dims(ops.cast(self.embeddings, self.compute_dtype), 0)

    def compute_output_shape(self, x_shape):
        return (1, self.count, x_shape[-1])


class DisentangledScores(keras.layers.Layer):
    """Content-to-position and position-to-content scores (DeBERTa, arXiv 2006.03654).

    Args:
        query, key: the projections of the distance embeddings, which the attention may share.
        scale: the factor of the scores, the same as the attention's.
        dropout: the dropout rate of the distance embeddings.

    Call:
        query, key: (batch, heads, length, head size).
        positions: ``(embeddings, rows)``: (1, count, width), and int (2 · length - 1,), the row of
            each distance, query position minus key position, from length - 1 to 1 - length.

    Returns:
        ``(query, key, bias)``, the bias (batch, heads, length, length).
    """

    def __init__(
        self,
        query: keras.layers.Layer,
        key: keras.layers.Layer,
        scale: float,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.query = query
        self.key = key
        self.scale = scale
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def call(self, query, key, positions):
        embeddings, rows = positions
        heads, length = query.shape[1], ops.shape(query)[2]
        embeddings = self.dropout(embeddings)

        def scores(x, projection, rows):
            projected = projection(ops.take(embeddings, rows, axis=1))
            projected = split_heads(projected, heads)  # (1, heads, 2 · length - 1, head size)
            products = ops.matmul(x * self.scale, ops.transpose(projected, (0, 1, 3, 2)))
            return shift(products, length)  # (batch, heads, length, length)

        by_query = scores(query, self.key, rows)
        # One row for each key: the distance from key to query is the negated distance from query to
        # key.
        by_key = scores(key, self.query, ops.flip(rows))
        return query, key, by_query + ops.transpose(by_key, (0, 1, 3, 2))
