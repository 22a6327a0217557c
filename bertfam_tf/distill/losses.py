"""Distillation losses as functions of tensors, with Keras operations only.

Each returns a loss for each row; terms mask and average the rows.
"""

from __future__ import annotations

from typing import Any

from keras import ops


def to_float(x: Any) -> Any:
    return ops.cast(x, "float64" if x.dtype == "float64" else "float32")


def kl_divergence(student: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """Computes KL(teacher ‖ student) of softmaxes with a temperature, multiplied by its square.

    The factor keeps the scale of gradients independent of the temperature (arXiv 1503.02531).

    Args:
        student, teacher: logits (…, classes).

    Returns:
        (…).
    """
    log_student = ops.log_softmax(to_float(student) / temperature, axis=-1)
    log_teacher = ops.log_softmax(to_float(teacher) / temperature, axis=-1)
    difference = ops.exp(log_teacher) * (log_teacher - log_student)
    return ops.sum(difference, axis=-1) * temperature**2


def soft_cross_entropy(student: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """Computes -Σ p(teacher) · log p(student), without temperature² (arXiv 1909.10351).

    Args:
        student, teacher: logits (…, classes).

    Returns:
        (…).
    """
    log_student = ops.log_softmax(to_float(student) / temperature, axis=-1)
    return -ops.sum(ops.softmax(to_float(teacher) / temperature, axis=-1) * log_student, axis=-1)


def squared_error(student: Any, teacher: Any) -> Any:
    """Computes the mean squared error over the last axis: (…, width) to (…)."""
    return ops.mean(ops.square(to_float(student) - to_float(teacher)), axis=-1)


def cosine_distance(student: Any, teacher: Any) -> Any:
    """Computes one minus the cosine similarity: (…, width) to (…)."""
    return 1 - ops.sum(_normalized(student) * _normalized(teacher), axis=-1)


def normalized_squared_error(student: Any, teacher: Any) -> Any:
    """Computes ``squared_error`` of unit-length vectors (arXiv 1908.09355, equation 7)."""
    return squared_error(_normalized(student), _normalized(teacher))


def _normalized(x: Any) -> Any:
    return ops.normalize(to_float(x), axis=-1, order=2)


def relations(x: Any, heads: int | None = None) -> Any:
    """Computes scaled dot products of all pairs of tokens (arXiv 2012.15828, section 3.1).

    Args:
        x: queries, keys or values, (batch, heads, length, head size).
        heads: the number of relation heads, into which the concatenated heads are split again;
            None keeps the heads of ``x``.

    Returns:
        Scores (batch, heads, length, length), before mask and softmax.
    """
    x = to_float(x)
    if heads is not None and heads != x.shape[1]:
        batch, _, length, _ = ops.shape(x)
        width = x.shape[1] * x.shape[3]
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads, width // heads))
        x = ops.transpose(x, (0, 2, 1, 3))  # (batch, relation heads, length, head size)
    return ops.matmul(x * x.shape[-1] ** -0.5, ops.transpose(x, (0, 1, 3, 2)))


def attention_divergence(student: Any, teacher: Any, mask: Any) -> Any:
    """Computes KL(teacher ‖ student) of attention distributions.

    Args:
        student, teacher: scores (batch, heads, length, length), before mask and softmax.
        mask: bool, broadcastable to the scores, true where a query may attend to a key.

    Returns:
        (batch, heads, length).
    """
    lowest = -1e9  # finite, because 0 · inf is NaN
    student = ops.where(mask, to_float(student), lowest)
    return kl_divergence(student, ops.where(mask, to_float(teacher), lowest))
