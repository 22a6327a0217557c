"""Masks are data: boolean tensors (batch, heads or 1, queries or 1, keys), true where allowed.

Several combine by ``logical_and``; attention broadcasts them.
"""

import keras
from keras import ops


def attention_mask_from_padding(padding_mask):
    """Lets every position attend to the real tokens of its own row.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        Boolean (batch, 1, 1, length).
    """
    # Indexing with None does not convert to TFLite on dynamic shapes; expand_dims does.
    return ops.expand_dims(ops.expand_dims(ops.cast(padding_mask, "bool"), 1), 1)


def position_ids_from_padding(padding_mask):
    """Position ids that count the real tokens of each row alone.

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


class MemoryMask(keras.layers.Layer):
    """Lets positions attend to memory and to the real tokens that ``hidden`` does not exclude.

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
        real = real[:, ops.shape(real)[1] - before - length :]  # (batch, keys)
        earlier, seen = ops.expand_dims(real[:, :before], 1), ops.expand_dims(real[:, before:], 1)
        if hidden is not None:
            seen = ops.logical_and(seen, ops.logical_not(ops.cast(hidden, "bool")))
            # As many queries as the rest has.
            earlier = ops.logical_and(earlier, ops.ones_like(seen[:, :, :1]))
        return ops.expand_dims(ops.concatenate([earlier, seen], axis=-1), 1)

    def compute_output_spec(self, padding_mask, memory, x, hidden=None):
        queries = 1 if hidden is None else None
        return keras.KerasTensor((x.shape[0], 1, queries, None), "bool")


class CausalPermutation(keras.layers.Layer):
    """The inputs that make a permutation language model predict each token from those before it.

    Call:
        token_ids: (batch, length); only its shape is read.

    Returns:
        ``(perm_mask, target_mapping)``: int32 (batch, length, length), 1 where a token must not
        see another, as all must not themselves and later ones; and the identity matrix.
    """

    def call(self, token_ids):
        places = ops.cumsum(ops.ones_like(token_ids), axis=1)
        rows, columns = ops.expand_dims(places, 2), ops.expand_dims(places, 1)
        return ops.cast(columns >= rows, "int32"), ops.cast(ops.equal(columns, rows), "int32")

    def compute_output_spec(self, token_ids):
        batch, length = token_ids.shape
        shape = (batch, length, length)
        return keras.KerasTensor(shape, "int32"), keras.KerasTensor(shape, "int32")


class Distances(keras.layers.Layer):
    """How far back each key stands from each query: query position minus key position.

    A layer, because lengths are only known in a call.

    Call:
        x: (batch, length, …).
        memory: (batch, memory length, …), keys before those of ``x``; None for none. Of both only
            the shapes are read.

    Returns:
        int32 (length, memory length + length): 0 at the query itself, negative at later keys.
    """

    def call(self, x, memory=None):
        queries, before = ops.shape(x)[1], 0 if memory is None else ops.shape(memory)[1]
        ends = ops.expand_dims(ops.arange(0, queries, dtype="int32") + before, 1)
        return ends - ops.expand_dims(ops.arange(0, before + queries, dtype="int32"), 0)

    def compute_output_spec(self, x, memory=None):
        return keras.KerasTensor((None, None), "int32")


def causal_mask(distances, window=None):
    """Lets positions attend to themselves and to earlier ones.

    Args:
        distances: (length, keys), from ``Distances``.
        window: how many keys a position sees, itself included; None for all.

    Returns:
        Boolean (length, keys).
    """
    causal = distances >= 0
    return causal if window is None else ops.logical_and(causal, distances < window)


def local_mask(distances, reach):
    """Lets positions attend to those at most ``reach`` away on either side.

    Args:
        distances: (length, keys), from ``Distances``.

    Returns:
        Boolean (length, keys).
    """
    return ops.abs(distances) <= reach


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


def causal_padding_mask(padding_mask, length):
    """Lets the last positions attend to the real tokens at and before each.

    Args:
        padding_mask: (batch, cached length + length), non-zero at real tokens.
        length: the number of queries.

    Returns:
        Boolean (batch, 1, length, cached length + length).
    """
    keys = ops.arange(ops.shape(padding_mask)[1])
    queries = ops.expand_dims(keys[ops.shape(keys)[0] - length :], 1)
    return ops.logical_and(
        ops.expand_dims(ops.expand_dims(ops.expand_dims(keys, 0) <= queries, 0), 0),
        attention_mask_from_padding(padding_mask),
    )


class DecoderMask(keras.layers.Layer):
    """Position ids and causal mask of the last tokens that ``padding_mask`` covers.

    A layer, because lengths are only known in a call.

    Call:
        token_ids: int (batch, length).
        padding_mask: (batch, cached length + length), non-zero at real tokens; padding may stand
            on either side.

    Returns:
        ``(position_ids, attention_mask)``: int32 (batch, length), which count the real tokens of
        each row, 0 where there is none yet; and as ``causal_padding_mask`` returns it.
    """

    def call(self, token_ids, padding_mask):
        length = ops.shape(token_ids)[1]
        real = ops.cast(ops.cast(padding_mask, "bool"), "int32")
        positions = ops.maximum(ops.cumsum(real, axis=1) - 1, 0)
        start = ops.shape(padding_mask)[1] - length
        return positions[:, start:], causal_padding_mask(padding_mask, length)

    def compute_output_spec(self, token_ids, padding_mask):
        (batch, length), keys = token_ids.shape, padding_mask.shape[1]
        return (
            keras.KerasTensor((batch, length), "int32"),
            keras.KerasTensor((batch, 1, length, keys), "bool"),
        )
