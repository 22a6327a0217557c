"""Scaled dot-product self-attention with several heads (arXiv 1706.03762)."""

import keras
from keras import ops

from bertfam_tf.layers.initializers import normal


def attend(scores, value, attention_mask, dropout, training=None):
    """Mean of values, weighted by the softmax of scores.

    Args:
        scores: (batch, heads, queries, keys).
        value: (batch, heads, keys, head size).
        attention_mask: as ``SelfAttention`` takes it, or None.
        dropout: a layer for the weights.

    Returns:
        (batch, heads, queries, head size).
    """
    # In half precision exp() overflows and sums lose digits long before float32 does.
    half = keras.backend.standardize_dtype(scores.dtype) in ("float16", "bfloat16")
    logits = ops.cast(scores, "float32") if half else scores
    if attention_mask is not None:
        # What where() would choose, by an operation that XNNPACK has: a select in every layer cuts
        # its graph in pieces.
        ceiling = ops.where(attention_mask, 1e9, -1e9)
        logits = ops.minimum(logits, ops.cast(ceiling, logits.dtype))
    probabilities = ops.cast(ops.softmax(logits, axis=-1), scores.dtype)
    return ops.matmul(dropout(probabilities, training=training), value)


class _Attention(keras.layers.Layer):
    """What both kinds have: dense layers before and behind, heads, the weighted sum."""

    # Dense layers that make queries, keys and values: name -> how many times as wide as the input.
    _PROJECTIONS: dict[str, int] = {}

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        dropout: float = 0.0,
        stddev: float = 0.02,
        scale: float | None = None,
        output_stddev: float | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if hidden_size % num_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}."
            )
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.scale = self.head_size**-0.5 if scale is None else scale
        self.projections = [
            keras.layers.Dense(times * hidden_size, kernel_initializer=normal(stddev), name=name)
            for name, times in self._PROJECTIONS.items()
        ]
        self.output_dense = keras.layers.Dense(
            hidden_size, kernel_initializer=normal(output_stddev or stddev), name="output"
        )
        self.dropout = keras.layers.Dropout(dropout, name="dropout")

    def build(self, input_shape):
        for dense in (*self.projections, self.output_dense):
            dense.build(input_shape)

    def _split(self, x):
        batch, length = ops.shape(x)[:2]
        heads = ops.reshape(x, (batch, length, self.num_heads, self.head_size))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _attend(self, x, query, key, value, attention_mask, training):
        scores = ops.matmul(query * self.scale, ops.transpose(key, (0, 1, 3, 2)))
        context = attend(scores, value, attention_mask, self.dropout, training)
        context = ops.transpose(context, (0, 2, 1, 3))
        return self.output_dense(ops.reshape(context, ops.shape(x))), scores


class SelfAttention(_Attention):
    """Every position attends to the positions that ``attention_mask`` allows.

    Args:
        hidden_size: width of input and output; a multiple of ``num_heads``.
        num_heads: number of heads.
        dropout: rate on the attention probabilities.
        stddev: of the initial weights.
        scale: factor of the scores; None for 1/√(head size).
        output_stddev: of the output's initial weights, where that is another.

    Call:
        x: (batch, length, hidden_size).
        attention_mask: boolean, broadcastable to (batch, num_heads, length, length), true where
            a query (third axis) may attend to a key (fourth). A query with no key allowed attends
            to all alike, so that it stays finite.

    Returns:
        ``(output, scores)``: (batch, length, hidden_size), and the scaled scores before mask and
        softmax, (batch, num_heads, length, length).
    """

    _PROJECTIONS = {"query": 1, "key": 1, "value": 1}

    def compute_output_shape(self, input_shape):
        batch, length, _ = input_shape
        return input_shape, (batch, self.num_heads, length, length)

    def call(self, x, attention_mask=None, training=None):
        query, key, value = (self._split(dense(x)) for dense in self.projections)
        return self._attend(x, query, key, value, attention_mask, training)


class CachedSelfAttention(_Attention):
    """Self-attention to what came before as well: keys and values of earlier calls are data.

    Query, key and value are one dense layer three times as wide (GPT, Radford et al. 2018). Which
    keys a query may see is said by the mask alone. Arguments as for ``SelfAttention``.

    Call:
        x: (batch, length, hidden_size).
        cache: ``(keys, values)`` of the tokens before, both (batch, num_heads, cached length,
            head size); None for none.
        attention_mask: boolean, broadcastable to (batch, num_heads, length, cached length +
            length).

    Returns:
        ``(output, scores, cache)``: as ``SelfAttention`` returns the first two, scores with
        cached length + length keys; and the keys and values of both, for the call that follows.
    """

    _PROJECTIONS = {"query_key_value": 3}

    def compute_output_shape(self, input_shape):
        batch, length, _ = input_shape
        cached = (batch, self.num_heads, None, self.head_size)
        return input_shape, (batch, self.num_heads, length, None), (cached, cached)

    def call(self, x, cache=None, attention_mask=None, training=None):
        (dense,) = self.projections
        query, key, value = map(self._split, ops.split(dense(x), 3, axis=-1))
        if cache is not None:
            key = ops.concatenate([cache[0], key], axis=2)
            value = ops.concatenate([cache[1], value], axis=2)
        output, scores = self._attend(x, query, key, value, attention_mask, training)
        return output, scores, (key, value)
