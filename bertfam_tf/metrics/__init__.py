"""Scores of answers: plain functions on lists."""

from bertfam_tf.metrics.entities import (
    Entity,
    continues,
    entities,
    entity_scores,
    marks_entities,
    parse,
    word_accuracy,
)

__all__ = [
    "Entity",
    "continues",
    "entities",
    "entity_scores",
    "marks_entities",
    "parse",
    "word_accuracy",
]
