"""Correlation of scores with labels.

``keras.metrics.PearsonCorrelation`` averages the correlations of batches, which is not the
correlation of the data; these metrics use all examples since the last reset.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Rounding leaves a constant with a variance of up to this fraction of its mean square.
_CONSTANT = 1e-13


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Pearson(keras.metrics.Metric):
    """Pearson correlation over all examples; 0 for fewer than two, or if either input is constant.

    Update:
        y_true, y_pred: numbers (batch,) or (batch, 1).
        sample_weight: (batch,) or None.
    """

    def __init__(self, name: str = "pearson", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        sums = ("weight", "x", "y", "xx", "yy", "xy")
        # float64, because differences of large sums would be lost in float32.
        self._sums = [self.add_weight(name=s, initializer="zeros", dtype="float64") for s in sums]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        _check_one_each(self, y_true, y_pred)
        x, y = _numbers(y_true, tf.float64), _numbers(y_pred, tf.float64)
        w = tf.ones_like(x) if sample_weight is None else _numbers(sample_weight, tf.float64)
        values = (w, w * x, w * y, w * x * x, w * y * y, w * x * y)
        for total, value in zip(self._sums, values, strict=True):
            total.assign_add(tf.reduce_sum(value))

    def result(self) -> tf.Tensor:
        return tf.cast(_correlation(*map(tf.convert_to_tensor, self._sums)), self.dtype)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Spearman(keras.metrics.Metric):
    """Spearman's rank correlation over all examples; ties get the mean of their ranks.

    0 for fewer than two examples, or if either input is constant; NaN if a value is NaN. Keeps all
    values and sorts them for each result. Update as for ``Pearson``; weights are ignored, because
    ranks have none.
    """

    def __init__(self, name: str = "spearman", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        # Keras also computes results outside of the strategy's scope.
        self._strategy = tf.distribute.get_strategy()
        # Keras variables cannot grow. Each replica has its own examples.
        self._seen = tf.Variable(
            tf.zeros([2, 0]),
            shape=[2, None],
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        _check_one_each(self, y_true, y_pred)
        new = tf.stack([_numbers(y_true, tf.float32), _numbers(y_pred, tf.float32)])
        self._seen.assign(tf.concat([self._seen.read_value(), new], axis=1))

    def reset_state(self) -> None:
        for variable in self._variables_here():
            variable.assign(tf.zeros([2, 0]))

    def result(self) -> tf.Tensor:
        seen = tf.concat([v.read_value() for v in self._variables_here()], axis=1)
        x, y = (tf.cast(_ranks(values), tf.float64) for values in (seen[0], seen[1]))
        one = tf.ones_like(x)
        sums = (tf.reduce_sum(v) for v in (one, x, y, x * x, y * y, x * y))
        # NaN has no rank, and sorting would give it one.
        unknown = tf.reduce_any(tf.math.is_nan(seen))
        correlation = _correlation(*sums)
        nan = tf.constant(np.nan, correlation.dtype)
        return tf.cast(tf.where(unknown, nan, correlation), self.dtype)

    @property
    def checkpointed(self) -> list[SeenValues]:
        """State that Keras' ``variables`` lack, for training checkpoints."""
        return [SeenValues(self)]

    def _variables_here(self) -> tuple[tf.Variable, ...]:
        """Returns the variable of this replica; outside a replica context, of all replicas."""
        here = tf.distribute.get_strategy() is self._strategy
        if here and not tf.distribute.in_cross_replica_context():
            return (self._seen,)
        return self._strategy.experimental_local_results(self._seen)


class SeenValues:
    """The values that a ``Spearman`` has seen in all replicas of this process.

    Read and assigned as a variable, float32 (2, examples); Keras' own cannot grow.
    """

    shape = (2, None)

    def __init__(self, metric: Spearman):
        self._metric = metric

    def numpy(self) -> np.ndarray:
        return np.concatenate([v.numpy() for v in self._metric._variables_here()], axis=1)

    def assign(self, value: Any) -> None:
        self._metric.reset_state()
        self._metric._variables_here()[0].assign(value)


def _check_one_each(metric: keras.metrics.Metric, y_true: Any, y_pred: Any) -> None:
    """Raises ValueError if each label has several scores, as those of classes are."""
    shapes = [tf.convert_to_tensor(values).shape for values in (y_true, y_pred)]
    if None in (shape.rank for shape in shapes):
        return
    short, long = sorted(map(tuple, shapes), key=len)
    if any(size not in (1, None) for size in long[len(short) :]):
        raise ValueError(
            f"y_true and y_pred of {type(metric).__name__} must be one number per example, got the "
            f"shapes {shapes[0]} and {shapes[1]}."
        )


def _numbers(values: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.reshape(tf.cast(values, dtype), [-1])


def _ranks(values: tf.Tensor) -> tf.Tensor:
    """Returns twice the rank of each value, from 1; ties get the mean of their ranks."""
    order = tf.sort(values)
    below = tf.searchsorted(order, values, side="left")
    return below + tf.searchsorted(order, values, side="right")


def _correlation(
    n: tf.Tensor, x: tf.Tensor, y: tf.Tensor, xx: tf.Tensor, yy: tf.Tensor, xy: tf.Tensor
) -> tf.Tensor:
    """Computes the correlation from sums of weights, values, squares and products."""
    var_x, var_y = n * xx - x * x, n * yy - y * y
    constant = (var_x <= _CONSTANT * n * xx) | (var_y <= _CONSTANT * n * yy)
    norm = tf.sqrt(tf.maximum(var_x, 0) * tf.maximum(var_y, 0))
    norm = tf.where(constant, tf.ones_like(n), norm)
    return tf.where(constant, tf.zeros_like(n), (n * xy - x * y) / norm)
