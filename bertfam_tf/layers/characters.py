"""Token vectors from characters."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from bertfam_tf.layers.embeddings import Embedding
from bertfam_tf.layers.fused import Dense


class CharacterCNN(keras.layers.Layer):
    """Token vectors from characters: convolutions, max-pooling, highways, a projection.

    Kim et al. 2016 (arXiv 1508.06615), in ELMo's version (arXiv 1802.05365, section 3.4).

    Args:
        vocab_size: the number of character ids.
        width: the width of the character vectors.
        filters: for each convolution, its width in characters and its number of filters.
        num_highways: the number of highway layers.
        units: the width of the token vectors.
        activation: the activation function after max-pooling.

    Call:
        token_ids: int (batch, length, characters), with at least as many characters as the widest
            filter reads.

    Returns:
        (batch, length, units).
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        filters: Sequence[tuple[int, int]],
        num_highways: int,
        units: int,
        activation: Callable,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.activation = activation
        own = {"dtype": self.dtype_policy}
        self.embedding = Embedding(vocab_size, width, name="embedding", **own)
        self.filters = [
            Filters(size, count, name=f"filter_{f}", **own)
            for f, (size, count) in enumerate(filters)
        ]
        self.highways = [Highway(name=f"highway_{h}", **own) for h in range(num_highways)]
        self.projection = Dense(units, name="projection", **own)

    def build(self, shape):
        self.embedding.build()
        characters = (None, shape[-1], self.embedding.output_dim)
        for convolution in self.filters:
            convolution.build(characters)
        joined_shape = (None, sum(convolution.count for convolution in self.filters))
        for layer in self.highways:
            layer.build(joined_shape)
        self.projection.build(joined_shape)

    def call(self, token_ids):
        batch, length = ops.shape(token_ids)[0], ops.shape(token_ids)[1]
        # The convolutions treat every token as an example of its own.
        x = self.embedding(ops.reshape(token_ids, (-1, token_ids.shape[-1])))
        x = ops.concatenate([convolution(x) for convolution in self.filters], axis=-1)
        x = self.activation(x)  # (batch · length, filters)
        for layer in self.highways:
            x = layer(x)
        return ops.reshape(self.projection(x), (batch, length, self.units))

    def compute_output_shape(self, shape):
        return (*shape[:2], self.units)


class Filters(keras.layers.Layer):
    """A convolution followed by max-pooling over all positions.

    It is a matrix product, because TensorFlow's convolutions return wrong shapes for an empty
    batch.

    Args:
        size: the number of positions that a filter reads.
        count: the number of filters.

    Call:
        x: (rows, length, width), with a known length of at least ``size``.

    Returns:
        (rows, count).
    """

    def __init__(self, size: int, count: int, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.count = count

    def build(self, shape):
        self.kernel = self.add_weight(shape=(self.size, shape[-1], self.count), name="kernel")
        self.bias = self.add_weight(shape=(self.count,), initializer="zeros", name="bias")

    def call(self, x):
        positions = x.shape[1] - self.size + 1
        x = ops.concatenate([x[:, i : i + positions] for i in range(self.size)], axis=-1)
        kernel = ops.reshape(self.kernel, (-1, self.count))
        outputs = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), kernel)
        outputs = ops.reshape(outputs, (-1, positions, self.count))
        # Without an initial value, Keras rejects an empty batch.
        return ops.max(outputs, axis=1, initial=float("-inf")) + self.bias

    def compute_output_shape(self, shape):
        return shape[0], self.count


class Highway(keras.layers.Layer):
    """A gate between a ReLU layer and its input (Srivastava et al. 2015, arXiv 1505.00387).

    The gate starts nearly closed, so that the input passes.

    Call:
        x: (rows, width).

    Returns:
        The same shape.
    """

    def build(self, shape):
        own = {"dtype": self.dtype_policy}
        closed = keras.initializers.Constant(-2.0)
        self.gate = Dense(
            shape[-1], activation="sigmoid", bias_initializer=closed, name="gate", **own
        )
        self.transform = Dense(shape[-1], activation="relu", name="transform", **own)
        self.gate.build(shape)
        self.transform.build(shape)

    def call(self, x):
        gate = self.gate(x)
        return gate * self.transform(x) + (1 - gate) * x

    def compute_output_shape(self, shape):
        return shape
