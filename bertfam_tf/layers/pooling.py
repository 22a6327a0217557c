"""From a sequence to one vector."""

import keras
from keras import ops

from bertfam_tf.layers.initializers import normal


class FirstTokenPooler(keras.layers.Layer):
    """BERT's pooler (arXiv 1810.04805): tanh of a dense layer on the first token.

    Call:
        x: (batch, length, width).

    Returns:
        (batch, width).
    """

    def __init__(self, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(self, input_shape):
        width = input_shape[-1]
        self.dense = keras.layers.Dense(
            width, activation="tanh", kernel_initializer=normal(self.stddev), name="dense"
        )
        self.dense.build((input_shape[0], width))

    def call(self, x):
        return self.dense(x[:, 0, :])


def last_token(x, padding_mask):
    """The vector of each row's last real token, on whichever side the padding stands.

    Args:
        x: (batch, length, width).
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        (batch, width); zeros for a row without real tokens.
    """
    real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
    left = ops.flip(ops.cumsum(ops.flip(real, axis=1), axis=1), axis=1)
    last = ops.cast(ops.equal(real * left, 1), x.dtype)
    return ops.squeeze(ops.matmul(ops.expand_dims(last, 1), x), 1)


class MeanPooling(keras.layers.Layer):
    """Mean over the real tokens of each row (Sentence-BERT, arXiv 1908.10084).

    Call:
        x: (batch, length, width).
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        (batch, width); zeros for a row without real tokens.
    """

    def call(self, x, padding_mask):
        weights = ops.expand_dims(ops.cast(padding_mask, x.dtype), -1)
        return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
