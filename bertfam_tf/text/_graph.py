"""Small graphs that the tokenizers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops.byte_splitter import gen_byte_splitter


class Pieces(NamedTuple):
    """Pieces of all rows on end.

    Fields:
        ids: int32 [n].
        starts, ends: integers [n], the bytes of the row's text that each piece covers; None where
            nobody asked for them.
        splits: int64 [rows + 1], where in `ids` each row begins.
    """

    ids: tf.Tensor
    starts: Any
    ends: Any
    splits: tf.Tensor

    def rows(self) -> tf.Tensor:
        """Returns int64 [n], the row of each piece."""
        return row_of_each(self.splits, tf.size(self.ids, tf.int64))

    def keep(self, mask: tf.Tensor) -> Pieces:
        """Returns the pieces where `mask`, bool [n], holds."""
        kept = tf.where(mask)[:, 0]
        before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], 0)
        return Pieces(
            tf.gather(self.ids, kept),
            None if self.starts is None else tf.gather(self.starts, kept),
            None if self.ends is None else tf.gather(self.ends, kept),
            tf.gather(before, self.splits),
        )

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """Returns `values`, [n], cut into rows."""
        return tf.RaggedTensor.from_row_splits(values, self.splits, validate=False)


def row_of_each(splits: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns int64 [size], the row that each of `size` values belongs to.

    Args:
        splits: int64 [rows + 1], at which value each row begins.
        size: int64 scalar, the last of `splits`.
    """
    # RaggedTensor.value_rowids does the same, in more operations than short texts can bear.
    inner = splits[1:-1]
    return tf.cumsum(tf.scatter_nd(inner[:, tf.newaxis], tf.ones_like(inner), [size + 1]))[:-1]


def substrings(text: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Cuts one string.

    Args:
        text: string scalar.
        starts: integers [n], the first byte of each part.
        ends: integers [n], the byte behind each.

    Returns:
        string [n].
    """
    return parts_of(text[tf.newaxis], starts, ends, tf.stack([0, tf.size(starts, tf.int64)]))


def parts_of(texts: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Cuts strings.

    Args:
        texts: string [batch].
        starts: integers [n], the first byte of each part.
        ends: integers [n], the byte behind each.
        splits: int64 [batch + 1], which parts are of which text.

    Returns:
        string [n].
    """
    # ByteSplitter.split_by_offsets checks its ragged arguments, which takes longer than to split.
    return gen_byte_splitter.tf_text_byte_split_by_offsets(
        input_values=texts,
        input_start_offsets=tf.cast(starts, tf.int32),
        input_end_offsets=tf.cast(ends, tf.int32),
        input_row_splits=splits,
    )[0]


def original_spans(
    raw: tf.RaggedTensor, source: tf.RaggedTensor, rows: tf.Tensor, starts: Any, ends: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps spans of texts that FastBertNormalize changed to the texts as they were given.

    Args:
        raw: uint8 [batch, (bytes)], the texts as given.
        source: integers [batch, (normalized bytes)], from `normalize_with_offsets`.
        rows: int64 [n], each span's row.
        starts: integers [n], the first byte of each span in the normalized text.
        ends: integers [n], the byte behind each span; no span is empty.

    Returns:
        int32 [n], first bytes, and int32 [n], the bytes behind: whole characters.
    """
    base = tf.gather(source.row_splits, rows)
    start = tf.gather(source.values, base + starts)
    last = tf.gather(source.values, base + ends - 1)
    # The offset of an altered character's bytes is that of the character's first byte, from which
    # its width is read; bytes of unaltered ones have their own.
    byte = tf.cast(tf.gather(raw.values, tf.gather(raw.row_splits, rows) + last), tf.int32)
    wide = [tf.cast(byte >= lead, tf.int32) for lead in (0xC2, 0xE0, 0xF0)]
    return tf.cast(start, tf.int32), tf.cast(last, tf.int32) + 1 + wide[0] + wide[1] + wide[2]


def unlikely(
    condition: tf.Tensor,
    function: Callable[..., Sequence[tf.Tensor]],
    values: list[tf.Tensor],
    others: list[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns `function(*values, *others)` if `condition` holds, else `values`.

    `tf.cond` in a graph visits, one by one, the nodes of the branch not taken; for the few pieces
    of a sentence that takes longer than to tokenize it.  The operation used here leaves them be.
    """

    def concrete(body: Callable, inputs: list[tf.Tensor]):
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
        return tf.function(body, autograph=False).get_concrete_function(*specs)

    inputs = values + others
    taken = concrete(lambda *tensors: tuple(function(*tensors)), inputs)
    inputs = inputs + list(taken.captured_inputs)
    left = concrete(lambda *tensors: tensors[: len(values)], inputs)
    # Resources (tables, models) are no pure values, so that the pure operation would refuse them.
    pure = not any(value.dtype == tf.resource for value in inputs)
    results = (tf.raw_ops.StatelessIf if pure else tf.raw_ops.If)(
        cond=condition,
        input=inputs,
        Tout=[value.dtype for value in values],
        then_branch=taken,
        else_branch=left,
    )
    for result, value in zip(results, values, strict=True):
        result.set_shape([None] * value.shape.rank)
    return results


def flags(positions: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns bool [size], true at `positions`, integers [k]; one equal to `size` is ignored."""
    counts = tf.scatter_nd(positions[:, tf.newaxis], tf.ones_like(positions), [size + 1])
    return counts[:-1] > 0


def windows_equal(values: tf.Tensor, positions: tf.Tensor, patterns: np.ndarray) -> tf.Tensor:
    """Returns bool [positions, patterns]: whether `values` from there on begin with the pattern.

    Args:
        values: int32 [n].
        positions: int64 [k].
        patterns: int32 [p, m], -1 behind a shorter one.
    """
    width = patterns.shape[1]
    padded_values = tf.concat([values, tf.fill([width], -2)], 0)
    window = tf.gather(padded_values, positions[:, tf.newaxis] + tf.range(width, dtype=tf.int64))
    return tf.reduce_all((window[:, tf.newaxis] == patterns) | (patterns < 0), -1)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int32 [rows, longest], -1 behind shorter rows."""
    result = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for index, row in enumerate(rows):
        result[index, : len(row)] = row
    return result
