"""Scores of answers against gold ones, as the official scripts of the benchmarks count them."""

from bertfam_tf.metrics.entities import (
    Entity,
    continues,
    entities,
    entity_scores,
    marks_entities,
    parse,
    word_accuracy,
)
from bertfam_tf.metrics.squad import best_threshold, exact_match, f1, squad_scores

__all__ = [
    "Entity",
    "best_threshold",
    "continues",
    "entities",
    "entity_scores",
    "exact_match",
    "f1",
    "marks_entities",
    "parse",
    "squad_scores",
    "word_accuracy",
]
