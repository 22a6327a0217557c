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
