"""Relative attention with a memory (Transformer-XL, arXiv 1901.02860; XLNet, arXiv 1906.08237)."""

import keras
import numpy as np
from keras import ops

from bertfam_tf.layers.attention import Attention, merge_heads, split_heads
from bertfam_tf.layers.initializers import normal


class RelativePositions(keras.layers.Layer):
    """Sinusoidal encodings of distances, from the farthest key to the nearest.

    Args:
        width: the even width of the encodings.
        clamp_len: the maximum distance, to which larger ones are clipped; 0 or less for no maximum.
        future: whether to encode the negative distances of keys after a query too.
        bi_data: whether the second half of the batch is reversed text, whose distances are
            negated.

    Call:
        x: (batch, length, …).
        memory: (batch, memory length, …). Only the shapes are read.

    Returns:
        (1, distances, width), or (batch, distances, width) with ``bi_data``. The distances are
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
        batch, queries = ops.shape(x)[:2]
        first = ops.shape(memory)[1] + queries - 1
        distances = ops.arange(first, -queries if self.future else -1, -1, dtype="int32")
        distances = ops.expand_dims(distances, 0)
        if self.bi_data:
            backwards = ops.arange(0, batch, dtype="int32") >= batch // 2  # (batch,)
            distances = ops.where(ops.expand_dims(backwards, 1), -distances, distances)
        if self.clamp_len > 0:
            distances = ops.clip(distances, -self.clamp_len, self.clamp_len)
        # Half precision could not tell large distances apart.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        frequencies = 10000.0 ** -(np.arange(0, self.width, 2) / self.width)
        angles = ops.expand_dims(ops.cast(distances, dtype), -1) * ops.cast(frequencies, dtype)
        encodings = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.cast(encodings, self.compute_dtype)

    def compute_output_shape(self, x_shape, memory_shape):
        return (x_shape[0] if self.bi_data else 1, None, self.width)


class QueryBias(keras.layers.Layer):
    """A trainable vector for each head, added to its queries: u or v of arXiv 1901.02860, eq. 3.

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
    """Scores for whether query and key are in the same segment (arXiv 1906.08237, section 2.5).

    Args:
        bias: the layer that adds a bias to the query.
        stddev: the standard deviation of the initial weights.

    Call:
        query: (batch, heads, length, head size).
        other: boolean (batch, length, keys), true where the segments differ.

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
        table = ops.transpose(self.embeddings, (1, 2, 0))  # (heads, head size, 2)
        scores = ops.matmul(self.bias(query), table)  # (batch, heads, length, 2)
        return ops.where(ops.expand_dims(other, 1), scores[..., 1:], scores[..., :1])


class HeadProjection(keras.layers.Layer):
    """A dense layer without bias whose output is split into heads.

    Args:
        num_heads, head_size: the number and the width of the output's heads.
        stddev: the standard deviation of the initial weights.

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
    """Merging of heads, followed by a dense layer without bias.

    Args:
        width: the width of the output.
        *args, **kwargs: the same as for ``HeadProjection``.

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
    """Attention whose scores are sums of scores by content, by distance, and by segment.

    Args:
        hidden_size: the width of input and output.
        num_heads, head_size: the same as for ``SelfAttention``.
        content_bias, position_bias: the layers that add biases to the queries for scores by content
            (u) and by distance (v); blocks can share them.
        segments: the layer that computes scores by segment; None for no such scores.
        dropout: the dropout rate of the attention probabilities.
        stddev: the standard deviation of the initial weights.
        gate: the layer applied to the output of the heads before they are merged, such as
            ``HeadGate``.

    Call:
        x: (batch, length, hidden_size), the input of the query projection.
        context: (batch, keys, hidden_size), the input of the key and value projections: the
            memory, followed by this segment.
        positions: the output of ``RelativePositions``.
        attention_mask: boolean, broadcastable to (batch, num_heads, length, keys), true where a
            query may attend to a key. A fully masked query gets zeros: uniform attention would
            leak the values that are masked.
        other_segment: boolean (batch, length, keys), see ``SegmentScores``; None without segments.
        targets: int (batch, predictions, length), 1 at the position of a prediction; then ``x``
            and the output are (batch, predictions, hidden_size). None for a query at each position.

    Returns:
        ``(output, scores)``: the output has the shape of ``x``; the scores are scaled, before mask
        and softmax, (batch, num_heads, length, keys).
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
            # from predictions to positions: (batch, heads, length, head size)
            query = ops.matmul(ops.transpose(targets, (0, 1, 3, 2)), query)
        key, value = self.key(context), self.value(context)  # (batch, heads, keys, head size)
        # (1 or batch, heads, head size, distances)
        distance = ops.transpose(self.position(positions), (0, 1, 3, 2))
        by_distance = ops.matmul(self.position_bias(query), distance)
        # (batch, heads, length, keys)
        scores = ops.matmul(self.content_bias(query), ops.transpose(key, (0, 1, 3, 2)))
        scores = scores + shift(by_distance, ops.shape(key)[2])
        if self.segments is not None:
            scores = scores + self.segments(query, other_segment)
        scores = scores * (self.head_size**-0.5)
        attended = self._context(scores, value, attention_mask, training)
        unmasked = ops.any(attention_mask, axis=-1, keepdims=True)
        attended = attended * ops.cast(unmasked, attended.dtype)
        if targets is not None:
            attended = ops.matmul(targets, attended)  # (batch, heads, predictions, head size)
        return self.output_dense(attended), scores


def shift(scores, keys):
    """Reindexes scores by distance to scores by key (arXiv 1901.02860, appendix B).

    Args:
        scores: (batch, heads, queries, distances), the farthest distance of the last query first.
        keys: the number of keys.

    Returns:
        (batch, heads, queries, keys), arbitrary at keys whose distance has no score.
    """
    batch, heads, queries, distances = ops.shape(scores)
    # The scores of each query start one distance later than the scores of the next query.
    # Prepending a column, and reshaping to rows that are one shorter, shifts each query's start
    # accordingly.
    scores = ops.concatenate([ops.zeros_like(scores[..., :1]), scores], axis=-1)
    scores = ops.reshape(scores, (batch, heads, distances + 1, queries))[:, :, 1:]
    return ops.reshape(scores, (batch, heads, queries, distances))[..., :keys]
