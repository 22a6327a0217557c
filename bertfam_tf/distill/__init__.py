"""Knowledge distillation: trains a student to imitate a teacher, between any two families."""

from bertfam_tf.lazy import lazy

_HOME = {
    "AttentionProbabilities": "layer_terms",
    "AttentionScores": "layer_terms",
    "Augmentation": "augmentation",
    "Distiller": "distiller",
    "Embeddings": "layer_terms",
    "FirstTokens": "layer_terms",
    "HiddenCosine": "layer_terms",
    "HiddenStates": "layer_terms",
    "LogitsError": "logit_terms",
    "Relations": "layer_terms",
    "SoftTargets": "logit_terms",
    "TERMS": "terms",
    "Term": "term",
    "augment": "augmentation_folder",
    "layer_map": "layer_maps",
    "load_word_vectors": "word_vectors",
    "student_of": "students",
    "warm_start": "students",
}
_MOVED = {"bertfam_tf.recipes": "distill"}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__, _MOVED)
