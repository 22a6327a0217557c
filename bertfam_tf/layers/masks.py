"""Masks are data: boolean tensors (batch, heads or 1, queries or 1, keys), true where allowed.

Several combine by ``logical_and``; attention broadcasts them.
"""

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


def keys_with_memory(padding_mask, memory, hidden=None):
    """Lets positions attend to all of the memory, and to real tokens that are not hidden from them.

    Args:
        padding_mask: (batch, length), non-zero at real tokens.
        memory: (batch, memory length, width); only its shape is read.
        hidden: (batch, length or 1, length or 1), non-zero where a token must not see another.

    Returns:
        Boolean (batch, 1, length or 1, memory length + length).
    """
    seen = ops.expand_dims(ops.cast(padding_mask, "bool"), 1)
    if hidden is not None:
        seen = ops.logical_and(seen, ops.logical_not(ops.cast(hidden, "bool")))
    before = ops.expand_dims(ops.ones_like(memory[:, :, 0], dtype="bool"), 1)
    before = ops.logical_or(before, seen[:, :, :1])  # as many queries as the rest has
    return ops.expand_dims(ops.concatenate([before, seen], axis=-1), 1)


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
