"""Distillation: trains a student to imitate a teacher, of any families."""

from bertfam_tf.distill.distiller import Distiller
from bertfam_tf.distill.layer_maps import layer_map
from bertfam_tf.distill.students import student_of, warm_start
from bertfam_tf.distill.terms import (
    TERMS,
    AttentionProbabilities,
    AttentionScores,
    Embeddings,
    FirstTokens,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
    Term,
)

__all__ = [
    "TERMS",
    "AttentionProbabilities",
    "AttentionScores",
    "Distiller",
    "Embeddings",
    "FirstTokens",
    "HiddenCosine",
    "HiddenStates",
    "LogitsError",
    "Relations",
    "SoftTargets",
    "Term",
    "layer_map",
    "student_of",
    "warm_start",
]
