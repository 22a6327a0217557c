"""The position-wise half of a Transformer layer."""

from collections.abc import Callable

import keras

from bertfam_tf.layers.initializers import normal


class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between, at each position alike.

    Args:
        intermediate_size: width between the two.
        activation: function between the two.
        stddev: of the initial weights.
        dropout: rate behind the activation.
        output_stddev: of the output's initial weights, where that is another.

    Call:
        x: (batch, length, width).

    Returns:
        The same shape.
    """

    def __init__(
        self,
        intermediate_size: int,
        activation: Callable,
        stddev: float = 0.02,
        dropout: float = 0.0,
        output_stddev: float | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.output_stddev = output_stddev or stddev
        self.intermediate = keras.layers.Dense(
            intermediate_size, kernel_initializer=normal(stddev), name="intermediate"
        )
        self.dropout = keras.layers.Dropout(dropout, name="dropout")

    def build(self, input_shape):
        self.output_dense = keras.layers.Dense(
            input_shape[-1], kernel_initializer=normal(self.output_stddev), name="output"
        )
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_size))

    def call(self, x, training=None):
        x = self.dropout(self.activation(self.intermediate(x)), training=training)
        return self.output_dense(x)
