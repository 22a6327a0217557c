"""From a recipe to a trained task."""

from bertfam_tf.train.recurrence import SegmentRecurrence
from bertfam_tf.train.run import evaluate, read_split, run

__all__ = ["SegmentRecurrence", "evaluate", "read_split", "run"]
