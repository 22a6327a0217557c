"""The positions in a batch at which tokens are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from bertfam_tf.models.base import leaving_padding_out
from bertfam_tf.objectives.objective import SumAndCount, mean


def token_metrics(name: str) -> Mapping[str, Callable[[Any], Any]]:
    """Returns the metrics of a loss over tokens that ``token_loss`` returns."""
    return {f"{name}_accuracy": mean, f"{name}_perplexity": ops.exp}


def token_loss(name: str, logits: Any, tokens: Any, weights: Any) -> dict[str, SumAndCount]:
    """Returns the cross-entropy of tokens, and how many of them are the most probable ones.

    Args:
        name: the name of the loss.
        logits: (…, vocabulary).
        tokens: int (…).
        weights: float32 (…).
    """
    losses = ops.sparse_categorical_crossentropy(tokens, logits, from_logits=True)
    # The highest logit takes a thirtieth of the time of its index. Equal ones all count.
    chosen = ops.take_along_axis(logits, ops.expand_dims(tokens, -1), axis=-1)
    # The initial value is for batches without predictions.
    highest = ops.max(logits, axis=-1, initial=float("-inf"))
    hits = ops.cast(ops.squeeze(chosen, -1) >= highest, "float32")
    total, count = ops.sum(ops.cast(losses, "float32") * weights), ops.sum(weights)
    return {
        name: (total, count),
        f"{name}_accuracy": (ops.sum(hits * weights), count),
        f"{name}_perplexity": (total, count),
    }


def in_batch(positions: Any, length: Any) -> Any:
    """Converts positions in rows, int (batch, predictions), to indices into batch · length."""
    rows = ops.cumsum(ops.ones_like(positions[:, :1]), axis=0) - 1
    return positions + rows * ops.cast(length, positions.dtype)


def counted(weights: Any, *values: Any) -> tuple[Any, ...]:
    """Flattens weights and values; where shapes may depend on values, drops entries of weight 0.

    Args:
        weights: (batch, predictions).
        *values: tensors of the same shape.

    Returns:
        float32 weights (counted,), then the values (counted,).
    """
    flat = tuple(ops.reshape(x, (-1,)) for x in (weights, *values))
    if leaving_padding_out():
        index = ops.nonzero(flat[0])[0]
        flat = tuple(ops.take(x, index, axis=0) for x in flat)
    return (ops.cast(flat[0], "float32"), *flat[1:])


def vectors(x: Any, index: Any) -> Any:
    """Gathers vectors (counted, width) of tokens (batch, length, width), by ``in_batch``.

    The gradient of a gather is a scatter, which XLA compiles for GPUs to a loop of retried writes
    in half precision (openxla/xla#26371), so JAX gathers in float32.
    """
    rows = ops.reshape(x, (-1, x.shape[-1]))
    if keras.backend.backend() == "jax":
        return ops.cast(ops.take(ops.cast(rows, "float32"), index, axis=0), x.dtype)
    return ops.take(rows, index, axis=0)
