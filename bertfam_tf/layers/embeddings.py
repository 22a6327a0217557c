"""Embeddings beyond Keras' own table look-up."""

import keras
from keras import ops

from bertfam_tf.layers.initializers import normal


class PositionEmbedding(keras.layers.Layer):
    """Learnt absolute positions (arXiv 1810.04805), one row for each position from 0.

    Args:
        max_positions: rows of the table, the longest input.
        stddev: of the initial weights.

    Call:
        x: (batch, length, width); only its shape is read.

    Returns:
        (1, length, width), to be added to token embeddings.
    """

    def __init__(self, max_positions: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.max_positions = max_positions
        self.stddev = stddev

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            shape=(self.max_positions, input_shape[-1]),
            initializer=normal(self.stddev),
            name="embeddings",
        )

    def call(self, x):
        length = ops.shape(x)[1]
        if isinstance(length, int) and length > self.max_positions:
            raise ValueError(
                f"The input is {length} tokens long; this model has {self.max_positions} positions."
            )
        return ops.expand_dims(self.embeddings[:length], 0)

    def compute_output_shape(self, input_shape):
        return (1, *input_shape[1:])
