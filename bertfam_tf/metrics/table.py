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
    """Returns a metric for ``compile``, by its name in ``METRICS``, in any case as in Keras.

    Names and objects of Keras are returned as ``of_logits`` returns them.
    """
    metric_class = METRICS.get(metric.lower()) if isinstance(metric, str) else None
    return of_logits(metric, keras.metrics) if metric_class is None else metric_class()


def of_logits(function: Any, module: Any) -> Any:
    """Returns a loss or metric of Keras that takes logits, which tasks compute.

    Args:
        function: a name, function, class or object; for a name, function or class, the result has
            ``from_logits=True``, or a threshold of 0. Anything else is returned unchanged.
        module: ``keras.losses`` or ``keras.metrics``.

    Raises:
        ValueError: for an object that takes probabilities.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if isinstance(function, str) or getattr(module, name, None) is function:
        name = _ALIASES.get(name.lower(), name)
        found = getattr(module, "".join(word[:1].upper() + word[1:] for word in name.split("_")), None)
        known = {} if found is None else inspect.signature(found).parameters
        options: dict[str, Any] = {"from_logits": True} if "from_logits" in known else {}
        if "ignore_class" in known:
            options["ignore_class"] = UNLABELLED
        if found is keras.metrics.BinaryAccuracy:
            options["threshold"] = 0.0
        return found(**options) if found is not None and options else function
    if isinstance(function, keras.losses.Loss | keras.metrics.Metric):
        config = function.get_config()
        expected = "from_logits=True" if config.get("from_logits") is False else None
        if isinstance(function, _WITH_THRESHOLD) and config.get("threshold") == _HALF:
            expected = "threshold=0.0, for a probability of 0.5,"
        if expected:
            raise ValueError(
                f"{type(function).__name__} must have {expected} because tasks compute logits."
            )
    return function
