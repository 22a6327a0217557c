"""Metrics by name, for recipes and ``compile``."""

from collections.abc import Callable
from typing import Any

import keras

from bertfam_tf.metrics.classification import F1, Matthews, MicroF1
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.ranking import MRR, NDCG

METRICS: dict[str, Callable[[], keras.metrics.Metric]] = {
    "f1": F1,
    "matthews": Matthews,
    "micro_f1": MicroF1,
    "mrr_10": MRR,
    "ndcg_10": NDCG,
    "pearson": Pearson,
    "spearman": Spearman,
}


def by_name(metric: Any) -> Any:
    """A new metric for a name in ``METRICS``; anything else is returned unchanged, for Keras."""
    return METRICS[metric]() if isinstance(metric, str) and metric in METRICS else metric
