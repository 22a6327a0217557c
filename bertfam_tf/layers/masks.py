"""Masks are data: boolean tensors (batch, heads or 1, queries or 1, keys), true where allowed.

Several combine by ``logical_and``; attention broadcasts them.
"""

import keras
from keras import ops


def keys_from_padding(padding_mask):
    """Lets every position attend to the real tokens of its own row.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        Boolean (batch, 1, 1, length).
    """
    # Indexing with None does not convert to TFLite on dynamic shapes; expand_dims does.
    return ops.expand_dims(ops.expand_dims(ops.cast(padding_mask, "bool"), 1), 1)


def real_positions(padding_mask):
    """Positions that count the real tokens of each row alone.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        int32 (batch, length): 0, 1, 2, … at real tokens, -1 at padding.
    """
    real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
    return ops.cumsum(real, axis=1) * real - 1


def zero_padding(x, padding_mask):
    """``x`` (batch, length, width) with zeros at padding."""
    real = ops.cast(ops.cast(padding_mask, "bool"), x.dtype)
    return x * ops.expand_dims(real, -1)


class KeysWithMemory(keras.layers.Layer):
    """Lets positions attend to memory and tokens that are real, and not hidden from them.

    A layer, because lengths are only known in a call.

    Call:
        padding_mask: (batch, length), non-zero at real tokens; all of the memory is real then. Or
            (batch, earlier length + length), where earlier tokens may be padding too.
        memory: (batch, memory length, width).
        x: (batch, length, …). Of both only the shapes are read.
        hidden: (batch, length or 1, length or 1), non-zero where a token must not see another.

    Returns:
        Boolean (batch, 1, length or 1, memory length + length).
    """

    def call(self, padding_mask, memory, x, hidden=None):
        before, length = ops.shape(memory)[1], ops.shape(x)[1]
        real = ops.ones_like(memory[:, :, 0], dtype="bool")
        real = ops.concatenate([real, ops.cast(padding_mask, "bool")], axis=1)
        real = real[:, ops.shape(real)[1] - before - length :]
        earlier, seen = ops.expand_dims(real[:, :before], 1), ops.expand_dims(real[:, before:], 1)
        if hidden is not None:
            seen = ops.logical_and(seen, ops.logical_not(ops.cast(hidden, "bool")))
            # As many queries as the rest has.
            earlier = ops.logical_and(earlier, ops.ones_like(seen[:, :, :1]))
        return ops.expand_dims(ops.concatenate([earlier, seen], axis=-1), 1)

    def compute_output_spec(self, padding_mask, memory, x, hidden=None):
        queries = 1 if hidden is None else None
        return keras.KerasTensor((x.shape[0], 1, queries, None), "bool")


class LeftToRight(keras.layers.Layer):
    """What has a model of any order predict each token from those before it.

    Call:
        token_ids: (batch, length); only its shape is read.

    Returns:
        ``(perm_mask, target_mapping)``: int32 (batch, length, length), 1 where a token must not
        see another, as all do themselves and what stands behind them; and 1 where the two
        positions are one.
    """

    def call(self, token_ids):
        places = ops.cumsum(ops.ones_like(token_ids), axis=1)
        rows, columns = ops.expand_dims(places, 2), ops.expand_dims(places, 1)
        return ops.cast(columns >= rows, "int32"), ops.cast(ops.equal(columns, rows), "int32")

    def compute_output_spec(self, token_ids):
        batch, length = token_ids.shape
        shape = (batch, length, length)
        return keras.KerasTensor(shape, "int32"), keras.KerasTensor(shape, "int32")


def nothing_behind(distances, reach=None):
    """Lets positions attend to themselves and to what stands before them.

    Args:
        distances: (length, keys), from ``Distances``.
        reach: how many keys a position sees, itself included; None for all.

    Returns:
        Boolean (length, keys).
    """
    causal = distances >= 0
    return causal if reach is None else ops.logical_and(causal, distances < reach)


def other_segment(segment_ids, memory):
    """Where a key is of another segment than the query; all of the memory is of segment 0.

    Args:
        segment_ids: int (batch, length).
        memory: (batch, memory length, width); only its shape is read.

    Returns:
        Boolean (batch, length, memory length + length).
    """
    before = ops.zeros_like(memory[:, :, 0], dtype=segment_ids.dtype)
    keys = ops.concatenate([before, segment_ids], axis=1)
    return ops.not_equal(ops.expand_dims(segment_ids, 2), ops.expand_dims(keys, 1))


def causal(padding_mask, length):
    """Lets the last positions attend to the real tokens at and before each.

    Args:
        padding_mask: (batch, cached length + length), non-zero at real tokens.
        length: how many positions ask.

    Returns:
        Boolean (batch, 1, length, cached length + length).
    """
    keys = ops.arange(ops.shape(padding_mask)[1])
    queries = ops.expand_dims(keys[ops.shape(keys)[0] - length :], 1)
    return ops.logical_and(
        ops.expand_dims(ops.expand_dims(ops.expand_dims(keys, 0) <= queries, 0), 0),
        keys_from_padding(padding_mask),
    )


class DecoderMask(keras.layers.Layer):
    """Positions and mask of tokens that stand at the end of what ``padding_mask`` covers.

    A layer, because lengths are only known in a call.

    Call:
        token_ids: int (batch, length).
        padding_mask: (batch, cached length + length), non-zero at real tokens; padding may stand
            on either side.

    Returns:
        ``(position_ids, attention_mask)``: int32 (batch, length), which count the real tokens of
        each row, 0 where there is none yet; and as ``causal`` returns it.
    """

    def call(self, token_ids, padding_mask):
        length = ops.shape(token_ids)[1]
        real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
        positions = ops.maximum(ops.cumsum(real, axis=1) - 1, 0)
        start = ops.shape(padding_mask)[1] - length
        return positions[:, start:], causal(padding_mask, length)

    def compute_output_spec(self, token_ids, padding_mask):
        (batch, length), keys = token_ids.shape, padding_mask.shape[1]
        return (
            keras.KerasTensor((batch, length), "int32"),
            keras.KerasTensor((batch, 1, length, keys), "bool"),
        )
