"""Tasks: text in, answers out."""

from bertfam_tf.tasks.base import Task, load
from bertfam_tf.tasks.causal_lm import CausalLM
from bertfam_tf.tasks.span_qa import SpanQA
from bertfam_tf.tasks.text_classifier import TextClassifier
from bertfam_tf.tasks.text_embedder import TextEmbedder
from bertfam_tf.tasks.token_tagger import TokenTagger

__all__ = [
    "CausalLM",
    "SpanQA",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TokenTagger",
    "load",
]
