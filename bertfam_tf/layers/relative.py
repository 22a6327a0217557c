"""Attention by relative position (Transformer-XL, arXiv 1901.02860; XLNet, arXiv 1906.08237)."""

import keras
import numpy as np
from keras import ops

from bertfam_tf.layers.attention import Attention, merge_heads, split_heads
from bertfam_tf.layers.initializers import normal


class RelativePositions(keras.layers.Layer):
    """Sines and cosines of each distance, from the farthest key back to the nearest.

    Args:
        width: of the encodings; even.
        clamp_len: larger distances count as this one; 0 or less for no limit.
        future: whether keys after a query have distances too.
        bi_data: whether the second half of the batch is reversed text, and has its distances
            negated.

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


class HeadProjection(keras.layers.Layer):
    """A dense layer without bias whose output is split into heads.

    Args:
        num_heads, head_size: the heads.
        stddev: of the initial weights.

    Call:
        x: (batch, length, width).

    Returns:
        (batch, heads, length, head size).
    """

    def __init__(self, num_heads: int, head_size: int, stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        self.stddev = stddev

    def build(self, input_shape):
        self._add_kernel(input_shape[-1])

    def _add_kernel(self, width):
        shape = (width, self.num_heads, self.head_size)
        self.kernel = self.add_weight(shape=shape, initializer=normal(self.stddev), name="kernel")

    def _matrix(self):
        return ops.reshape(self.kernel, (-1, self.num_heads * self.head_size))

    def call(self, x):
        return split_heads(ops.matmul(x, self._matrix()), self.num_heads)


class HeadMerge(HeadProjection):
    """The way back: heads are merged and go through a dense layer without bias.

    Args:
        width: of the output; the others as for ``HeadProjection``.

    Call:
        x: (batch, heads, length, head size).

    Returns:
        (batch, length, width).
    """

    def __init__(self, width: int, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.width = width

    def build(self, input_shape=None):
        self._add_kernel(self.width)

    def call(self, x):
        return ops.matmul(merge_heads(x), ops.transpose(self._matrix()))


class RelativeAttention(Attention):
    """Attention whose scores are sums: by content, by distance, and perhaps by segment.

    Args:
        hidden_size: width of input and output.
        num_heads, head_size: the heads.
        content_bias, position_bias: what is added to queries before they are multiplied with
            content (u) and with distances (v). Objects, as layers may share them.
        segments: scores by segment; None for none.
        dropout: rate on the attention probabilities.
        stddev: of the initial weights.
        gate: layer for the heads' output before they are merged, such as ``HeadGate``.

    Call:
        x: (batch, length, hidden_size), where queries come from.
        context: (batch, keys, hidden_size), where keys and values come from: the memory, and
            after it as many positions as there are queries.
        positions: from ``RelativePositions``.
        attention_mask: boolean, broadcastable to (batch, num_heads, length, keys), true where a
            query may attend to a key. A fully masked query gets zeros: uniform attention would
            show it what it must not see.
        other_segment: boolean (batch, length, keys), where there are segments.
        targets: int (batch, predictions, length), 1 at the position of a prediction. With it ``x``
            is (batch, predictions, hidden_size), and so is the output.

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
        gate: keras.layers.Layer | None = None,
        **kwargs,
    ):
        super().__init__(num_heads, head_size, dropout, gate, **kwargs)
        self.hidden_size = hidden_size
        heads = (num_heads, head_size, stddev)
        self.query, self.key, self.value, self.position = (
            HeadProjection(*heads, name=name, dtype=self.dtype_policy)
            for name in ("query", "key", "value", "position")
        )
        self.output_dense = HeadMerge(hidden_size, *heads, name="output", dtype=self.dtype_policy)
        self.content_bias = content_bias
        self.position_bias = position_bias
        self.segments = segments

    def build(self, input_shape):
        shape = (None, None, self.hidden_size)
        own = (self.query, self.key, self.value, self.position, self.output_dense)
        for part in (*own, self.content_bias, self.position_bias, self.segments):
            if part is not None and not part.built:
                part.build(shape)
        self._build_gate()

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
        query = self.query(x)  # (batch, heads, length, head size)
        if targets is not None:
            targets = ops.cast(ops.expand_dims(targets, 1), query.dtype)
            query = ops.matmul(ops.transpose(targets, (0, 1, 3, 2)), query)
        key, value = self.key(context), self.value(context)
        distance = ops.transpose(self.position(positions), (0, 1, 3, 2))
        by_distance = ops.matmul(self.position_bias(query), distance)
        # (batch, heads, length, keys)
        scores = ops.matmul(self.content_bias(query), ops.transpose(key, (0, 1, 3, 2)))
        scores = scores + _shift(by_distance, ops.shape(key)[2])
        if self.segments is not None:
            scores = scores + self.segments(query, other_segment)
        scores = scores * (self.head_size**-0.5)
        attended = self._context(scores, value, attention_mask, training)
        seen = ops.any(attention_mask, axis=-1, keepdims=True)
        attended = attended * ops.cast(seen, attended.dtype)
        if targets is not None:
            attended = ops.matmul(targets, attended)  # (batch, heads, predictions, head size)
        return self.output_dense(attended), scores


def _shift(scores, keys):
    """From scores by distance to scores by key.

    Args:
        scores: (batch, heads, queries, distances), the farthest first, for the last query.
        keys: their number.

    Returns:
        (batch, heads, queries, keys), arbitrary at keys whose distance has no score.
    """
    batch, heads, queries, distances = ops.shape(scores)
    # Each query is one position nearer than the next: read with rows one longer than they are,
    # each row begins one further back (arXiv 1901.02860, appendix B).
    scores = ops.concatenate([ops.zeros_like(scores[..., :1]), scores], axis=-1)
    scores = ops.reshape(scores, (batch, heads, distances + 1, queries))[:, :, 1:]
    return ops.reshape(scores, (batch, heads, queries, distances))[..., :keys]
