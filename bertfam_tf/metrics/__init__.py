"""Keras metrics, and functions that compute the same scores as the benchmarks' scripts."""

from bertfam_tf.metrics.classification import AUC, F1, Matthews, MicroF1, Precision, Recall
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.entities import (
    Entity,
    continues,
    entities,
    entity_scores,
    marks_entities,
    parse,
    word_accuracy,
)
from bertfam_tf.metrics.minimal_pairs import minimal_pairs, read_minimal_pairs
from bertfam_tf.metrics.ranking import MRR, NDCG, nearest, retrieval_scores, unit_length
from bertfam_tf.metrics.squad import best_threshold, exact_match, f1, squad_scores
from bertfam_tf.metrics.table import METRICS, by_name

__all__ = [
    "AUC",
    "F1",
    "METRICS",
    "MRR",
    "NDCG",
    "Entity",
    "Matthews",
    "MicroF1",
    "Pearson",
    "Precision",
    "Recall",
    "Spearman",
    "best_threshold",
    "by_name",
    "continues",
    "entities",
    "entity_scores",
    "exact_match",
    "f1",
    "marks_entities",
    "minimal_pairs",
    "nearest",
    "parse",
    "read_minimal_pairs",
    "retrieval_scores",
    "squad_scores",
    "unit_length",
    "word_accuracy",
]
