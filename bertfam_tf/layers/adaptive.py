"""Adaptive embedding and softmax: wide vectors for frequent tokens, narrow ones for rare tokens.

Grave et al. 2017, arXiv 1609.04309; Baevski and Auli 2018, arXiv 1809.10853.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import keras
from keras import ops

from bertfam_tf.layers.embeddings import add_table, look_up
from bertfam_tf.layers.initializers import normal

# The published code's proj_init_std.
_PROJECTION_STDDEV = 0.01


class AdaptiveEmbedding(keras.layers.Layer):
    """Token embeddings in clusters by frequency; token ids are ordered by frequency.

    Args:
        vocab_size: the number of tokens.
        width: the width of the output.
        embedding_size: the width of the first cluster's vectors.
        cutoffs: the first token of the second cluster, of the third, ….
        div_val: the factor by which the vectors of each cluster are narrower than the vectors of
            the previous cluster. With 1, all clusters share a table, which is projected only if
            ``embedding_size`` differs from ``width``.
        stddev: the standard deviation of the initial vectors; 0.01 for projections.

    Call:
        token_ids: int (batch, length).

    Returns:
        (batch, length, width), scaled by √width.

    Raises:
        ValueError: if the cut-offs do not increase or exceed the vocabulary, or the vectors of a
            cluster would have width 0.
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
                f"cutoffs {tuple(cutoffs)} must increase and be below vocab_size {vocab_size}."
            )
        if embedding_size // div_val ** len(cutoffs) < 1:
            raise ValueError(
                f"embedding_size {embedding_size}, divided by {div_val} for each of {len(cutoffs)} "
                "cut-offs, is less than 1."
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
            initializer = normal(self.stddev)
            shape = (end - start, size)
            self.tables.append(add_table(self, shape, f"embeddings_{i}", initializer=initializer))
            if not one or size != self.width:
                shape, name = (size, self.width), f"projection_{i}"
                self.projections.append(
                    self.add_weight(shape=shape, initializer=normal(_PROJECTION_STDDEV), name=name)
                )

    def call(self, token_ids):
        x = None
        for i, table in enumerate(self.tables):
            start = self.clusters[i][0]
            # Ids of other clusters are clipped to an arbitrary row, whose vector is not used.
            ids = ops.clip(token_ids - start, 0, table.shape[0] - 1)
            vectors = look_up(self, table, ids)  # (batch, length, cluster size)
            if self.projections:
                vectors = ops.matmul(vectors, self.projections[i])  # (batch, length, width)
            later = ops.expand_dims(token_ids >= start, -1)
            x = vectors if x is None else ops.where(later, vectors, x)
        return x * self.width**0.5

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.width)

    def output_tables(self):
        """Returns each cluster's table (tokens, size), and its projection (size, width) or None."""
        if self.div_val > 1:
            return list(zip(self.tables, self.projections, strict=True))
        projection = self.projections[0] if self.projections else None
        return [(self.tables[0][start:end], projection) for start, end in self.clusters]


class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities of tokens: log P(cluster) + log P(token | cluster).

    The tables and all projections but the first are tied to the embedding (arXiv 1901.02860).

    Args:
        embedding: a function that returns the ``AdaptiveEmbedding``.
        stddev: the standard deviation of the initial weights.

    Call:
        x: (…, width).
        targets: int (…), one token for each vector; None for all tokens. On TensorFlow, where
            shapes may depend on values, a cluster is computed only for the targets in it.

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
                shape=(embedding.width, size),
                initializer=normal(_PROJECTION_STDDEV),
                name="projection",
            )

    def compute_output_shape(self, input_shape, targets_shape=None):
        return (*input_shape[:-1], self.clusters[-1][1]) if targets_shape is None else targets_shape

    def call(self, x, targets=None):
        first = ops.log_softmax(self._logits(x, 0), axis=-1)  # (…, first cluster + clusters - 1)
        end = self.clusters[0][1]
        if targets is None:
            parts = [first[..., :end]]
            for i in range(1, len(self.clusters)):
                chosen = first[..., end + i - 1 : end + i]
                parts.append(chosen + ops.log_softmax(self._logits(x, i), axis=-1))
            return ops.concatenate(parts, axis=-1)  # (…, vocabulary)
        shape = ops.shape(targets)
        x = ops.reshape(x, (-1, x.shape[-1]))  # (targets, width)
        first = ops.reshape(first, (-1, first.shape[-1]))  # (targets, first cluster + …)
        targets = ops.reshape(targets, (-1,))  # (targets,)
        log_probabilities = _chosen(first, ops.minimum(targets, end - 1))
        for i, (start, stop) in enumerate(self.clusters[1:], 1):
            inside = ops.logical_and(targets >= start, targets < stop)
            if keras.backend.backend() == "tensorflow":
                indices = self.members(inside, i)  # (targets in the cluster,)
                within = ops.log_softmax(self._logits(ops.take(x, indices, axis=0), i), axis=-1)
                within = _chosen(within, ops.take(targets, indices, axis=0) - start)
                within = ops.scatter(ops.expand_dims(indices, 1), within, ops.shape(targets))
            else:
                within = ops.log_softmax(self._logits(x, i), axis=-1)
                within = _chosen(within, ops.clip(targets - start, 0, stop - start - 1))
            log_probabilities = ops.where(inside, first[:, end + i - 1] + within, log_probabilities)
        return ops.reshape(log_probabilities, shape)

    def members(self, inside, cluster):
        """Returns the indices of the targets in a cluster, from whether each is.

        Plans, whose shapes must not depend on values, replace it.
        """
        return ops.nonzero(inside)[0]

    def _logits(self, x, i):
        """Computes the logits of cluster ``i``; the first also has one for each other cluster."""
        table, projection = self.embedding().output_tables()[i]
        start, end = self.clusters[i]
        bias = self.biases[i] if len(self.biases) > 1 else self.biases[0][start:end]
        if projection is not None:
            matrix = ops.transpose(projection) if i else self.projection  # (width, size)
            x = ops.matmul(x, ops.cast(matrix, x.dtype))  # (…, size)
        if not i and len(self.clusters) > 1:
            table = ops.concatenate([table, ops.cast(self.cluster_kernel, table.dtype)], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        return ops.matmul(x, ops.transpose(ops.cast(table, x.dtype))) + bias


def _chosen(values, columns):
    """Selects from each of n rows (n, m) the value at its column index (n,)."""
    columns = ops.expand_dims(columns, 1)
    return ops.squeeze(ops.take_along_axis(values, columns, axis=1), 1)
