"""Metrics by name, for recipes and ``compile``."""

from collections.abc import Callable
from typing import Any

import keras

from bertfam_tf.metrics.classification import AUC, F1, Matthews, MicroF1, Precision, Recall
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.ranking import MRR, NDCG

METRICS: dict[str, Callable[[], keras.metrics.Metric]] = {
    "auc": AUC,
    "f1": F1,
    "matthews": Matthews,
    "micro_f1": MicroF1,
    "mrr_10": MRR,
    "ndcg_10": NDCG,
    "pearson": Pearson,
    "precision": Precision,
    "recall": Recall,
    "spearman": Spearman,
}


def by_name(metric: Any) -> Any:
    """Returns a new metric for a name in ``METRICS``, in any case as in Keras; anything else is
    returned unchanged, for Keras."""
    metric_class = METRICS.get(metric.lower()) if isinstance(metric, str) else None
    return metric if metric_class is None else metric_class()
