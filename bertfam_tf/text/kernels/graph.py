"""Graph functions that the tokenizers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.kernels.internals import parts_of

TextLike: TypeAlias = str | Sequence[str] | tf.Tensor | tf.RaggedTensor


class Pieces(NamedTuple):
    """The pieces of a batch of texts, as flat values and row splits.

    Fields:
        ids: int32 [n].
        starts, ends: integer [n], the bytes of its text that each piece covers (end exclusive);
            None where offsets are not computed.
        splits: int64 [batch + 1], row splits: where in ``ids`` each text begins.
    """

    ids: tf.Tensor
    starts: Any
    ends: Any
    splits: tf.Tensor

    def rows(self) -> tf.Tensor:
        """Returns int64 [n], the index of each piece's text."""
        return row_of_each(self.splits, tf.size(self.ids, tf.int64))

    @classmethod
    def from_tensors(cls, tensors: Sequence[tf.Tensor]) -> Pieces:
        """Builds pieces from the result of ``tensors``."""
        if len(tensors) == 2:
            return cls(tensors[0], None, None, tensors[1])
        return cls(*tensors)

    def tensors(self) -> list[tf.Tensor]:
        """Returns ids, starts and ends if there are any, and splits."""
        return [part for part in self if part is not None]

    def keep(self, mask: tf.Tensor) -> Pieces:
        """Returns the pieces where ``mask``, bool [n], is true."""
        kept = tf.where(mask)[:, 0]
        before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], 0)
        return Pieces(
            tf.gather(self.ids, kept),
            None if self.starts is None else tf.gather(self.starts, kept),
            None if self.ends is None else tf.gather(self.ends, kept),
            tf.gather(before, self.splits),
        )

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """Returns ``values``, [n], as ragged [batch, (pieces)]."""
        return tf.RaggedTensor.from_row_splits(values, self.splits, validate=False)


def row_of_each(splits: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns int64 [size], the row index of each value.

    Args:
        splits: int64 [rows + 1], row splits.
        size: int64 scalar, the last of ``splits``.
    """
    # RaggedTensor.value_rowids does the same in more operations, which dominate on short texts.
    inner = splits[1:-1]
    return tf.cumsum(tf.scatter_nd(inner[:, tf.newaxis], tf.ones_like(inner), [size + 1]))[:-1]


def repeats(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Repeats rows.

    Args:
        counts: integer [n], how often to repeat each row.

    Returns:
        ``(rows, places, splits)``, int64: the row of each value, [sum of counts]; its place in the
        row; and row splits, [n + 1].
    """
    # ``tf.repeat`` makes a table as wide as the largest count.
    splits = tf.concat([[0], tf.cumsum(tf.cast(counts, tf.int64))], 0)
    rows = row_of_each(splits, splits[-1])
    return rows, tf.range(splits[-1]) - tf.gather(splits, rows), splits


def previous(values: tf.Tensor, first: Any) -> tf.Tensor:
    """Returns [n], the value before each of ``values``, [n]; ``first`` for the first one."""
    return tf.concat([[first], values], 0)[:-1]


def following(values: tf.Tensor, last: Any) -> tf.Tensor:
    """Returns [n], the value after each of ``values``, [n]; ``last`` for the last one."""
    return tf.concat([values, [last]], 0)[1:]


def substrings(text: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns substrings of one text.

    Args:
        text: string scalar.
        starts: integer [n], the first byte of each substring.
        ends: integer [n], its end (exclusive).

    Returns:
        string [n].
    """
    return parts_of(text[tf.newaxis], starts, ends, tf.stack([0, tf.size(starts, tf.int64)]))


def original_spans(
    raw: tf.RaggedTensor, source: tf.RaggedTensor, rows: tf.Tensor, starts: Any, ends: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps spans in texts that FastBertNormalize changed to spans in the original texts.

    Args:
        raw: uint8 [batch, (bytes)], the original texts.
        source: integer [batch, (normalized bytes)], from ``normalize_with_offsets``.
        rows: int64 [n], the index of each span's text.
        starts: integer [n], the first byte of each span in the normalized text.
        ends: integer [n], its end (exclusive); no span is empty.

    Returns:
        ``(starts, ends)``, int32 [n], in bytes of the original texts: whole characters.
    """
    base = tf.gather(source.row_splits, rows)
    start = tf.gather(source.values, base + starts)
    last = tf.gather(source.values, base + ends - 1)
    # The bytes of a replaced character have the offset of its first byte, from which its width
    # follows; the bytes of unchanged characters have their own.
    byte = tf.cast(tf.gather(raw.values, tf.gather(raw.row_splits, rows) + last), tf.int32)
    return tf.cast(start, tf.int32), tf.cast(last, tf.int32) + utf8_width(byte)


def utf8_width(byte: tf.Tensor) -> tf.Tensor:
    """Returns int32 [n], how many bytes the characters have that begin with ``byte``, int32 [n]."""
    wide = [tf.cast(byte >= lead, tf.int32) for lead in (0xC2, 0xE0, 0xF0)]
    return 1 + wide[0] + wide[1] + wide[2]


def unlikely(
    condition: tf.Tensor,
    function: Callable[..., Sequence[tf.Tensor]],
    values: list[tf.Tensor],
    others: list[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns ``function(*values, *others)`` if ``condition`` holds, else ``values``.

    ``tf.cond`` in a graph is lowered to switches that visit every node of the branch that is not
    taken, which takes longer than tokenizing a sentence. The operation used here skips that
    branch.
    """

    def concrete(body: Callable, inputs: list[tf.Tensor]):
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
        return tf.function(body, autograph=False).get_concrete_function(*specs)

    inputs = values + others
    traced = concrete(lambda *tensors: tuple(function(*tensors)), inputs)
    inputs = inputs + list(traced.captured_inputs)
    left = concrete(lambda *tensors: tensors[: len(values)], inputs)
    # The stateless operation does not accept resources (tables, models).
    pure = not any(value.dtype == tf.resource for value in inputs)
    results = (tf.raw_ops.StatelessIf if pure else tf.raw_ops.If)(
        cond=condition,
        input=inputs,
        Tout=[value.dtype for value in values],
        then_branch=traced,
        else_branch=left,
    )
    for result, value in zip(results, values, strict=True):
        result.set_shape([None] * value.shape.rank)
    return results


def repeated(
    condition: Callable[..., tf.Tensor],
    body: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    shape_invariants: Sequence[tf.TensorShape] | None = None,
) -> Any:
    """Runs a loop like ``tf.while_loop``, as one operation.

    In a session, as in TF Serving, a loop in a graph is lowered to nodes in frames of their own, in
    which the branches of ``unlikely`` are not allowed; this one is kept as an operation.
    """
    results = tf.while_loop(condition, body, values, shape_invariants)
    if not tf.executing_eagerly():
        loop = tf.nest.flatten(results, expand_composites=True)[0].op
        assert loop.type in ("While", "StatelessWhile"), loop.type
        loop._set_attr("_lower_using_switch_merge", attr_value_pb2.AttrValue(b=False))
    return results


def flags(positions: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns bool [size], true at ``positions``, integer [k]; a position ``size`` is ignored."""
    counts = tf.scatter_nd(positions[:, tf.newaxis], tf.ones_like(positions), [size + 1])
    return counts[:-1] > 0


def reached(starts: tf.Tensor, next_nodes: tf.Tensor) -> tf.Tensor:
    """Returns bool [n], which nodes are reached from some nodes.

    Args:
        starts: int64 [k], these nodes.
        next_nodes: int64 [n], the node after each, ``n`` if none follows.
    """
    size = tf.size(next_nodes, tf.int64)
    # After 2, 4, 8, … steps; the last node, ``size``, follows itself.
    next_nodes = tf.concat([next_nodes, [size]], 0)

    def doubled(used: tf.Tensor, next_nodes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        after = tf.boolean_mask(next_nodes, used)
        return used | flags(after, size + 1), tf.gather(next_nodes, next_nodes)

    used, _ = repeated(
        lambda _, next_nodes: tf.reduce_any(next_nodes < size),
        doubled,
        (flags(starts, size + 1), next_nodes),
    )
    return used[:-1]


def windows_equal(values: tf.Tensor, positions: tf.Tensor, patterns: np.ndarray) -> tf.Tensor:
    """Returns bool [k, p], whether each pattern occurs at each of the positions in a sequence.

    Args:
        values: int32 [n], the sequence.
        positions: int64 [k].
        patterns: int32 [p, m], padded with -1.
    """
    width = patterns.shape[1]
    padded_values = tf.concat([values, tf.fill([width], -2)], 0)
    window = tf.gather(padded_values, positions[:, tf.newaxis] + tf.range(width, dtype=tf.int64))
    return tf.reduce_all((window[:, tf.newaxis] == patterns) | (patterns < 0), -1)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int32 [rows, longest], padded with -1."""
    result = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for index, row in enumerate(rows):
        result[index, : len(row)] = row
    return result


def word_edges(
    data: tf.Tensor, source: tf.RaggedTensor, mark: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the words of texts whose only white space is " ".

    Args:
        data: integer [bytes], the bytes of all texts.
        source: the result of ``normalize_with_offsets``: for each byte of a text, and for its end,
            the offset in the original text.
        mark: a byte that is always a separate word.

    Returns:
        ``(rows, first, last)``, int64 [words]: the index of the word's text, and its first and last
        byte in ``data``.
    """
    size = tf.size(data, tf.int64)
    begins = text_begins(source)
    word = data != ord(" ")
    parted = flags(begins, size)[1:] | ~word[1:] | ~word[:-1]
    if mark is not None:
        parted |= (data[1:] == mark) | (data[:-1] == mark)
    first = tf.where(word & tf.concat([[True], parted], 0)[:size])[:, 0]
    last = tf.where(word & tf.concat([parted, [True]], 0)[:size])[:, 0]
    return tf.gather(row_of_each(begins, size), first), first, last


def text_begins(source: tf.RaggedTensor) -> tf.Tensor:
    """Returns int64 [batch + 1], the row splits of the bytes that ``source`` has offsets for."""
    # Each row of ``source`` has one more entry, for the end of the text.
    return source.row_splits - tf.range(tf.size(source.row_splits, tf.int64))


def over_any_rank(text: TextLike, function: Any) -> tuple[Any, ...]:
    """Applies a function of string [n] to text of any shape.

    Args:
        text: the text.
        function: string [n] -> a tuple of ragged [n, (pieces)].

    Returns:
        A tuple of tensors with one dimension more than ``text``, ragged except for a scalar.

    Raises:
        ValueError: if the rank of ``text`` is unknown, or a string has a lone surrogate.
        TypeError: ``text`` does not have dtype string.
    """
    if not isinstance(text, tf.Tensor | tf.RaggedTensor):
        text = _as_tensor(text)
    if text.dtype != tf.string:
        raise TypeError(f"text has dtype {text.dtype.name}, expected string.")
    rank = text.shape.rank
    if rank is None:
        raise ValueError("text has no known rank, expected a scalar or string [batch].")
    if rank == 0:
        return tuple(rows.values for rows in function(text[tf.newaxis]))
    if rank == 1:
        return tuple(function(text))
    if not isinstance(text, tf.RaggedTensor):
        text = tf.RaggedTensor.from_tensor(text, ragged_rank=rank - 1)
    return tuple(text.with_flat_values(rows) for rows in function(text.flat_values))


def _as_tensor(text: Any) -> tf.Tensor | tf.RaggedTensor:
    make = tf.ragged.constant if _is_nested(text) else tf.constant
    try:
        return make(text, tf.string)
    except ValueError as error:
        for value in tf.nest.flatten(text):
            if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError(
                    f"text has the string {truncated_repr(value)} with a lone surrogate, which is "
                    'no character; expected valid text, as of value.encode("utf-8", "replace").'
                ) from error
        raise


def _is_nested(text: Any) -> bool:
    return isinstance(text, list | tuple) and any(isinstance(row, list | tuple) for row in text)
