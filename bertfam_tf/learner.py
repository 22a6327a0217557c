"""The former home of ``bertfam_tf.training.Learner``."""

from bertfam_tf.lazy import lazy

_MOVED = {
    "bertfam_tf.objectives": "Batch Objective Supervised mean",
    "bertfam_tf.training.learner": "Learner LossTracker",
}

__getattr__, __dir__ = lazy(__name__, {}, moved=_MOVED)
