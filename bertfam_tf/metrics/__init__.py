"""Metrics of NLP tasks, as Keras metrics."""

from bertfam_tf.metrics.classification import F1, Matthews, MicroF1
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.table import METRICS, by_name

__all__ = ["F1", "METRICS", "Matthews", "MicroF1", "Pearson", "Spearman", "by_name"]
