"""Tasks: text in, answers out."""

from bertfam_tf.tasks.causal_lm import CausalLM
from bertfam_tf.tasks.embedder_trainer import EmbedderTrainer
from bertfam_tf.tasks.few_shot_classifier import FewShotClassifier
from bertfam_tf.tasks.keras_hub import to_keras_hub
from bertfam_tf.tasks.loading import load, load_checkpoint
from bertfam_tf.tasks.masked_lm import MaskedLM
from bertfam_tf.tasks.model_garden import to_model_garden
from bertfam_tf.tasks.multi_label import MultiLabelClassifier
from bertfam_tf.tasks.multi_task import MultiTask
from bertfam_tf.tasks.multiple_choice import MultipleChoice
from bertfam_tf.tasks.precision import quantize_embeddings
from bertfam_tf.tasks.publish import save_pretrained
from bertfam_tf.tasks.reranker import Reranker
from bertfam_tf.tasks.span_qa import SpanQA
from bertfam_tf.tasks.sparse_embedder import SparseEmbedder
from bertfam_tf.tasks.storage import is_saved
from bertfam_tf.tasks.task import Task, task_class, task_classes, trainable_tasks
from bertfam_tf.tasks.text_classifier import TextClassifier
from bertfam_tf.tasks.text_embedder import TextEmbedder
from bertfam_tf.tasks.text_regressor import TextRegressor
from bertfam_tf.tasks.token_tagger import TokenTagger
from bertfam_tf.tasks.zero_shot import ZeroShotClassifier

__all__ = [
    "CausalLM",
    "EmbedderTrainer",
    "FewShotClassifier",
    "MaskedLM",
    "MultiLabelClassifier",
    "MultiTask",
    "MultipleChoice",
    "Reranker",
    "SpanQA",
    "SparseEmbedder",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TokenTagger",
    "ZeroShotClassifier",
    "is_saved",
    "load",
    "load_checkpoint",
    "quantize_embeddings",
    "save_pretrained",
    "task_class",
    "task_classes",
    "to_keras_hub",
    "to_model_garden",
    "trainable_tasks",
]
