"""Multinomial logistic regression, fitted to convergence.

Keras has no optimizer that converges on a few examples without a learning rate, and SciPy's L-BFGS
would be a dependency for this function alone; the tests compare the result with scikit-learn's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

_MEMORY = 10  # pairs of steps and gradient differences that approximate the curvature
_MOST_STEPS = 1000
_TOLERANCE = 1e-6  # of the largest absolute value in the gradient
_SUFFICIENT = 1e-4  # of the decrease that the gradient predicts


def fit_logistic_regression(
    vectors: np.ndarray, labels: np.ndarray, classes: int, regularization: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a multinomial logistic regression.

    The minimized function is the sum of cross-entropies and ``regularization / 2`` times the sum
    of the squared weights, without the biases; for two classes, of the squared differences of their
    weights. It is convex, and has one minimum: scikit-learn's ``LogisticRegression(C=1 /
    regularization)``.

    Args:
        vectors: float (examples, width).
        labels: int (examples,), from 0 to below ``classes``.
        classes: the number of classes.
        regularization: above 0.

    Returns:
        The weights, float64 (width, classes), and the biases, float64 (classes,), whose sum is 0.
    """
    x = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1, dtype="float64")
    targets = np.eye(classes)[labels]
    shape = (x.shape[1], classes)
    # The weights of two classes are each other's negatives: half of the difference.
    penalty = np.full(shape, regularization * (2 if classes == 2 else 1))
    penalty[-1] = 0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(shape)
        logits = x @ weights
        logits -= logits.max(axis=1, keepdims=True)
        normalizers = np.log(np.exp(logits).sum(axis=1))
        value = normalizers.sum() - (logits * targets).sum() + (penalty * weights**2).sum() / 2
        gradient = x.T @ (np.exp(logits - normalizers[:, np.newaxis]) - targets)
        return float(value), (gradient + penalty * weights).ravel()

    weights = _minimized(loss, np.zeros(x.shape[1] * classes)).reshape(shape)
    biases = weights[-1]
    return weights[:-1], biases - biases.mean()


def _minimized(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray
) -> np.ndarray:
    """Returns the minimum of a convex function, by L-BFGS (Nocedal and Wright 2006, section 7.2).

    Args:
        function: returns its value and gradient.
        start: the first point, float64 (parameters,).
    """
    point = start
    value, gradient = function(point)
    history: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_MEMORY)
    for _ in range(_MOST_STEPS):
        if np.abs(gradient).max() <= _TOLERANCE:
            break
        direction = _direction(gradient, history)
        slope = direction @ gradient
        # The first step has no curvature to scale it by.
        size = 1.0 if history else 1 / np.linalg.norm(gradient)
        while True:
            following = point + size * direction
            next_value, next_gradient = function(following)
            if next_value <= value + _SUFFICIENT * size * slope or size < 1e-12:
                break
            size /= 2
        step, change = following - point, next_gradient - gradient
        if size < 1e-12:  # rounding errors exceed the step
            break
        if step @ change > 0:
            history.append((step, change))
        point, value, gradient = following, next_value, next_gradient
    return point


def _direction(gradient: np.ndarray, history: deque[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns the negative gradient, multiplied by an estimate of the inverse Hessian."""
    direction = -gradient
    factors = []
    for step, change in reversed(history):
        factor = (step @ direction) / (step @ change)
        direction = direction - factor * change
        factors.append(factor)
    if history:
        step, change = history[-1]
        direction = direction * (step @ change) / (change @ change)
    for (step, change), factor in zip(history, reversed(factors), strict=True):
        direction = direction + (factor - (change @ direction) / (step @ change)) * step
    return direction
