"""From a recipe to a trained task."""

from bertfam_tf.train.pretrain import pretrain
from bertfam_tf.train.run import evaluate, read_split, run
from bertfam_tf.train.streams import StreamLM

__all__ = ["StreamLM", "evaluate", "pretrain", "read_split", "run"]
