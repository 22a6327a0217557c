"""Distillation: trains a student to imitate a teacher, of any families."""

from bertfam_tf.lazy import lazy

_HOME = {
    "AttentionProbabilities": "terms",
    "AttentionScores": "terms",
    "Augmentation": "augmentation",
    "Distiller": "distiller",
    "Embeddings": "terms",
    "FirstTokens": "terms",
    "HiddenCosine": "terms",
    "HiddenStates": "terms",
    "LogitsError": "terms",
    "Relations": "terms",
    "SoftTargets": "terms",
    "TERMS": "terms",
    "Term": "terms",
    "augment": "augmentation",
    "layer_map": "layer_maps",
    "load_word_vectors": "word_vectors",
    "student_of": "students",
    "warm_start": "students",
}
_MOVED = {"distill": "bertfam_tf.recipes"}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__, _MOVED)
