"""Attention masks: boolean tensors (batch, heads or 1, queries or 1, keys), true where allowed.

``logical_and`` combines masks, and the attention layer broadcasts them.
"""

from typing import Any

import keras
from keras import ops


def attention_mask_from_padding(padding_mask):
    """Returns a mask with which every query may attend to every real token.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        Boolean (batch, 1, 1, length).
    """
    # Indexing with None does not convert to TFLite on dynamic shapes; expand_dims does.
    return ops.expand_dims(ops.expand_dims(ops.cast(padding_mask, "bool"), 1), 1)


def score_bounds(attention_mask):
    """Returns upper bounds of the scores: float32 1e9 where the mask is true, -1e9 elsewhere.

    The minimum of scores and bounds masks the scores. XNNPACK has no select operation: one in every
    layer would split the graph that it can run.
    """
    return ops.where(attention_mask, 1e9, -1e9)


def position_ids_from_padding(padding_mask):
    """Returns position ids that count real tokens only, so that padding on the left has no effect.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        int32 (batch, length): 0, 1, 2, … at real tokens, -1 at padding.
    """
    real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
    return ops.cumsum(real, axis=1) * real - 1


def zero_padding(x, padding_mask):
    """Sets ``x``, (batch, length, width) or (tokens, width), to zero where the mask is zero."""
    real = ops.cast(ops.cast(padding_mask, "bool"), x.dtype)
    return x * ops.expand_dims(real, -1)


def check_length(length: Any, max_positions: int | None) -> None:
    """Raises a ``ValueError`` if a known input length exceeds the model's number of positions."""
    if max_positions is not None and isinstance(length, int) and length > max_positions:
        raise ValueError(
            f"The input is {length} tokens long; this model has {max_positions} positions."
        )


class MemoryMask(keras.layers.Layer):
    """The attention mask for keys from a memory and from this segment.

    A layer, because lengths are unknown until it is called.

    Call:
        padding_mask: (batch, length), non-zero at real tokens, for a memory without padding; or
            (batch, earlier length + length).
        memory: (batch, memory length, width).
        x: (batch, length, …). Only the shapes of ``memory`` and ``x`` are read.
        hidden: (batch, length or 1, length or 1), non-zero where a query (second axis) must not
            attend to a key of this segment (third axis); None to hide nothing.

    Returns:
        Boolean (batch, 1, length or 1, memory length + length).
    """

    def call(self, padding_mask, memory, x, hidden=None):
        before, length = ops.shape(memory)[1], ops.shape(x)[1]
        real = ops.ones_like(memory[:, :, 0], dtype="bool")
        real = ops.concatenate([real, ops.cast(padding_mask, "bool")], axis=1)
        real = real[:, ops.shape(real)[1] - before - length :]  # (batch, keys)
        earlier, seen = ops.expand_dims(real[:, :before], 1), ops.expand_dims(real[:, before:], 1)
        if hidden is not None:
            seen = ops.logical_and(seen, ops.logical_not(ops.cast(hidden, "bool")))
            earlier = ops.logical_and(earlier, ops.ones_like(seen[:, :, :1]))  # (batch, queries, …)
        return ops.expand_dims(ops.concatenate([earlier, seen], axis=-1), 1)

    def compute_output_spec(self, padding_mask, memory, x, hidden=None):
        queries = 1 if hidden is None else None
        return keras.KerasTensor((x.shape[0], 1, queries, None), "bool")


class CausalPermutation(keras.layers.Layer):
    """Inputs of a permutation language model that make it predict each token from earlier ones.

    Call:
        token_ids: (batch, length); only its shape is read.

    Returns:
        ``(perm_mask, target_mapping)``, both int32 (batch, length, length): 1 where a query must
        not attend to a key, which are the query itself and later tokens; and the identity matrix.
    """

    def call(self, token_ids):
        positions = ops.cumsum(ops.ones_like(token_ids), axis=1)  # (batch, length)
        queries, keys = ops.expand_dims(positions, 2), ops.expand_dims(positions, 1)
        return ops.cast(keys >= queries, "int32"), ops.cast(ops.equal(keys, queries), "int32")

    def compute_output_spec(self, token_ids):
        batch, length = token_ids.shape
        shape = (batch, length, length)
        return keras.KerasTensor(shape, "int32"), keras.KerasTensor(shape, "int32")


class Distances(keras.layers.Layer):
    """Query position minus key position, for all pairs.

    A layer, because lengths are unknown until it is called.

    Args:
        max_positions: the maximum input length; None for no limit.

    Call:
        x: (batch, length, …).
        memory: (batch, memory length, …), earlier keys than ``x``; None for no memory. Only the
            shapes are read.

    Returns:
        int32 (length, memory length + length): 0 at the query itself, negative at later keys.
    """

    def __init__(self, max_positions: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.max_positions = max_positions

    def call(self, x, memory=None):
        check_length(ops.shape(x)[1], self.max_positions)
        queries, before = ops.shape(x)[1], 0 if memory is None else ops.shape(memory)[1]
        ends = ops.expand_dims(ops.arange(0, queries, dtype="int32") + before, 1)
        return ends - ops.expand_dims(ops.arange(0, before + queries, dtype="int32"), 0)

    def compute_output_spec(self, x, memory=None):
        return keras.KerasTensor((None, None), "int32")


def causal_mask(distances, window=None):
    """Returns the causal mask: a query may attend to its own position and to earlier ones.

    Args:
        distances: (length, keys), from ``Distances``.
        window: the number of keys that a query may attend to, its own included; None for all.

    Returns:
        Boolean (length, keys).
    """
    causal = distances >= 0
    return causal if window is None else ops.logical_and(causal, distances < window)


def local_mask(distances, reach):
    """Returns a local mask: a query may attend to positions at most ``reach`` away on either side.

    Args:
        distances: (length, keys), from ``Distances``.

    Returns:
        Boolean (length, keys).
    """
    return ops.abs(distances) <= reach


def other_segment(segment_ids, memory):
    """Returns whether query and key are in different segments; all of the memory is in segment 0.

    Args:
        segment_ids: int (batch, length).
        memory: (batch, memory length, width); only its shape is read.

    Returns:
        Boolean (batch, length, memory length + length).
    """
    before = ops.zeros_like(memory[:, :, 0], dtype=segment_ids.dtype)
    keys = ops.concatenate([before, segment_ids], axis=1)
    return ops.not_equal(ops.expand_dims(segment_ids, 2), ops.expand_dims(keys, 1))


def causal_padding_mask(padding_mask, length, start=None):
    """Returns the causal mask combined with a padding mask.

    Args:
        padding_mask: (batch, keys), non-zero at real tokens.
        length: the number of queries.
        start: the position of the first query; None if the queries are the last positions.

    Returns:
        Boolean (batch, 1, length, keys).
    """
    count = ops.shape(padding_mask)[1]
    start = count - length if start is None else start
    keys = ops.arange(count)  # (keys,)
    queries = ops.expand_dims(ops.arange(length) + start, 1)  # (queries, 1)
    return ops.logical_and(
        ops.expand_dims(ops.expand_dims(ops.expand_dims(keys, 0) <= queries, 0), 0),
        attention_mask_from_padding(padding_mask),
    )


class DecoderMask(keras.layers.Layer):
    """Position ids and masks for tokens among the tokens of ``padding_mask``.

    A layer, because lengths are unknown until it is called.

    Call:
        token_ids: int (batch, length).
        padding_mask: (batch, keys), non-zero at real tokens; padding may be on either side.
        cache_length: the position of the first of ``token_ids`` in ``padding_mask``, an int32
            scalar; None if they are the last ones.

    Returns:
        ``(position_ids, attention_mask, token_mask)``: int32 (batch, length), which count real
        tokens only and are 0 before the first one; the mask of ``causal_padding_mask``; and the
        part of ``padding_mask`` for ``token_ids``, (batch, length).
    """

    def call(self, token_ids, padding_mask, cache_length=None):
        batch, length = ops.shape(token_ids)
        start = ops.shape(padding_mask)[1] - length if cache_length is None else cache_length
        real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
        positions = ops.maximum(ops.cumsum(real, axis=1) - 1, 0)
        # A slice of this size keeps a length that is known while the graph is traced.
        position_ids, token_mask = (
            ops.slice(x, (0, start), (batch, length)) for x in (positions, padding_mask)
        )
        return position_ids, causal_padding_mask(padding_mask, length, start), token_mask

    def compute_output_spec(self, token_ids, padding_mask, cache_length=None):
        (batch, length), keys = token_ids.shape, padding_mask.shape[1]
        return (
            keras.KerasTensor((batch, length), "int32"),
            keras.KerasTensor((batch, 1, length, keys), "bool"),
            keras.KerasTensor((batch, length), padding_mask.dtype),
        )
