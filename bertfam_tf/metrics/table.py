"""Metrics by name, for recipes and ``compile``."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import keras

from bertfam_tf.metrics.classification import AUC, F1, Matthews, MicroF1, Precision, Recall
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.ranking import MRR, NDCG
from bertfam_tf.names import unknown

# The target of a token without a label: every token of a word but the first.
UNLABELLED = -1
# Names for which Keras chooses a metric by the targets.
_BY_TARGETS = ("accuracy", "acc", "crossentropy", "ce")
# Metrics of Keras without from_logits that tasks refuse by their class.
_REFUSED = (
    keras.metrics.CategoricalAccuracy,
    keras.metrics.F1Score,
    keras.metrics.FBetaScore,
    keras.metrics.TopKCategoricalAccuracy,
)
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

    Raises:
        ValueError: for an unknown name; and as ``of_logits``.
    """
    metric_class = METRICS.get(metric.lower()) if isinstance(metric, str) else None
    if metric_class is not None:
        return metric_class()
    if isinstance(metric, str) and metric.lower() not in _BY_TARGETS:
        try:
            keras.metrics.get(metric)
        except ValueError:
            raise ValueError(unknown("metric", metric, {*METRICS, *_BY_TARGETS})) from None
    return of_logits(metric, keras.metrics)


def of_logits(function: Any, module: Any) -> Any:
    """Returns a loss or metric of Keras that takes logits, which tasks compute.

    Args:
        function: a name, function, class or object. The result for the first three has
            ``from_logits=True``, or a threshold of 0; everything else is returned unchanged.
        module: ``keras.losses`` or ``keras.metrics``.

    Raises:
        ValueError: for an object that takes probabilities.
    """
    if isinstance(function, keras.losses.Loss | keras.metrics.Metric):
        config = function.get_config()
        if config.get("from_logits") is False:
            expected = "from_logits=True"
        elif isinstance(function, keras.metrics.BinaryAccuracy) and config["threshold"] == 0.5:
            expected = "threshold=0.0, which is a probability of 0.5"
        elif isinstance(function, keras.metrics.FBetaScore) and config["threshold"] is not None:
            expected = "no threshold, which it compares with probabilities"
        else:
            return function
        name = type(function).__name__
        raise ValueError(f"{name} must have {expected}, because tasks compute logits.")
    kind = _kind(function, module)
    known = {} if kind is None else inspect.signature(kind).parameters
    options: dict[str, Any] = {"from_logits": True} if "from_logits" in known else {}
    if "ignore_class" in known:
        options["ignore_class"] = UNLABELLED
    if kind is keras.metrics.BinaryAccuracy:
        options["threshold"] = 0.0
    if kind in _REFUSED:
        return kind()  # as Keras makes it in compile, so that tasks see it
    return function if kind is None or not options else kind(**options)


def _kind(function: Any, module: Any) -> Any:
    """Returns Keras' class for a name, function or class; None if there is none."""
    if isinstance(function, str):
        # Keras chooses a function for some names, such as "accuracy", by the targets.
        with suppress(ValueError):
            function = module.get(function)
    name = getattr(function, "__name__", type(function).__name__)
    kind = getattr(module, "".join(word[:1].upper() + word[1:] for word in name.split("_")), None)
    known = (kind, getattr(module, name, None))
    return kind if function in known or isinstance(function, kind or ()) else None
