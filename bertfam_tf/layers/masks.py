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
