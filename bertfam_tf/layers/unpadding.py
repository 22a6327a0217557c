"""From padded batches to lists of real tokens, and back: what is no token is not computed.

Dense layers, norms and activations treat tokens one by one, so they run on (tokens, width); only
attention, which needs the tokens of an example side by side, pads again.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from bertfam_tf.layers.fused import take


class TokenLayout(NamedTuple):
    """Where the real tokens of a padded batch are.

    Fields:
        positions: int32 (tokens,), each token's index among the batch · length positions.
        tokens: int32 (batch, length), each position's index among the tokens; at padding that of
            another token of the same example.
    """

    positions: Any
    tokens: Any


class RealTokens(keras.layers.Layer):
    """The layout of a padded batch.

    The first position of each example counts as a token even if it is padding: heads read it, and
    an example without any token has a place in the list too.

    Call:
        padding_mask: (batch, length), non-zero at real tokens; padding may be on either side.

    Returns:
        A ``TokenLayout``.
    """

    def call(self, padding_mask):
        first = ops.concatenate(
            [ops.ones_like(padding_mask[:, :1]), ops.zeros_like(padding_mask[:, 1:])], axis=1
        )
        real = ops.reshape(ops.logical_or(ops.cast(padding_mask, "bool"), first > 0), (-1,))
        tokens = ops.cumsum(ops.cast(real, "int32")) - 1
        return TokenLayout(
            ops.cast(ops.nonzero(real)[0], "int32"),
            ops.reshape(tokens, ops.shape(padding_mask)),
        )

    def compute_output_spec(self, padding_mask):
        return TokenLayout(
            keras.KerasTensor((None,), "int32"), keras.KerasTensor(padding_mask.shape, "int32")
        )


def unpad(x, layout: TokenLayout | None):
    """(batch, length, …) to (tokens, …); ``x`` itself if the layout is None."""
    if layout is None:
        return x
    return take(ops.reshape(x, (-1, *x.shape[2:])), layout.positions)


def first_tokens(x, layout: TokenLayout | None):
    """The first position of each example: (batch, length, …) or (tokens, …) to (batch, …)."""
    return x[:, 0] if layout is None else take(x, layout.tokens[:, 0])


def pad(x, layout: TokenLayout | None):
    """(tokens, …) to (batch, length, …), with another token's values at padding.

    ``x`` itself if the layout is None.
    """
    return x if layout is None else take(x, layout.tokens)
