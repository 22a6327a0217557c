"""Byte-pair merges as a graph: distinct words in, the symbols they merge into out.

SentencePiece's BPE kernel merges whichever neighbours together make the best piece; a list of
merges names the two parts as well.  Both give the same result when the list was learnt by byte
pair encoding and pieces that can never arise are left out: each piece then arises from one pair
only, because merges inside a stretch of a word do not depend on what stands around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf.text._kernels import sentencepiece


def read_merges(lines: Sequence[str], source: str) -> list[tuple[str, str]]:
    """Returns the pairs of a merges file, best first.

    Args:
        lines: two symbols a line, with a space between; a line "#version: …" may come first.
        source: what to call the file in errors.

    Raises:
        ValueError: a line has not two parts; it is named.
    """
    merges = []
    for number, line in enumerate(lines, 1):
        if not line.strip(" ") or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(
                f"{source}: line {number} is {line[:40]!r}, expected two symbols and one space"
            )
        merges.append((parts[0], parts[1]))
    return merges


def reachable_merges(
    alphabet: Sequence[str], merges: Sequence[tuple[str, str]], source: str = "the merges"
) -> dict[str, int]:
    """Returns, for each symbol that merging can give, the rank of the merge that gives it.

    Args:
        alphabet: the symbols that words begin as; their rank is -1.
        merges: pairs of symbols, best first.
        source: what to call the merges in errors.

    Raises:
        ValueError: a merge uses a symbol that only a later merge makes; byte pair encoding learns
            no such list.
    """
    ranks: dict[tuple[str, str], int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair, rank)
    made = dict.fromkeys(alphabet, -1)
    parts: dict[str, tuple[str, str]] = {}
    early: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        missing = [symbol for symbol in (left, right) if symbol not in made]
        if missing:
            early.update((symbol, rank) for symbol in missing if symbol not in early)
        elif left + right not in made and _meets(left, right, made, parts, ranks):
            made[left + right] = rank
            parts[left + right] = (left, right)
    for symbol, rank in early.items():
        if symbol in made:
            raise ValueError(
                f"{source}: merge {rank + 1} uses {symbol!r}, which only merge "
                f"{made[symbol] + 1} makes, expected parts that earlier merges make"
            )
    return made


def _meets(
    left: str,
    right: str,
    made: Mapping[str, int],
    parts: Mapping[str, tuple[str, str]],
    ranks: Mapping[tuple[str, str], int],
) -> bool:
    """Returns whether both halves are complete before anything merges across their border.

    What stands at the border grows, on the left side from the last part of the last part …, on
    the right from the first part of the first part.  A pair of these merges if its rank is better
    than those at which its members are used up; of equal pairs the left one goes first.
    """
    left_limit = math.inf
    while True:
        border, right_limit = right, math.inf
        while True:
            itself = left_limit == right_limit == math.inf
            rank = None if itself else ranks.get((left, border))
            if rank is not None and rank < left_limit and rank <= right_limit:
                return False
            if border not in parts:
                break
            right_limit = made[border]
            border = parts[border][0]
        if left not in parts:
            return True
        left_limit = made[left]
        left = parts[left][1]


class Merger(tf.Module):
    """Splits distinct words into the symbols that byte-pair merges make of them.

    Args:
        symbols: each symbol's rank, from `reachable_merges`; those of the alphabet have one
            character.  Words must have no other characters.
        ids: the id of each symbol.
        unk_id: the id of symbols that `ids` lacks.
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
        # A map that changes nothing; without one the library logs a line that it has none.
        model.normalizer_spec.precompiled_charsmap = (1024).to_bytes(4, "little") + bytes(1025)
        with tf.init_scope():
            self._kernel = sentencepiece(model.SerializeToString())
            self._numbers = tf.constant(np.array(numbers, np.int32))

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 ids, ragged [n, (symbols)], of the words, string [n]."""
        rows = self._kernel.tokenize(words)
        return rows.with_values(tf.gather(self._numbers, rows.values))

    def with_offsets(
        self, words: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the same, and the bytes of the word that each symbol begins at and ends before,
        integers, ragged [n, (symbols)]."""
        rows, starts, ends = self._kernel.tokenize_with_offsets(words)
        return rows.with_values(tf.gather(self._numbers, rows.values)), starts, ends
