"""Metrics by name, for recipes and ``compile``."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import keras

from bertfam_tf.metrics.classification import AUC, F1, Matthews, MicroF1, Precision, Recall
from bertfam_tf.metrics.compatible import Compatible
from bertfam_tf.metrics.correlation import Pearson, Spearman
from bertfam_tf.metrics.ranking import MRR, NDCG
from bertfam_tf.names import unknown

# The target of a token without a label: every token of a word but the first.
UNLABELLED = -1
# Names for which Keras chooses a metric by the targets.
_BY_TARGETS = ("accuracy", "acc")
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


def by_name(metric: Any, compatible: Compatible | None = None, task: str = "task") -> Any:
    """Returns a metric for ``compile``, by its name in ``METRICS``, in any case as in Keras.

    Names and objects of Keras are returned as ``of_logits`` returns them.

    Args:
        metric: a name, function, class or object.
        compatible, task: the same as for ``of_logits``.

    Raises:
        ValueError: for an unknown name; and as ``of_logits``.
    """
    if compatible is not None and isinstance(metric, str) and metric.lower() in _BY_TARGETS:
        if compatible.accuracy is not None:
            return compatible.accuracy(metric)
        compatible.check("Accuracy", "metrics", task)
    metric_class = METRICS.get(metric.lower()) if isinstance(metric, str) else None
    if metric_class is not None:
        return metric_class()
    if isinstance(metric, str) and metric.lower() not in _BY_TARGETS:
        try:
            keras.metrics.get(metric)
        except ValueError:
            raise ValueError(unknown("metric", metric, {*METRICS, *_BY_TARGETS})) from None
    return of_logits(metric, keras.metrics, compatible, task)


def as_metric(metric: Any) -> keras.metrics.Metric:
    """Returns a metric of ``compile`` as an object, with the name that Keras gives it."""
    made = keras.metrics.get(metric)
    if not isinstance(made, keras.metrics.Metric):
        name = getattr(made, "__name__", type(made).__name__)
        made = keras.metrics.MeanMetricWrapper(made, name)
    if isinstance(metric, str):
        made.name = metric
    return made


def of_logits(
    function: Any, module: Any, compatible: Compatible | None = None, task: str = "task"
) -> Any:
    """Returns a loss or metric of Keras that takes logits, which tasks compute.

    Args:
        function: a name, function, class or object. The result for the first three has
            ``from_logits=True``, or a threshold of 0; everything else is returned unchanged.
        module: ``keras.losses`` or ``keras.metrics``.
        compatible: what takes the task's labels; None for anything.
        task: the name of the task, for errors.

    Raises:
        ValueError: for an object that takes probabilities, or a class that is not compatible.
    """
    kind = _kind(function, module)
    decides = compatible is not None and compatible.decisions and _decides_at_zero(function)
    if compatible is not None and kind is not None and not decides:
        compatible.check(kind.__name__, module.__name__.rpartition(".")[2], task)
    if isinstance(function, keras.losses.Loss | keras.metrics.Metric):
        config = function.get_config()
        if config.get("from_logits") is False:
            expected = "from_logits=True"
        elif isinstance(function, keras.metrics.BinaryAccuracy) and config["threshold"] == 0.5:
            expected = "threshold=0.0, which is a probability of 0.5"
        elif isinstance(function, keras.metrics.FBetaScore) and config["threshold"] is not None:
            expected = "no threshold, which it compares with probabilities"
        elif (
            compatible is not None
            and compatible.ignore_class is not None
            and config.get("ignore_class", compatible.ignore_class) != compatible.ignore_class
        ):
            raise ValueError(
                f"{type(function).__name__} must have ignore_class={compatible.ignore_class}, the "
                f"label of tokens without one in a {task}, got {config['ignore_class']}."
            )
        else:
            return function
        name = type(function).__name__
        raise ValueError(f"{name} must have {expected}, because tasks compute logits.")
    known = {} if kind is None else inspect.signature(kind).parameters
    options: dict[str, Any] = {"from_logits": True} if "from_logits" in known else {}
    if "ignore_class" in known:
        options["ignore_class"] = UNLABELLED
    if kind is keras.metrics.BinaryAccuracy:
        options["threshold"] = 0.0
    return function if kind is None or not options else kind(**options)


def _decides_at_zero(function: Any) -> bool:
    """Whether an object of Keras compares scores with the logit of a probability of 0.5."""
    is_object = isinstance(function, keras.metrics.Metric)
    return is_object and function.get_config().get("thresholds") == 0.0


def _kind(function: Any, module: Any) -> Any:
    """Returns Keras' class for a name, function or class; None if there is none."""
    if isinstance(function, str):
        # Keras chooses a function for some names, such as "accuracy", by the targets.
        with suppress(ValueError):
            function = module.get(function)
    name = getattr(function, "__name__", type(function).__name__)
    classes = {key.lower(): kind for key, kind in vars(module).items() if isinstance(kind, type)}
    kind = classes.get(name.replace("_", "").lower())
    known = (kind, getattr(module, name, None))
    return kind if function in known or type(function) is kind else None
