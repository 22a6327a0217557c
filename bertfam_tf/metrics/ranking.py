"""Scores of rankings: Keras metrics for each query's candidates, and scores of search results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.user_warnings import renamed_arguments


class _RankingMean(keras.metrics.Mean):
    """The mean score of the queries that have a relevant document.

    Of documents with equal scores, the least relevant ranks first; NaN is the lowest score.

    Args:
        k: the number of first documents that count.

    Update:
        y_true: relevance (batch, documents), from 0 up; NaN for documents that do not count.
        y_pred: scores (batch, documents).
        sample_weight: (batch,) or None.
    """

    def __init__(self, k: int = 10, name: str | None = None, **kwargs: Any):
        super().__init__(name=name or f"{type(self).__name__.lower()}_{k}", **kwargs)
        self.k = k

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        true, scores = (tf.cast(x, tf.float32) for x in (y_true, y_pred))
        if not true.shape.rank == scores.shape.rank == 2:
            raise ValueError(
                f"y_true and y_pred of {type(self).__name__} must be (batch, documents), got "
                f"{true.shape} and {scores.shape}."
            )
        missing = tf.math.is_nan(true)
        scores = tf.where(tf.math.is_nan(scores), scores.dtype.min, scores)
        scores = tf.where(missing, -np.inf, scores)
        true = tf.where(missing, 0.0, true)
        # Data often have the relevant document first, which must not decide between equal scores.
        worst_first = tf.argsort(true)
        true, scores = (tf.gather(x, worst_first, batch_dims=1) for x in (true, scores))
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        ranked = tf.gather(true, order, batch_dims=1)[:, : self.k]
        weight = tf.cast(tf.reduce_any(true > 0, axis=-1), tf.float32)
        if sample_weight is not None:
            factors = tf.cast(sample_weight, tf.float32)
            if factors.shape.rank == 2:
                raise ValueError(
                    f"sample_weight of {type(self).__name__} must be one number per query, got "
                    f"{factors.shape}."
                )
            weight *= factors
        super().update_state(self._scored(ranked, true), weight)

    def _scored(self, ranked: tf.Tensor, true: tf.Tensor) -> tf.Tensor:
        """Returns the score of each query (batch,), from the relevance of the first documents."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "k": self.k}


@keras.saving.register_keras_serializable(package="bertfam_tf")
class NDCG(_RankingMean):
    """Normalized discounted cumulative gain of the first ``k`` documents (Järvelin and Kekäläinen,
    2002), with the relevance itself as the gain, as trec_eval and scikit-learn compute it."""

    def _scored(self, ranked: tf.Tensor, true: tf.Tensor) -> tf.Tensor:
        best = tf.sort(true, direction="DESCENDING")[:, : self.k]
        return tf.math.divide_no_nan(_discounted(ranked), _discounted(best))


@keras.saving.register_keras_serializable(package="bertfam_tf")
class MRR(_RankingMean):
    """Mean reciprocal rank of the first relevant document among the first ``k``; 0 if none is."""

    def _scored(self, ranked: tf.Tensor, true: tf.Tensor) -> tf.Tensor:
        ranks = tf.range(1, tf.shape(ranked)[1] + 1, dtype=tf.float32)
        # Without documents the maximum is -inf.
        return tf.maximum(tf.reduce_max(tf.where(ranked > 0, 1 / ranks, 0.0), axis=1), 0.0)


def _discounted(relevance: tf.Tensor) -> tf.Tensor:
    ranks = tf.range(2, tf.shape(relevance)[1] + 2, dtype=tf.float32)
    return tf.reduce_sum(relevance * np.log(2) / tf.math.log(ranks), axis=1)


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Divides vectors (rows, width) by their lengths, so that their dot products are cosines."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def nearest(
    queries: np.ndarray, documents: np.ndarray, k: int = 10, *, rows: int = 1024
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents with the largest dot product for each query, by comparing all.

    Args:
        queries: the vectors (queries, width).
        documents: the vectors (documents, width).
        k: the number of documents, at most as many as there are.
        rows: queries that are compared at once.

    Returns:
        indices, int64, and dot products, float32; both (queries, k), the best first.

    Raises:
        ValueError: if the vectors' widths differ, or ``k`` is out of range.
    """
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1]:
        raise ValueError(
            "Queries and documents must be vectors of the same width, got the shapes "
            f"{queries.shape} and {documents.shape}."
        )
    if not 1 <= k <= len(documents):
        raise ValueError(f"k must be from 1 to the {len(documents)} documents, got {k}.")
    indices, scores = [], []
    for start in range(0, len(queries), rows):
        products = queries[start : start + rows] @ documents.T
        best = np.argsort(-products, axis=1, kind="stable")[:, :k]
        indices.append(best)
        scores.append(np.take_along_axis(products, best, axis=1))
    if not indices:
        return np.zeros((0, k), np.int64), np.zeros((0, k), np.float32)
    return np.concatenate(indices), np.concatenate(scores)


@renamed_arguments(found="retrieved")
def retrieval_scores(
    retrieved: Sequence[Sequence[int]],
    relevant: Sequence[Mapping[int, float] | Sequence[int]],
    k: int = 10,
) -> dict[str, float]:
    """Computes scores of search results, as means over the queries.

    Args:
        retrieved: the search results of each query, as document indices, best first; repeated
            ones count once.
        relevant: the relevant documents of each query, at least one: a dict from document to
            relevance, or a list of documents with relevance 1.
        k: the number of first documents that count.

    Returns:
        ``ndcg_K`` (as ``NDCG``), ``mrr_K`` and ``recall_K``, the share of the relevant documents
        that is among the first ``k``, from 0 to 1.

    Raises:
        ValueError: if the numbers of queries differ, or a query has no relevant document.
    """
    if len(retrieved) != len(relevant) or not len(retrieved):
        raise ValueError(
            "Search results and relevant documents must be for the same number of queries, at "
            f"least 1, got {len(retrieved)} and {len(relevant)}."
        )
    rows = []
    for row, (documents, relevances) in enumerate(zip(retrieved, relevant, strict=True)):
        gains = (
            dict(relevances) if isinstance(relevances, Mapping) else dict.fromkeys(relevances, 1.0)
        )
        best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
        if not best:
            raise ValueError(f"Query {row} has no relevant document.")
        gained = [gains.get(document, 0.0) for document in [*dict.fromkeys(documents)][:k]]
        hits = [i for i, gain in enumerate(gained) if gain > 0]
        discounts = 1 / np.log2(np.arange(2, k + 2))
        ideal = float(np.dot(best[:k], discounts[: len(best[:k])]))
        rows.append(
            (
                float(np.dot(gained, discounts[: len(gained)])) / ideal,
                1 / (hits[0] + 1) if hits else 0.0,
                len(hits) / len(best),
            )
        )
    names = (f"ndcg_{k}", f"mrr_{k}", f"recall_{k}")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
