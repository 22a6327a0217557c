"""Metrics by the names that recipes and ``compile`` take."""

from collections.abc import Callable
from typing import Any

import keras

from bertfam_tf.metrics.classification import F1, Matthews, MicroF1
from bertfam_tf.metrics.correlation import Pearson, Spearman

METRICS: dict[str, Callable[[], keras.metrics.Metric]] = {
    "f1": F1,
    "matthews": Matthews,
    "micro_f1": MicroF1,
    "pearson": Pearson,
    "spearman": Spearman,
}


def by_name(metric: Any) -> Any:
    """A new metric for a name in ``METRICS``; anything else as it came, for Keras to read."""
    return METRICS[metric]() if isinstance(metric, str) and metric in METRICS else metric
