"""Attention by relative position (Transformer-XL, arXiv 1901.02860; XLNet, arXiv 1906.08237)."""

import keras
import numpy as np
from keras import ops

from bertfam_tf.layers import attention
from bertfam_tf.layers.initializers import normal


class Distances(keras.layers.Layer):
    """How far back each key stands from each query, where keys are the memory and then ``x``.

    Call:
        x: (batch, length, …).
        memory: (batch, memory length, …). Of both only the shapes are read.

    Returns:
        int32 (length, memory length + length): 0 at the query itself, negative behind it.
    """

    def call(self, x, memory):
        queries, before = ops.shape(x)[1], ops.shape(memory)[1]
        ends = ops.expand_dims(ops.arange(0, queries, dtype="int32") + before, 1)
        return ends - ops.expand_dims(ops.arange(0, before + queries, dtype="int32"), 0)

    def compute_output_spec(self, x, memory):
        return keras.KerasTensor((None, None), "int32")


class RelativePositions(keras.layers.Layer):
    """Sines and cosines of each distance, from the farthest key back to the nearest.

    Args:
        width: of the encodings; even.
        clamp_len: distances beyond are taken for this one; 0 or less for no limit.
        future: whether keys behind a query have distances too, or none follows a query.
        bi_data: whether the second half of the rows is read from right to left, and has its
            distances negated.

    Call:
        x: (batch, length, …).
        memory: (batch, memory length, …). Of both only the shapes are read.

    Returns:
        (1, distances, width), or (batch, distances, width) with ``bi_data``: for the distances
        memory length + length - 1, …, 1, 0 and, with ``future``, -1, …, 1 - length.
    """

    def __init__(
        self, width: int, clamp_len: int = -1, future: bool = False, bi_data: bool = False, **kwargs
    ):
        super().__init__(**kwargs)
        self.width = width
        self.clamp_len = clamp_len
        self.future = future
        self.bi_data = bi_data

    def call(self, x, memory):
        rows, queries = ops.shape(x)[:2]
        first = ops.shape(memory)[1] + queries - 1
        distances = ops.arange(first, -queries if self.future else -1, -1, dtype="int32")
        distances = ops.expand_dims(distances, 0)
        if self.bi_data:
            backwards = ops.arange(0, rows, dtype="int32") >= rows // 2
            distances = ops.where(ops.expand_dims(backwards, 1), -distances, distances)
        if self.clamp_len > 0:
            distances = ops.clip(distances, -self.clamp_len, self.clamp_len)
        # In half precision large distances would fall together.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        frequencies = 10000.0 ** -(np.arange(0, self.width, 2) / self.width)
        angles = ops.expand_dims(ops.cast(distances, dtype), -1) * ops.cast(frequencies, dtype)
        encodings = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.cast(encodings, self.compute_dtype)

    def compute_output_shape(self, x_shape, memory_shape):
        return (x_shape[0] if self.bi_data else 1, None, self.width)


class QueryBias(keras.layers.Layer):
    """A vector for each head that is added to every query: u or v of arXiv 1901.02860, eq. 3.

    Call:
        query: (batch, heads, length, head size).

    Returns:
        The same shape.
    """

    def __init__(self, num_heads: int, head_size: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.shape = (num_heads, head_size)
        self.stddev = stddev

    def build(self, query_shape=None):
        self.bias = self.add_weight(shape=self.shape, initializer=normal(self.stddev), name="bias")

    def call(self, query):
        return query + ops.expand_dims(self.bias, 1)


class SegmentScores(keras.layers.Layer):
    """Scores for standing in the query's own segment or in another (arXiv 1906.08237, 2.5).

    Args:
        bias: what is added to the query.
        stddev: of the initial weights.

    Call:
        query: (batch, heads, length, head size).
        other: boolean (batch, length, keys), true where the key's segment is another.

    Returns:
        (batch, heads, length, keys).
    """

    def __init__(self, bias: QueryBias, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.bias = bias
        self.stddev = stddev

    def build(self, query_shape=None):
        if not self.bias.built:
            self.bias.build()
        self.embeddings = self.add_weight(
            shape=(2, *self.bias.shape), initializer=normal(self.stddev), name="embeddings"
        )

    def call(self, query, other):
        table = ops.transpose(self.embeddings, (1, 2, 0))
        scores = ops.matmul(self.bias(query), table)
        return ops.where(ops.expand_dims(other, 1), scores[..., 1:], scores[..., :1])


class HeadsDense(keras.layers.Layer):
    """A dense layer without bias, to the heads or back from them.

    Args:
        width: outside of the heads.
        num_heads, head_size: the heads.
        back: whether it leads back.
        stddev: of the initial weights.

    Call:
        x: (batch, length, width); on the way back (batch, heads, length, head size).

    Returns:
        (batch, heads, length, head size); on the way back (batch, length, width).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_size: int,
        back: bool = False,
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.shape = (width, num_heads, head_size)
        self.back = back
        self.stddev = stddev

    def build(self, input_shape=None):
        self.kernel = self.add_weight(
            shape=self.shape, initializer=normal(self.stddev), name="kernel"
        )

    def call(self, x):
        width, heads, size = self.shape
        kernel = ops.reshape(self.kernel, (width, heads * size))
        if self.back:
            batch, length = ops.shape(x)[0], ops.shape(x)[2]
            x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))
            return ops.matmul(x, ops.transpose(kernel))
        batch, length = ops.shape(x)[:2]
        x = ops.reshape(ops.matmul(x, kernel), (batch, length, heads, size))
        return ops.transpose(x, (0, 2, 1, 3))


class RelativeAttention(keras.layers.Layer):
    """Attention whose scores are sums: by content, by distance, and perhaps by segment.

    Args:
        hidden_size: width of input and output.
        num_heads, head_size: the heads.
        content_bias, position_bias: what is added to queries that meet content (u) and
            distances (v). Objects, as layers may share them.
        segments: scores by segment; None for none.
        dropout: rate on the attention probabilities.
        stddev: of the initial weights.

    Call:
        x: (batch, length, hidden_size), where queries come from.
        context: (batch, keys, hidden_size), where keys and values come from: the memory, and
            behind it as many positions as there are queries.
        positions: from ``RelativePositions``.
        attention_mask: boolean, broadcastable to (batch, num_heads, length, keys), true where a
            query may attend to a key. What a query with no key allowed gets is zeros: all alike
            would show it what it must not see.
        other_segment: boolean (batch, length, keys), where there are segments.
        targets: int (batch, predictions, length), 1 where a prediction stands. With it ``x`` is
            (batch, predictions, hidden_size), and so is the output.

    Returns:
        ``(output, scores)``: like ``x``, and the scaled scores before mask and softmax, (batch,
        num_heads, length, keys).
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_size: int,
        content_bias: QueryBias,
        position_bias: QueryBias,
        segments: SegmentScores | None = None,
        dropout: float = 0.0,
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        shape = (hidden_size, num_heads, head_size)
        self.query, self.key, self.value, self.position, self.output_dense = (
            HeadsDense(*shape, back=name == "output", stddev=stddev, name=name)
            for name in ("query", "key", "value", "position", "output")
        )
        self.content_bias = content_bias
        self.position_bias = position_bias
        self.segments = segments
        self.dropout = keras.layers.Dropout(dropout, name="dropout")

    def build(self, input_shape):
        own = (self.query, self.key, self.value, self.position, self.output_dense)
        for part in (*own, self.content_bias, self.position_bias, self.segments):
            if part is not None and not part.built:
                part.build()

    def compute_output_shape(self, input_shape):
        return input_shape, (input_shape[0], self.num_heads, None, None)

    def call(
        self,
        x,
        context,
        positions,
        attention_mask,
        other_segment=None,
        targets=None,
        training=None,
    ):
        query = self.query(x)
        if targets is not None:
            targets = ops.cast(ops.expand_dims(targets, 1), query.dtype)
            query = ops.matmul(ops.transpose(targets, (0, 1, 3, 2)), query)
        key, value = self.key(context), self.value(context)
        distance = ops.transpose(self.position(positions), (0, 1, 3, 2))
        by_distance = ops.matmul(self.position_bias(query), distance)
        scores = ops.matmul(self.content_bias(query), ops.transpose(key, (0, 1, 3, 2)))
        scores = scores + _shift(by_distance, ops.shape(key)[2])
        if self.segments is not None:
            scores = scores + self.segments(query, other_segment)
        scores = scores * (self.head_size**-0.5)
        attended = attention.attend(scores, value, attention_mask, self.dropout, training)
        seen = ops.any(attention_mask, axis=-1, keepdims=True)
        attended = attended * ops.cast(seen, attended.dtype)
        if targets is not None:
            attended = ops.matmul(targets, attended)
        return self.output_dense(attended), scores


def _shift(scores, keys):
    """From scores by distance to scores by key.

    Args:
        scores: (batch, heads, queries, distances), the farthest first, for the last query.
        keys: their number.

    Returns:
        (batch, heads, queries, keys). What stands at keys whose distance has no score is arbitrary.
    """
    batch, heads, queries, distances = ops.shape(scores)
    # Each query is one position nearer than the next: read with rows one longer than they are,
    # each row begins one further back (arXiv 1901.02860, appendix B).
    scores = ops.concatenate([ops.zeros_like(scores[..., :1]), scores], axis=-1)
    scores = ops.reshape(scores, (batch, heads, distances + 1, queries))[:, :, 1:]
    return ops.reshape(scores, (batch, heads, queries, distances))[..., :keys]
