"""Layers of MobileBERT: Sun et al. 2020, arXiv 2004.02984."""

from collections.abc import Sequence

import keras
from keras import ops

from bertfam_tf.layers.block import TransformerBlock
from bertfam_tf.layers.fused import Dense
from bertfam_tf.layers.initializers import normal


class NoNorm(keras.layers.Layer):
    """An elementwise affine transform in place of a norm (arXiv 2004.02984, section 3.3).

    Call:
        x: (…, width).

    Returns:
        The same shape.
    """

    def build(self, x_shape):
        width = x_shape[-1:]
        self.gamma = self.add_weight(shape=width, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=width, initializer="zeros", name="beta")

    def call(self, x):
        return x * self.gamma + self.beta

    def compute_output_shape(self, x_shape):
        return x_shape


class Trigrams(keras.layers.Layer):
    """Each token concatenated with both neighbours (arXiv 2004.02984, section 3.1).

    Call:
        x: (batch, length, width).

    Returns:
        (batch, length, 3 · width): the next token, the token, the previous token.
    """

    def call(self, x):
        after = ops.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0)))
        before = ops.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return ops.concatenate([after, x, before], axis=-1)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], 3 * x_shape[-1])


class BottleneckBlock(TransformerBlock):
    """A block that is narrower inside: between two dense layers, with several feed-forwards.

    The arguments and the call are the same as for ``TransformerBlock`` with post-norm, and:

    Args:
        narrow: the width inside: the input and output width of the attention and the feed-forwards.
        narrow_norm, wide_norm: the norms after the first dense layer and before the output.
        shared_norm: the norm after another dense layer, from whose output queries and keys are
            computed, and values from the block's input; None to compute all three from the narrowed
            input.
        more: feed-forward layers before ``feed_forward``, each with its norm.
        stddev: the standard deviation of the initial weights.
        dropout: the dropout rate of the output, before its residual sum.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        *,
        narrow: int,
        narrow_norm: keras.layers.Layer,
        wide_norm: keras.layers.Layer,
        shared_norm: keras.layers.Layer | None = None,
        more: Sequence[tuple[keras.layers.Layer, keras.layers.Layer]] = (),
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(attention, feed_forward, **kwargs)
        self.width = narrow
        self.stddev = stddev
        self.narrow = self._dense(narrow, "narrow")
        self.shared = None if shared_norm is None else self._dense(narrow, "shared")
        self.narrow_norm, self.shared_norm, self.wide_norm = narrow_norm, shared_norm, wide_norm
        self.more = [part for part, _ in more]
        self.more_norms = [norm for _, norm in more]

    def _dense(self, width, name):
        initializer = normal(self.stddev)
        return Dense(width, kernel_initializer=initializer, name=name, dtype=self.dtype_policy)

    def build(self, x_shape, query_shape=None):
        narrow = (*x_shape[:-1], self.width)
        self.wide = self._dense(x_shape[-1], "wide")
        for part in (self.narrow, self.shared, self.wide_norm):
            if part is not None:
                part.build(x_shape)
        self.attention.build(narrow, x_shape if self.shared else None)
        rest = (self.narrow_norm, self.shared_norm, self.attention_norm, *self.more)
        for part in (*rest, *self.more_norms, self.feed_forward, self.feed_forward_norm, self.wide):
            if part is not None:
                part.build(narrow)

    def attention_inputs(self, x):
        if self.shared is None or self.shared_norm is None:
            return self.narrow_norm(self.narrow(x)), None
        return self.shared_norm(self.shared(x)), x

    def _call(self, x, query, training, **more):
        if query is not None:
            more["query"], _ = self.attention_inputs(query)
        seen, value = self.attention_inputs(x)
        x = x if query is None else query
        inside = self.narrow_norm(self.narrow(x))
        attended, *others = self.attention(seen, value=value, training=training, **more)
        inside = self.attention_norm(attended + inside)
        for part, norm in zip(self.more, self.more_norms, strict=True):
            inside = norm(part(inside) + inside)
        inside = self.feed_forward_norm(self.feed_forward(inside) + inside)
        out = self.dropout(self.wide(inside), training=training)
        return self.wide_norm(out + x), *others
