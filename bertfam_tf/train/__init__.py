"""Trains tasks and language models from recipes."""

from bertfam_tf.config import Stage
from bertfam_tf.train.answer_file import answer_file, as_json, source_of
from bertfam_tf.train.pretrain import pretrain
from bertfam_tf.train.run import evaluate, run
from bertfam_tf.train.splits import read_split
from bertfam_tf.train.stacking import Trained, copied_paths, copy_moments, grow, train_in_stages
from bertfam_tf.train.stream_lm import StreamLM

__all__ = [
    "Stage",
    "StreamLM",
    "Trained",
    "answer_file",
    "as_json",
    "copied_paths",
    "copy_moments",
    "evaluate",
    "grow",
    "pretrain",
    "read_split",
    "run",
    "source_of",
    "train_in_stages",
]
