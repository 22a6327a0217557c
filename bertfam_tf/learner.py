"""The former home of ``bertfam_tf.training.Learner``."""

from bertfam_tf.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {},
    [],
    moved={
        "Batch": "bertfam_tf.objectives",
        "Learner": "bertfam_tf.training.learner",
        "LossTracker": "bertfam_tf.training.learner",
        "Objective": "bertfam_tf.objectives",
        "Supervised": "bertfam_tf.objectives",
        "mean": "bertfam_tf.objectives",
    },
)
