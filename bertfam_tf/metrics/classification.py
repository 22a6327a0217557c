"""Metrics computed from counts of correct and incorrect decisions."""

from typing import Any

import keras
from keras import ops

# Keras' 200 thresholds are probabilities, 0.005 apart, between which many scores of a rare label
# would be ties.
_THRESHOLDS, _SPREAD = 10_000, 4.0


class _Counts(keras.metrics.Metric):
    """True and false positives and negatives, weighted by ``sample_weight``."""

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        counts = ("true_positives", "false_positives", "false_negatives", "true_negatives")
        self._counts = [self.add_weight(name=count, initializer="zeros") for count in counts]

    def _decisions(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns both as booleans of the same shape; the first axis is the batch."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        true, predicted = self._decisions(
            ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        )
        weight: Any = 1.0
        if sample_weight is not None:
            weight = ops.cast(sample_weight, self.dtype)
            weight = ops.reshape(weight, (-1, *[1] * (len(true.shape) - 1)))
        pairs = [(true, predicted), (~true, predicted), (true, ~predicted), (~true, ~predicted)]
        for count, (a, b) in zip(self._counts, pairs, strict=True):
            count.assign_add(ops.sum(ops.cast(a & b, self.dtype) * weight))

    def _f1(self) -> Any:
        true_positives, false_positives, false_negatives, _ = self._counts
        return ops.divide_no_nan(
            2 * true_positives, 2 * true_positives + false_positives + false_negatives
        )


class _BinaryCounts(_Counts):
    def __init__(self, name: str | None = None, **kwargs: Any):
        super().__init__(name or type(self).__name__.lower(), **kwargs)

    def _decisions(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        _check_two(self, y_true, y_pred)
        true = ops.cast(ops.reshape(y_true, (-1,)), self.dtype)
        return true == 1, ops.argmax(y_pred, axis=-1) == 1


def _check_two(metric: keras.metrics.Metric, y_true: Any, y_pred: Any) -> None:
    name = type(metric).__name__
    scores = y_pred.shape[-1] if len(y_pred.shape) > 1 else 1
    if len(y_pred.shape) > 2:
        raise ValueError(f"y_pred of {name} must be scores (batch, 2), got {y_pred.shape}.")
    if scores != 2:
        raise ValueError(f"y_pred of {name} must be scores of 2 labels, got {scores}.")
    if len(y_true.shape) > 1 and y_true.shape[-1] not in (1, None):
        raise ValueError(
            f"y_true of {name} must be one label per example, got {y_true.shape[-1]}. Metrics of "
            "independent labels are 'micro_f1' and Keras' own, such as "
            "keras.metrics.AUC(multi_label=True, from_logits=True)."
        )


@keras.saving.register_keras_serializable(package="bertfam_tf")
class F1(_BinaryCounts):
    """F1 of the second of two labels (harmonic mean of precision and recall); 0 if undefined.

    Update:
        y_true: 0 or 1, (batch,).
        y_pred: logits or scores (batch, 2).
        sample_weight: (batch,) or None.
    """

    def result(self) -> Any:
        return self._f1()


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Precision(_BinaryCounts):
    """Precision of the second of two labels: correct predictions of it / predictions of it; 0 for
    none.

    Update as for ``F1``.
    """

    def result(self) -> Any:
        true_positives, false_positives, _, _ = self._counts
        return ops.divide_no_nan(true_positives, true_positives + false_positives)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Recall(_BinaryCounts):
    """Recall of the second of two labels: correct predictions of it / examples of it; 0 for none.

    Update as for ``F1``.
    """

    def result(self) -> Any:
        true_positives, _, false_negatives, _ = self._counts
        return ops.divide_no_nan(true_positives, true_positives + false_negatives)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class AUC(keras.metrics.AUC):
    """``keras.metrics.AUC`` of the second of two labels: the area under the ROC curve.

    Thresholds are log-odds, so that there are some between scores that are all near 0 or 1 too.

    Args:
        **kwargs: arguments of ``keras.metrics.AUC``, such as ``curve="PR"``. ``thresholds`` are
            probabilities.

    Update:
        y_true: 0 or 1, (batch,).
        y_pred: logits (batch, 2).
        sample_weight: (batch,) or None.
    """

    def __init__(self, name: str = "auc", **kwargs: Any):
        self._of_probabilities = kwargs.get("thresholds") is not None
        # Keras has probabilities here, which ``update_state`` computes.
        kwargs["from_logits"] = False
        super().__init__(name=name, **{"num_thresholds": _THRESHOLDS, **kwargs})

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["from_logits"]
        return config

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        _check_two(self, y_true, y_pred)
        logits = ops.cast(y_pred, self.dtype)
        odds = logits[:, 1] - logits[:, 0]
        # Any score in the order of the probabilities has the same area.
        score = ops.sigmoid(odds if self._of_probabilities else odds / _SPREAD)
        super().update_state(ops.reshape(y_true, (-1,)), score, sample_weight)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Matthews(_BinaryCounts):
    """Matthews correlation coefficient for two labels (Matthews 1975), CoLA's metric.

    0 without examples, and if all labels or all predictions are the same. Update as for ``F1``.
    """

    def result(self) -> Any:
        tp, fp, fn, tn = (ops.convert_to_tensor(count) for count in self._counts)
        # Square roots first: the product of four counts can overflow float32.
        norm = ops.sqrt(tp + fp) * ops.sqrt(tp + fn) * ops.sqrt(tn + fp) * ops.sqrt(tn + fn)
        return ops.divide_no_nan(tp * tn - fp * fn, norm)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class MicroF1(_Counts):
    """Micro-averaged F1 of a classifier with independent labels; 0 if undefined.

    Args:
        threshold: the minimum probability at which a label is predicted.

    Update:
        y_true: 0 or 1, (batch, labels).
        y_pred: logits (batch, labels).
        sample_weight: (batch,) or None.
    """

    def __init__(self, threshold: float = 0.5, name: str = "micro_f1", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.threshold = threshold

    def _decisions(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        # TensorFlow's ``shape.rank`` may be unknown.
        if any(getattr(y.shape, "rank", y.ndim) not in (2, None) for y in (y_true, y_pred)):
            raise ValueError(
                "y_true and y_pred of MicroF1 must be (batch, labels), got "
                f"{y_true.shape} and {y_pred.shape}. For one label per example, "
                "the micro-averaged F1 is the accuracy."
            )
        scores = ops.sigmoid(ops.cast(y_pred, self.dtype))
        return ops.cast(y_true, self.dtype) > 0.5, scores >= self.threshold

    def result(self) -> Any:
        return self._f1()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}
