"""Token vectors from characters."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from bertfam_tf.layers.fused import Dense


class CharacterCNN(keras.layers.Layer):
    """Token vectors from characters: convolutions, maxima over positions, highways, a projection.

    Kim et al. 2016 (arXiv 1508.06615), as ELMo has it (arXiv 1802.05365, section 3.4).

    Args:
        vocab_size: the number of character ids.
        width: of the character vectors.
        filters: for each convolution the characters that it reads and its number of filters.
        num_highways: the number of highway layers.
        units: width of the token vectors.
        activation: of the filters' maxima.

    Call:
        token_ids: int (batch, length, characters), as many characters as the widest filter reads
            or more.

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
        self.embedding = keras.layers.Embedding(vocab_size, width, name="embedding", **own)
        self.filters = [
            keras.layers.Conv1D(count, size, name=f"filter_{f}", **own)
            for f, (size, count) in enumerate(filters)
        ]
        self.highways = [Highway(name=f"highway_{h}", **own) for h in range(num_highways)]
        self.projection = Dense(units, name="projection", **own)

    def build(self, shape):
        self.embedding.build()
        characters = (None, shape[-1], self.embedding.output_dim)
        for layer in self.filters:
            layer.build(characters)
        found = (None, sum(layer.filters for layer in self.filters))
        for layer in (*self.highways, self.projection):
            layer.build(found)

    def call(self, token_ids):
        batch, length = ops.shape(token_ids)[0], ops.shape(token_ids)[1]
        # Every token is an example of its own.
        x = self.embedding(ops.reshape(token_ids, (-1, token_ids.shape[-1])))
        x = ops.concatenate([ops.max(layer(x), axis=1) for layer in self.filters], axis=-1)
        x = self.activation(x)  # (batch · length, filters)
        for layer in self.highways:
            x = layer(x)
        return ops.reshape(self.projection(x), (batch, length, self.units))

    def compute_output_shape(self, shape):
        return (*shape[:2], self.units)


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
