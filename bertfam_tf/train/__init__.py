"""Trains tasks and language models from recipes."""

from bertfam_tf.train.answer_file import answer_file, as_json, source_of
from bertfam_tf.train.pretrain import pretrain
from bertfam_tf.train.run import evaluate, read_split, run
from bertfam_tf.train.stream_lm import StreamLM

__all__ = [
    "StreamLM",
    "answer_file",
    "as_json",
    "evaluate",
    "pretrain",
    "read_split",
    "run",
    "source_of",
]
