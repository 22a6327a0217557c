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
        # Without it Keras calls the layer to find out. While an export is traced, TensorFlow would
        # count the weights read by that call among those of the export.
        return input_shape


class MeanPooling(keras.layers.Layer):
    """The mean over real tokens (Sentence-BERT, arXiv 1908.10084).

    Call:
        x: (batch, length, width).
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        (batch, width); zeros for an example without real tokens.
    """

    def call(self, x, padding_mask):
        weights = ops.expand_dims(ops.cast(padding_mask, x.dtype), -1)
        return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)


class LastTokenPooling(keras.layers.Layer):
    """The output at the last real token of each example.

    Call:
        x: (batch, length, width).
        padding_mask: (batch, cached length + length), non-zero at real tokens; its last positions
            are those of ``x``.

    Returns:
        (batch, width); for an example without real tokens the output at its first position.
    """

    def call(self, x, padding_mask):
        length = ops.shape(x)[1]
        real = padding_mask[:, ops.shape(padding_mask)[1] - length :]
        positions = ops.arange(length) * ops.cast(
            ops.cast(real, "bool"), "int32"
        )  # (batch, length)
        last = ops.expand_dims(ops.expand_dims(ops.max(positions, axis=1), 1), 1)  # (batch, 1, 1)
        return ops.squeeze(ops.take_along_axis(x, last, axis=1), 1)

    def compute_output_shape(self, x_shape, padding_mask_shape=None):
        return x_shape[0], x_shape[2]
