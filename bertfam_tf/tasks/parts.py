"""The former home of ``bertfam_tf.tasks.components``."""

from bertfam_tf.lazy import lazy

_MOVED = {
    "bertfam_tf.tasks.components": (
        "Evaluation NO_LABELS Parts:TaskComponents Signature Targets Tensors"
    ),
}

__getattr__, __dir__ = lazy(__name__, {}, moved=_MOVED)
