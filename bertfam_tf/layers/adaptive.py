"""Embedding and softmax with wide vectors for frequent tokens and narrow ones for rare ones.

Grave et al. 2017, arXiv 1609.04309; Baevski and Auli 2018, arXiv 1809.10853.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import keras
from keras import ops

from bertfam_tf.layers.initializers import normal


class AdaptiveEmbedding(keras.layers.Layer):
    """Token embeddings in clusters by frequency; token ids are ordered so.

    Args:
        vocab_size: number of tokens.
        width: of the result.
        embedding_size: width of the first cluster's vectors.
        cutoffs: the first token of the second cluster, of the third, ….
        div_val: each cluster's vectors are narrower than the last one's by this factor. With 1
            there is one table, and a projection only where ``embedding_size`` is not ``width``.
        stddev: of the initial weights.

    Call:
        token_ids: int (batch, length).

    Returns:
        (batch, length, width), times √width.

    Raises:
        ValueError: for cut-offs that do not rise or lie beyond the vocabulary, or a cluster whose
            vectors would have no width.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        embedding_size: int,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        ends = [0, *cutoffs, vocab_size]
        if any(a >= b for a, b in pairwise(ends)):
            raise ValueError(
                f"The cut-offs {tuple(cutoffs)} have to rise, and end below {vocab_size} tokens."
            )
        if embedding_size // div_val ** len(cutoffs) < 1:
            raise ValueError(
                f"Of {embedding_size}, divided by {div_val} for each of {len(cutoffs)} cut-offs, "
                "nothing is left."
            )
        self.width = width
        self.embedding_size = embedding_size
        self.clusters = list(pairwise(ends))
        self.div_val = div_val
        self.stddev = stddev

    def build(self, input_shape=None):
        one = self.div_val == 1
        self.tables, self.projections = [], []
        for i, (start, end) in enumerate([(0, self.clusters[-1][1])] if one else self.clusters):
            size = self.embedding_size // self.div_val**i
            self.tables.append(self._weight((end - start, size), f"embeddings_{i}"))
            if not one or size != self.width:
                self.projections.append(self._weight((size, self.width), f"projection_{i}"))

    def _weight(self, shape, name):
        return self.add_weight(shape=shape, initializer=normal(self.stddev), name=name)

    def call(self, token_ids):
        x = None
        for i, table in enumerate(self.tables):
            start = self.clusters[i][0]
            # Ids of other clusters take some row, which is then not used.
            rows = ops.clip(token_ids - start, 0, table.shape[0] - 1)
            vectors = ops.take(table, rows, axis=0)
            if self.projections:
                vectors = ops.matmul(vectors, self.projections[i])
            later = ops.expand_dims(token_ids >= start, -1)
            x = vectors if x is None else ops.where(later, vectors, x)
        return ops.cast(x, self.compute_dtype) * self.width**0.5

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.width)

    def output_tables(self):
        """Of each cluster its table, (tokens, size), and the projection to ``width`` or None."""
        if self.div_val > 1:
            return list(zip(self.tables, self.projections, strict=True))
        projection = self.projections[0] if self.projections else None
        return [(self.tables[0][start:end], projection) for start, end in self.clusters]


class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities of tokens: of a cluster, and of a token within it.

    The tables and all projections but the first are the embedding's (arXiv 1901.02860).

    Args:
        embedding: gives the ``AdaptiveEmbedding``.
        stddev: of the initial weights.

    Call:
        x: (…, width).
        targets: int (…), one token each; None for all tokens. Clusters that no target is in are
            not computed, others for their targets alone.

    Returns:
        (…, vocabulary), or (…) with ``targets``.
    """

    def __init__(self, embedding: Callable[[], AdaptiveEmbedding], stddev: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.stddev = stddev

    def build(self, input_shape):
        embedding = self.embedding()
        self.clusters = embedding.clusters
        rest, size = len(self.clusters) - 1, embedding.embedding_size
        if rest:
            self.cluster_kernel = self.add_weight(
                shape=(rest, size), initializer=normal(self.stddev), name="cluster_kernel"
            )
            self.cluster_bias = self.add_weight(
                shape=(rest,), initializer="zeros", name="cluster_bias"
            )
        self.biases = [
            self.add_weight(shape=(table.shape[0],), initializer="zeros", name=f"bias_{i}")
            for i, table in enumerate(embedding.tables)
        ]
        self.projection = None
        if embedding.projections:
            self.projection = self.add_weight(
                shape=(embedding.width, size), initializer=normal(self.stddev), name="projection"
            )

    def compute_output_shape(self, input_shape, targets_shape=None):
        return (*input_shape[:-1], self.clusters[-1][1]) if targets_shape is None else targets_shape

    def call(self, x, targets=None):
        first = ops.log_softmax(self._logits(x, 0), axis=-1)
        end = self.clusters[0][1]
        if targets is None:
            parts = [first[..., :end]]
            for i in range(1, len(self.clusters)):
                chosen = first[..., end + i - 1 : end + i]
                parts.append(chosen + ops.log_softmax(self._logits(x, i), axis=-1))
            return ops.concatenate(parts, axis=-1)
        shape = ops.shape(targets)
        rows = ops.reshape(x, (-1, x.shape[-1]))
        first = ops.reshape(first, (-1, first.shape[-1]))
        targets = ops.reshape(targets, (-1,))
        found = _chosen(first, ops.minimum(targets, end - 1))
        for i, (start, stop) in enumerate(self.clusters[1:], 1):
            inside = ops.logical_and(targets >= start, targets < stop)
            (places,) = ops.nonzero(inside)
            within = ops.log_softmax(self._logits(ops.take(rows, places, axis=0), i), axis=-1)
            within = _chosen(within, ops.take(targets, places, axis=0) - start)
            within = ops.scatter(ops.expand_dims(places, 1), within, ops.shape(targets))
            found = ops.where(inside, first[:, end + i - 1] + within, found)
        return ops.reshape(found, shape)

    def _logits(self, x, i):
        """Scores of the cluster's tokens; after those of the first cluster, the other clusters'."""
        table, projection = self.embedding().output_tables()[i]
        start, end = self.clusters[i]
        bias = self.biases[i] if len(self.biases) > 1 else self.biases[0][start:end]
        if projection is not None:
            back = ops.transpose(projection) if i else self.projection
            x = ops.matmul(x, ops.cast(back, x.dtype))
        if not i and len(self.clusters) > 1:
            table = ops.concatenate([table, ops.cast(self.cluster_kernel, table.dtype)], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        return ops.matmul(x, ops.transpose(ops.cast(table, x.dtype))) + bias


def _chosen(values, columns):
    """From (rows, columns) one of each row."""
    columns = ops.expand_dims(columns, 1)
    return ops.squeeze(ops.take_along_axis(values, columns, axis=1), 1)
