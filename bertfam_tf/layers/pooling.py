"""Pooling of a sequence to one vector."""

import keras
from keras import ops

from bertfam_tf.layers.fused import Dense
from bertfam_tf.layers.initializers import normal


class FirstTokenPooler(keras.layers.Layer):
    """BERT's pooler (arXiv 1810.04805): tanh of a dense layer on the first token.

    Call:
        x: (batch, width), the first token's vector.

    Returns:
        The same shape.
    """

    def __init__(self, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(self, input_shape):
        width = input_shape[-1]
        self.dense = Dense(
            width,
            activation="tanh",
            kernel_initializer=normal(self.stddev),
            name="dense",
            dtype=self.dtype_policy,
        )
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(x)

    def compute_output_shape(self, input_shape):
        # Otherwise Keras calls the layer to infer the shape. While an export is traced, TensorFlow
        # would count the weights that this call reads as weights of the export.
        return input_shape


@keras.saving.register_keras_serializable(package="bertfam_tf")
class TokenPooling(keras.layers.Layer):
    """Pooling of all tokens' vectors into one, in one or several ways, whose results are
    concatenated.

    ``"mean"`` (Sentence-BERT, arXiv 1908.10084); ``"mean_sqrt_length"``, the sum divided by the
    square root of the number of tokens; ``"weighted_mean"``, where the n-th token counts n times
    (SGPT, arXiv 2202.08904); ``"max"``, of each component; ``"first"`` and ``"last"``, that token's
    vector.

    Args:
        kinds: the names from ``KINDS``.

    Call:
        x: (batch, length, width).
        padding_mask: (batch, length), non-zero at real tokens.
        pooling_mask: (batch, length), non-zero at the real tokens that are pooled; None for all.

    Returns:
        (batch, width × kinds); zeros for an example without tokens to pool.
    """

    KINDS = ("mean", "first", "last", "max", "weighted_mean", "mean_sqrt_length")

    def __init__(self, kinds, **kwargs):
        super().__init__(**kwargs)
        self.kinds = tuple(kinds)

    def get_config(self):
        return {**super().get_config(), "kinds": list(self.kinds)}

    def call(self, x, padding_mask, pooling_mask=None):
        # Integers and float32 count exactly, which half precision does not.
        real = ops.cast(ops.not_equal(padding_mask, 0), "float32")  # (batch, length)
        pooled = (
            real if pooling_mask is None else ops.cast(ops.not_equal(pooling_mask, 0), real.dtype)
        )
        return ops.concatenate([self._pooled(kind, x, real, pooled) for kind in self.kinds], -1)

    def _pooled(self, kind, x, real, pooled):
        count = ops.sum(pooled, axis=1, keepdims=True)  # (batch, 1)
        if kind == "max":
            # Selected by the mask, not by a sentinel: all vectors of an example may be below any
            # constant.
            chosen = ops.expand_dims(ops.greater(pooled, 0), -1)
            lowest = float("-inf")
            largest = ops.where(chosen, x, ops.full_like(x, lowest))
            # With an initial value, the batch may be empty.
            largest = ops.max(largest, axis=1, initial=lowest)
            return ops.where(ops.greater(count, 0), largest, ops.zeros_like(largest))
        if kind == "mean":
            weights = pooled / ops.maximum(count, 1)
        elif kind == "mean_sqrt_length":
            weights = pooled / ops.sqrt(ops.maximum(count, 1))
        elif kind == "weighted_mean":
            weights = pooled * ops.cumsum(real, axis=1)
            weights = weights / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
        else:
            place = 1 if kind == "first" else count
            weights = pooled * ops.cast(ops.equal(ops.cumsum(pooled, axis=1), place), pooled.dtype)
        return ops.sum(x * ops.cast(ops.expand_dims(weights, -1), x.dtype), axis=1)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class UnitNormalization(keras.layers.UnitNormalization):
    """Keras' layer over the last axis, with zeros for zeros in TFLite too.

    Call:
        x: (…, width).

    Returns:
        (…, width), vectors of length 1; zeros for zeros.
    """

    def call(self, x):
        # Keras limits the inverse of the norm instead: infinite for zeros, and NaN in TFLite.
        squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
        return x * ops.rsqrt(ops.maximum(squares, 1e-24))


class LastTokenPooling(keras.layers.Layer):
    """The output at the last real token of each example.

    Call:
        x: (batch, length, width).
        padding_mask: (batch, cached length + length), non-zero at real tokens; its last positions
            belong to ``x``.

    Returns:
        (batch, width); for an example without real tokens, the output at its first position.
    """

    def call(self, x, padding_mask):
        length = ops.shape(x)[1]
        if isinstance(length, int) and length == 1:
            return x[:, 0]
        real = padding_mask[:, ops.shape(padding_mask)[1] - length :]
        positions = ops.arange(length) * ops.cast(
            ops.cast(real, "bool"), "int32"
        )  # (batch, length)
        last = ops.max(positions, axis=1, initial=0)  # (batch,), which may be empty
        last = ops.expand_dims(ops.expand_dims(last, 1), 1)
        return ops.squeeze(ops.take_along_axis(x, last, axis=1), 1)

    def compute_output_shape(self, x_shape, padding_mask_shape=None):
        return x_shape[0], x_shape[2]
