"""From a recipe to a trained task."""

from bertfam_tf.train.run import evaluate, read_split, run

__all__ = ["evaluate", "read_split", "run"]
