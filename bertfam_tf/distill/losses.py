"""Losses of distillation, as functions of tensors. Keras operations alone.

Each gives a loss for each row; which rows are real, and the mean over them, is up to the terms.
"""

from __future__ import annotations

from typing import Any

from keras import ops


def _float(x: Any) -> Any:
    return ops.cast(x, "float64" if x.dtype == "float64" else "float32")


def kl_divergence(student: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """KL(teacher ‖ student) of softmaxes at a temperature, times its square (arXiv 1503.02531).

    The factor keeps the size of gradients the same at each temperature.

    Args:
        student, teacher: logits (…, classes).

    Returns:
        (…).
    """
    log_student = ops.log_softmax(_float(student) / temperature, axis=-1)
    log_teacher = ops.log_softmax(_float(teacher) / temperature, axis=-1)
    difference = ops.exp(log_teacher) * (log_teacher - log_student)
    return ops.sum(difference, axis=-1) * temperature**2


def soft_cross_entropy(student: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """-Σ p(teacher) · log p(student), without a factor for the temperature (arXiv 1909.10351).

    Args:
        student, teacher: logits (…, classes).

    Returns:
        (…).
    """
    log_student = ops.log_softmax(_float(student) / temperature, axis=-1)
    return -ops.sum(ops.softmax(_float(teacher) / temperature, axis=-1) * log_student, axis=-1)


def squared_error(student: Any, teacher: Any) -> Any:
    """The mean of the squares over the last axis: (…, width) to (…)."""
    return ops.mean(ops.square(_float(student) - _float(teacher)), axis=-1)


def cosine_distance(student: Any, teacher: Any) -> Any:
    """1 - the cosine of two vectors: (…, width) to (…)."""
    return 1 - ops.sum(_normalized(student) * _normalized(teacher), axis=-1)


def normalized_squared_error(student: Any, teacher: Any) -> Any:
    """``squared_error`` of vectors that are scaled to length 1 (arXiv 1908.09355, equation 7)."""
    return squared_error(_normalized(student), _normalized(teacher))


def _normalized(x: Any) -> Any:
    return ops.normalize(_float(x), axis=-1, order=2)


def relations(x: Any, heads: int | None = None) -> Any:
    """Scaled dot products of the vectors of all pairs of tokens (arXiv 2012.15828, section 3.1).

    Args:
        x: queries, keys or values, (batch, heads, length, head size).
        heads: number of relation heads, among which the vectors of all heads are divided anew;
            None for those of ``x``.

    Returns:
        (batch, heads, length, length), to be masked and normalized by a softmax.
    """
    x = _float(x)
    if heads is not None and heads != x.shape[1]:
        batch, _, length, _ = ops.shape(x)
        width = x.shape[1] * x.shape[3]
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads, width // heads))
        x = ops.transpose(x, (0, 2, 1, 3))  # (batch, relation heads, length, width of one)
    return ops.matmul(x * x.shape[-1] ** -0.5, ops.transpose(x, (0, 1, 3, 2)))


def attention_divergence(student: Any, teacher: Any, mask: Any) -> Any:
    """KL(teacher ‖ student) of what each query attends to.

    Args:
        student, teacher: scores (batch, heads, length, length), before mask and softmax.
        mask: bool, broadcastable to the scores, true where a query may attend to a key.

    Returns:
        (batch, heads, length).
    """
    lowest = -1e9  # finite, so that 0 times it is 0
    student = ops.where(mask, _float(student), lowest)
    return kl_divergence(student, ops.where(mask, _float(teacher), lowest))
