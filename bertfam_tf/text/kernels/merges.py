"""Byte-pair merges in the graph.

SentencePiece's BPE kernel merges the neighbours whose concatenation is the best piece; a list of
merges contains both parts. The results are equal if the list was learned by byte-pair encoding and
symbols that no merge can produce are removed: each symbol is then produced by only one pair,
because the merges inside a substring do not depend on its context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf.text.kernels.internals import sentencepiece


def reachable_merges(
    alphabet: Sequence[str], merges: Sequence[tuple[str, str]], source: str = "the merges"
) -> dict[str, int]:
    """Returns the symbols that merges can produce, with the rank of the merge that produces each.

    Args:
        alphabet: the symbols that words are first split into; their rank is -1.
        merges: pairs of symbols, best first.
        source: the name of the merges, for error messages.

    Raises:
        ValueError: if a merge uses a symbol that only a later merge produces, which byte-pair
            encoding cannot learn.
    """
    ranks: dict[tuple[str, str], int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair, rank)
    produced = dict.fromkeys(alphabet, -1)
    parts: dict[str, tuple[str, str]] = {}
    early: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        missing = [symbol for symbol in (left, right) if symbol not in produced]
        if missing:
            early.update((symbol, rank) for symbol in missing if symbol not in early)
        elif left + right not in produced and _halves_complete_first(
            left, right, produced, parts, ranks
        ):
            produced[left + right] = rank
            parts[left + right] = (left, right)
    for symbol, rank in early.items():
        if symbol in produced:
            raise ValueError(
                f"{source}: merge {rank + 1} uses {symbol!r}, which only merge "
                f"{produced[symbol] + 1} makes, expected parts that earlier merges make."
            )
    return produced


def _halves_complete_first(
    left: str,
    right: str,
    produced: Mapping[str, int],
    parts: Mapping[str, tuple[str, str]],
    ranks: Mapping[tuple[str, str], int],
) -> bool:
    """Returns whether both halves are complete before anything merges across their boundary.

    The symbols at the boundary grow: on the left from the last part of the last part …, on the
    right from the first part of the first part …. A pair of them merges if its rank is better than
    the ranks of the merges that consume its members; among equal pairs, the left one merges first.
    """
    left_limit = math.inf
    while True:
        boundary, right_limit = right, math.inf
        while True:
            itself = left_limit == right_limit == math.inf
            rank = None if itself else ranks.get((left, boundary))
            if rank is not None and rank < left_limit and rank <= right_limit:
                return False
            if boundary not in parts:
                break
            right_limit = produced[boundary]
            boundary = parts[boundary][0]
        if left not in parts:
            return True
        left_limit = produced[left]
        left = parts[left][1]


class Merger(tf.Module):
    """Splits words into symbols by byte-pair merges.

    Args:
        symbols: the rank of each symbol, from ``reachable_merges``; the alphabet's symbols have one
            character each, and words have no other characters.
        ids: the id of each symbol.
        unk_id: the id of symbols that are not in ``ids``.
    """

    def __init__(self, symbols: Mapping[str, int], ids: Mapping[str, int], unk_id: int) -> None:
        super().__init__(name="merger")
        model = model_pb.ModelProto()
        model.pieces.add(piece="<unk>", score=0, type=model_pb.ModelProto.SentencePiece.UNKNOWN)
        numbers = [unk_id]
        for symbol, rank in symbols.items():
            model.pieces.add(piece=symbol, score=-rank)
            numbers.append(ids.get(symbol, unk_id))
        model.trainer_spec.model_type = model_pb.TrainerSpec.BPE
        model.normalizer_spec.name = "identity"
        model.normalizer_spec.add_dummy_prefix = False
        model.normalizer_spec.remove_extra_whitespaces = False
        model.normalizer_spec.escape_whitespaces = False
        # The identity; without a charsmap the library logs a warning.
        model.normalizer_spec.precompiled_charsmap = (1024).to_bytes(4, "little") + bytes(1025)
        with tf.init_scope():
            self._kernel = sentencepiece(model.SerializeToString())
            self._numbers = tf.constant(np.array(numbers, np.int32))

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the words, string [n], int32 ragged [n, (symbols)]."""
        rows = self._kernel.tokenize(words)
        return rows.with_values(tf.gather(self._numbers, rows.values))

    def with_offsets(
        self, words: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns ``(ids, starts, ends)``, ragged [n, (symbols)]: also the bytes that each symbol
        covers in its word, integer (end exclusive)."""
        rows, starts, ends = self._kernel.tokenize_with_offsets(words)
        return rows.with_values(tf.gather(self._numbers, rows.values)), starts, ends


def pieces_of_words(
    values: tf.Tensor, size: tf.Tensor, where: tf.Tensor, splits: tf.Tensor, which: tf.Tensor
) -> tf.RaggedTensor:
    """Returns the pieces of words, ragged [words, (pieces)].

    Args:
        values: a value for each word, then for each piece of the merged words.
        size: int64, the number of words.
        where: int64 [n], the words that are merged.
        splits: int64 [merged + 1], the row splits of the merged words' pieces.
        which: int64 [n], the merged word of each.
    """
    rows = tf.RaggedTensor.from_row_splits(
        values, tf.concat([tf.range(size), size + splits], 0), validate=False
    )
    row = tf.tensor_scatter_nd_update(tf.range(size), where[:, tf.newaxis], size + which)
    return tf.gather(rows, row)
