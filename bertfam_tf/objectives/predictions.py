"""The places in a batch at which tokens are predicted."""

from __future__ import annotations

from typing import Any

from keras import ops

from bertfam_tf.models.base import leaving_padding_out


def in_batch(positions: Any, length: Any) -> Any:
    """Positions in rows, int (batch, predictions), as indexes among the batch · length tokens."""
    rows = ops.cumsum(ops.ones_like(positions[:, :1]), axis=0) - 1
    return positions + rows * ops.cast(length, positions.dtype)


def counted(weights: Any, *values: Any) -> tuple[Any, ...]:
    """Weights and values flattened; where shapes may depend on values, without those of weight 0.

    Args:
        weights: (batch, predictions).
        *values: tensors of the same shape.

    Returns:
        float32 weights (counted,), then the values (counted,).
    """
    flat = tuple(ops.reshape(each, (-1,)) for each in (weights, *values))
    if leaving_padding_out():
        index = ops.nonzero(flat[0])[0]
        flat = tuple(ops.take(each, index, axis=0) for each in flat)
    return (ops.cast(flat[0], "float32"), *flat[1:])


def vectors(x: Any, index: Any) -> Any:
    """Vectors (counted, width) of tokens (batch, length, width), by ``in_batch``."""
    return ops.take(ops.reshape(x, (-1, x.shape[-1])), index, axis=0)
