"""Conversion between padded batches and lists of real tokens, so that padding is never computed.

Dense layers, norms and activations treat tokens independently, so they run on (tokens, width). Only
attention needs the tokens of an example in one row. Its cost grows with the square of the length,
so it pads again by groups of examples of similar length.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from bertfam_tf.layers.fused import split_rows, take, with_gradient
from bertfam_tf.layers.masks import score_bounds
from bertfam_tf.layers.tracing import call_once_traced

# More groups have less padding, but each group takes eight operations per layer, which cost time
# even if the batch is one example.
_GROUPS = 4
# At most this many examples are considered as the first of a group.
_MOST_STARTS = 256


class TokenLayout(NamedTuple):
    """Where the real tokens of a padded batch are.

    Tokens are listed by example, the longest example first.

    Fields:
        positions: int32 (tokens,), each token's index among the batch · length positions.
        tokens: int32 (batch, length), each position's index among the tokens; at padding, the index
            of another token of the same example.
        listed: bool (batch, length), which positions have a token in the list.
        examples: int32 (batch,), indexes among the examples of the batch, longest first.
        counts: int32 (batch,), numbers of tokens, in the order of ``examples``.
        rows: int32 (tokens,), each token's index among ``examples``.
        hidden: bool (tokens,), which tokens may not be attended to.
    """

    positions: Any
    tokens: Any
    listed: Any
    examples: Any
    counts: Any
    rows: Any
    hidden: Any


class SingleExample(NamedTuple):
    """The layout of a batch of one example without padding, whose tokens are (length, …)."""


class RealTokens(keras.layers.Layer):
    """The layout of a padded batch.

    The first position of each example counts as a token even if it is padding: heads read it, and
    an example without any token needs an entry in the list. Other tokens may attend to such a
    position only in those examples.

    Call:
        padding_mask: (batch, length), non-zero at real tokens; padding may be on either side.

    Returns:
        A ``TokenLayout``.
    """

    def call(self, padding_mask):
        first = ops.concatenate(
            [ops.ones_like(padding_mask[:, :1]), ops.zeros_like(padding_mask[:, 1:])], axis=1
        )
        listed = ops.logical_or(ops.cast(padding_mask, "bool"), first > 0)  # (batch, length)
        counts = ops.sum(ops.cast(listed, "int32"), axis=1)
        examples = ops.cast(ops.argsort(-counts), "int32")
        real, counts = take(listed, examples), take(counts, examples)
        rows, columns = (ops.cast(indices, "int32") for indices in ops.nonzero(real))  # (tokens,)
        tokens = ops.cumsum(ops.cast(ops.reshape(real, (-1,)), "int32")) - 1
        tokens = ops.reshape(tokens, ops.shape(padding_mask))
        positions = take(examples, rows) * ops.shape(padding_mask)[1] + columns
        padding = ops.equal(take(ops.reshape(padding_mask, (-1,)), positions), 0)
        return TokenLayout(
            positions,
            take(tokens, ops.argsort(examples)),
            listed,
            examples,
            counts,
            rows,
            ops.logical_and(padding, take(counts, rows) > 1),
        )

    def compute_output_spec(self, padding_mask):
        batch = padding_mask.shape[0]
        return TokenLayout(
            keras.KerasTensor((None,), "int32"),
            keras.KerasTensor(padding_mask.shape, "int32"),
            keras.KerasTensor(padding_mask.shape, "bool"),
            keras.KerasTensor((batch,), "int32"),
            keras.KerasTensor((batch,), "int32"),
            keras.KerasTensor((None,), "int32"),
            keras.KerasTensor((None,), "bool"),
        )


class AttentionGroup(NamedTuple):
    """Examples of similar length, padded to the longest of them.

    Fields:
        examples: int32 (size,), indexes among the examples of the batch.
        bounds: float32 (size, 1, 1, longest), the masked upper bounds of scores, see
            ``attention.score_bounds``.
        real: bool (size, longest), false at padding.
        to_group: int32 (size, heads, longest), indexes among the tokens · heads vectors of all
            heads; at padding, the vectors of the example's last token.
        to_tokens: int32 (tokens of the group, heads), indexes among the size · heads · longest
            vectors.
    """

    examples: Any
    bounds: Any
    real: Any
    to_group: Any
    to_tokens: Any


class AttentionGroups(keras.layers.Layer):
    """Divides a batch into groups of examples, so that attention computes less padding.

    Args:
        num_heads: the number of attention heads.

    Call:
        layout: a ``TokenLayout``.

    Returns:
        A tuple of ``AttentionGroup``. Their tokens are in the order of the layout; a group can be
        empty.
    """

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def call(self, layout):
        return call_once_traced(self, "_call", layout)

    def _call(self, layout):
        counts, rows, heads = layout.counts, layout.rows, self.num_heads
        starts = ops.cumsum(counts) - counts
        edges = _edges(counts)
        sizes = edges[1:] - edges[:-1]
        # One more entry, for groups that start after the last example.
        longest = take(ops.pad(counts, [[0, 1]], constant_values=1), edges[:-1])
        tokens_before = ops.concatenate([starts, ops.sum(counts, keepdims=True)])
        listed = take(tokens_before, edges)

        column = ops.expand_dims(ops.arange(ops.max(longest), dtype="int32"), 0)  # (1, longest)
        count = ops.expand_dims(counts, 1)  # (batch, 1)
        real = column < count  # (batch, longest)
        tokens = ops.expand_dims(starts, 1) + ops.minimum(column, count - 1)
        mask = ops.logical_and(real, ops.logical_not(take(layout.hidden, tokens)))
        bounds = ops.expand_dims(ops.expand_dims(score_bounds(mask), 1), 1)
        head = ops.arange(heads, dtype="int32")
        to_group = ops.expand_dims(tokens * heads, 1) + ops.expand_dims(head, 1)

        group = ops.sum(ops.cast(ops.expand_dims(rows, 1) >= edges[1:], "int32"), axis=1)
        width = ops.expand_dims(take(longest, group), 1)  # (tokens, 1)
        row = ops.expand_dims(rows - take(edges, group), 1)
        place = ops.arange(ops.shape(rows)[0], dtype="int32") - take(starts, rows)
        to_tokens = (row * heads + head) * width + ops.expand_dims(place, 1)  # (tokens, heads)

        parts = [
            split_rows(layout.examples, sizes),
            split_rows(bounds, sizes),
            split_rows(real, sizes),
            split_rows(to_group, sizes),
            split_rows(to_tokens, listed[1:] - listed[:-1]),
        ]
        return tuple(
            AttentionGroup(
                examples,
                bounds[..., : longest[i]],
                real[:, : longest[i]],
                to_group[..., : longest[i]],
                to_tokens,
            )
            for i, (examples, bounds, real, to_group, to_tokens) in enumerate(
                zip(*parts, strict=True)
            )
        )

    def compute_output_spec(self, layout):
        def group():
            return AttentionGroup(
                keras.KerasTensor((None,), "int32"),
                keras.KerasTensor((None, 1, 1, None), "float32"),
                keras.KerasTensor((None, None), "bool"),
                keras.KerasTensor((None, self.num_heads, None), "int32"),
                keras.KerasTensor((None, self.num_heads), "int32"),
            )

        return tuple(group() for _ in range(_GROUPS))


def _edges(counts):
    """Returns where groups of consecutive examples start and the last ends: int32 (groups + 1,).

    Dynamic programming over the examples at which a group may start minimises the number of
    position pairs.

    Args:
        counts: int32 (batch,), numbers of tokens in decreasing order.
    """
    number = ops.shape(counts)[0]
    step = number // _MOST_STARTS + 1
    starts = ops.concatenate([ops.arange(0, number, step, dtype="int32"), ops.stack([number])])
    squares = ops.square(ops.cast(ops.pad(counts, [[0, 1]]), "float32"))
    starting, ending = ops.expand_dims(starts, 1), ops.expand_dims(starts, 0)
    pairs = ops.cast(ending - starting, "float32") * ops.expand_dims(take(squares, starts), 1)
    pairs = ops.where(ending >= starting, pairs, float("inf"))  # (starts, ends)
    index = ops.expand_dims(ops.arange(ops.shape(starts)[0], dtype="int32"), 1)
    fewest, last_starts = pairs[0], []
    for _ in range(_GROUPS - 1):
        choices = ops.expand_dims(fewest, 1) + pairs
        fewest = ops.min(choices, axis=0)
        # The last index of the minimum; Keras' argmin takes four times as many operations.
        last_starts.append(ops.max(ops.where(choices <= fewest, index, 0), axis=0))
    edges = [ops.shape(starts)[0] - 1]
    for starts_of_last in reversed(last_starts):
        edges.insert(0, starts_of_last[edges[0]])
    return take(starts, ops.stack([0, *edges]))


def projections_by_group(x, groups: Sequence[AttentionGroup], count: int):
    """Gathers ``count`` projections of each token, side by side in (tokens, count · width).

    Returns:
        For each group a list of ``count`` tensors (size, heads, longest, head size).
    """
    heads = groups[0].to_group.shape[1]
    size = x.shape[-1] // (count * heads)
    x = ops.reshape(x, (-1, size))
    # By projection first, so that each is contiguous.
    head = ops.reshape(ops.arange(count * heads, dtype="int32"), (count, 1, heads, 1))
    return [ops.unstack(take(x, group.to_group[:, :1] * count + head), count) for group in groups]


def heads_by_group(x, groups: Sequence[AttentionGroup]):
    """Gathers (tokens, heads · head size) into (size, heads, longest, head size) for each group.

    Padding has the values of another token of the same example, and gets no gradient.
    """
    size = x.shape[-1] // groups[0].to_group.shape[1]

    def gather(x):
        x = ops.reshape(x, (-1, size))
        return [take(x, group.to_group) for group in groups]

    def gradient(*upstream):
        return _list_tokens(upstream, groups)

    return with_gradient(gather, gradient)(x)


def tokens_of_groups(heads: Sequence[Any], groups: Sequence[AttentionGroup]):
    """Inverts ``heads_by_group``."""

    def gather(*heads):
        return _list_tokens(heads, groups)

    def gradient(upstream):
        x = ops.reshape(upstream, (-1, heads[0].shape[-1]))
        real = [ops.expand_dims(ops.expand_dims(group.real, 1), -1) for group in groups]
        return [
            take(x, group.to_group) * ops.cast(mask, x.dtype)
            for group, mask in zip(groups, real, strict=True)
        ]

    return with_gradient(gather, gradient)(*heads)


def _list_tokens(heads, groups):
    count, size = heads[0].shape[1], heads[0].shape[-1]
    tokens = [
        take(ops.reshape(x, (-1, size)), group.to_tokens)
        for x, group in zip(heads, groups, strict=True)
    ]
    return ops.reshape(ops.concatenate(tokens, axis=0), (-1, count * size))


def in_order(x: Sequence[Any], groups: Sequence[AttentionGroup]):
    """Concatenates the (size, …) tensors of all groups in the order of the batch, (batch, …)."""
    examples = ops.concatenate([group.examples for group in groups])
    return take(ops.concatenate(x, axis=0), ops.argsort(examples))


def unpad(x, layout: TokenLayout | SingleExample | None):
    """Converts (batch, length, …) to (tokens, …); does nothing if the layout is None."""
    if layout is None:
        return x
    x = ops.reshape(x, (-1, *x.shape[2:]))
    return x if isinstance(layout, SingleExample) else take(x, layout.positions)


def first_tokens(x, layout: TokenLayout | SingleExample | None):
    """Selects each example's first position: (batch, length, …) or (tokens, …) to (batch, …)."""
    if isinstance(layout, SingleExample):
        return ops.slice(x, (0, 0), (1, x.shape[-1]))
    return x[:, 0] if layout is None else take(x, layout.tokens[:, 0])


def pad(x, layout: TokenLayout | SingleExample | None):
    """Converts (tokens, …) to (batch, length, …), with zeros at padding.

    ``x`` itself if the layout is None.
    """
    if layout is None:
        return x
    if isinstance(layout, SingleExample):
        return ops.expand_dims(x, 0)
    return _Pad()(x, layout) if keras.utils.is_keras_tensor(x) else _pad(x, layout)


def _pad(x, layout):
    def gather(x):
        padded = take(x, layout.tokens)
        axes = tuple(range(2, len(padded.shape)))
        return padded * ops.cast(ops.expand_dims(layout.listed, axes), padded.dtype)

    def gradient(upstream):
        return unpad(upstream, layout)

    return with_gradient(gather, gradient)(x)


class _Pad(keras.Operation):
    """``pad`` as a layer, for models that are being wired."""

    def call(self, x, layout):
        return _pad(x, layout)

    def compute_output_spec(self, x, layout):
        return keras.KerasTensor((*layout.tokens.shape, *x.shape[1:]), x.dtype)
