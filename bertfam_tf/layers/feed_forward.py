"""The position-wise feed-forward sublayer of a Transformer layer."""

from collections.abc import Callable

import keras

from bertfam_tf.layers.activations import for_training
from bertfam_tf.layers.fused import Dense, Dropout
from bertfam_tf.layers.initializers import normal


class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between them, applied at each position.

    Args:
        intermediate_size: the width of the first layer.
        activation: the activation function of the first layer.
        stddev: the standard deviation of the initial weights.
        dropout: the dropout rate after the activation.
        output_stddev: the standard deviation of the second layer's initial weights; None for
            ``stddev``.
        use_bias: whether the dense layers have biases.

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
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.stddev = stddev
        self.output_stddev = output_stddev or stddev
        self.use_bias = use_bias
        self.intermediate = self._dense(intermediate_size, "intermediate", stddev)
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def _dense(self, width, name, stddev):
        return Dense(
            width,
            use_bias=self.use_bias,
            kernel_initializer=normal(stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape):
        self.output_dense = self._dense(input_shape[-1], "output", self.output_stddev)
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_size))

    def _hidden(self, x, training):
        activation = for_training(self.activation) if training else self.activation
        return activation(self.intermediate(x))  # (batch, length, intermediate size)

    def call(self, x, training=None):
        return self.output_dense(self.dropout(self._hidden(x, training), training=training))


class GatedFeedForward(FeedForward):
    """A feed-forward layer with a gated linear unit (arXiv 2002.05202): activation(xW) · xV.

    The arguments and the call are the same as for ``FeedForward``.
    """

    def __init__(
        self, intermediate_size: int, activation: Callable, stddev: float = 0.02, **kwargs
    ):
        super().__init__(intermediate_size, activation, stddev, **kwargs)
        self.gate = self._dense(intermediate_size, "gate", stddev)

    def build(self, input_shape):
        super().build(input_shape)
        self.gate.build(input_shape)

    def _hidden(self, x, training):
        return super()._hidden(x, training) * self.gate(x)
