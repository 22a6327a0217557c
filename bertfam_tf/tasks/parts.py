"""The former home of ``bertfam_tf.tasks.components``."""

from bertfam_tf.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {},
    [],
    moved={
        "Evaluation": "bertfam_tf.tasks.components",
        "NO_LABELS": "bertfam_tf.tasks.components",
        "Parts": "bertfam_tf.tasks.components:TaskComponents",
        "Signature": "bertfam_tf.tasks.components",
        "Targets": "bertfam_tf.tasks.components",
        "Tensors": "bertfam_tf.tasks.components",
    },
)
