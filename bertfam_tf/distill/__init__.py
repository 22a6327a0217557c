"""Distillation: trains a student to imitate a teacher, of any families."""

from bertfam_tf.distill.augmentation import Augmentation, augment
from bertfam_tf.distill.distiller import Distiller
from bertfam_tf.distill.layer_maps import layer_map
from bertfam_tf.distill.run import distill
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
from bertfam_tf.distill.word_vectors import load_word_vectors

__all__ = [
    "TERMS",
    "AttentionProbabilities",
    "AttentionScores",
    "Augmentation",
    "Distiller",
    "Embeddings",
    "FirstTokens",
    "HiddenCosine",
    "HiddenStates",
    "LogitsError",
    "Relations",
    "SoftTargets",
    "Term",
    "augment",
    "distill",
    "layer_map",
    "load_word_vectors",
    "student_of",
    "warm_start",
]
