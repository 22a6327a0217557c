"""The best segmentation of words by a unigram model, in the graph.

SentencePiece's kernel adds scores in float32 over whole texts, the ``tokenizers`` library in
float64 over words. Near ties then come out differently, so the search is done here: in float64,
with the library's order of additions and its choice among equal sums, for all words at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.graph import reached, repeated, row_of_each, substrings

_UNKNOWN_PENALTY = 10.0
_LONGEST = 256


class Segments(NamedTuple):
    """The pieces of words, in order.

    Fields:
        ids: int32 [n]; unknown characters have the unknown id.
        known: bool [n], whether the vocabulary has the piece.
        first, last: int64 [n], its first and its last character.
        word: int64 [n], the index of its word.
    """

    ids: tf.Tensor
    known: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    word: tf.Tensor


class Unigram(tf.Module):
    """Finds the segmentation of each word with the highest sum of scores.

    Args:
        pieces: the vocabulary in the order of the ids.
        scores: the score of each piece.
        unk_id: the id of unknown characters.

    Raises:
        ValueError: if there are no pieces, a piece has more than 256 characters, or unknown
            characters would be better than pieces.
    """

    def __init__(self, pieces: Sequence[str], scores: Sequence[float], unk_id: int) -> None:
        super().__init__(name="unigram")
        if not pieces or max(map(len, pieces)) > _LONGEST:
            raise ValueError(f"expected pieces of up to {_LONGEST} characters.")
        self._unknown_score = min(scores) - _UNKNOWN_PENALTY
        if self._unknown_score >= 0:
            raise ValueError(f"the lowest score is {min(scores)}, expected one below 10.")
        self._unk_id = unk_id
        # From the longest: of equal sums, the library keeps the piece that begins first.
        self._lengths = np.array(sorted({1, *map(len, pieces)} - {0}, reverse=True), np.int64)
        self._scores = np.array([*scores, -np.inf, self._unknown_score], np.float64)
        self._none, self._unknown = len(pieces), len(pieces) + 1
        with tf.init_scope():
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(pieces), tf.range(len(pieces), dtype=tf.int32)
                ),
                self._none,
            )

    def __call__(self, text: tf.Tensor, widths: tf.Tensor, lengths: tf.Tensor) -> Segments:
        """Splits words.

        Args:
            text: string scalar, all words, concatenated.
            widths: int32 [characters], the bytes of each character.
            lengths: int64 [words], the characters of each word, at least 1.
        """
        size = tf.size(widths, tf.int64)
        ends = tf.cumsum(lengths)
        splits = tf.concat([[0], ends], 0)
        word = row_of_each(splits, size)
        inside = tf.range(size) - tf.gather(splits, word)
        ids = self._candidates(text, widths, inside)
        choice = self._search(ids, lengths, splits)
        length = tf.gather(self._lengths, choice)
        is_first = inside + 1 <= length
        used = reached(ends - 1, tf.where(is_first, size, tf.range(size) - length))
        last = tf.where(used)[:, 0]
        piece = tf.gather_nd(ids, tf.stack([last, tf.gather(choice, last)], 1))
        known = piece != self._unknown
        return Segments(
            tf.where(known, piece, self._unk_id),
            known,
            last + 1 - tf.gather(length, last),
            last,
            tf.gather(word, last),
        )

    def _candidates(self, text: tf.Tensor, widths: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
        """Returns int32 [characters, lengths], the pieces that end with each character.

        Args:
            text, widths: the same as in ``__call__``.
            inside: int64 [characters], the place of each character in its word.
        """
        size = tf.size(widths, tf.int64)
        before = tf.concat([[0], tf.cumsum(tf.cast(widths, tf.int64))], 0)
        places = tf.where(inside[:, tf.newaxis] + 1 >= self._lengths)
        at, which = places[:, 0], places[:, 1]
        end = tf.gather(before, at + 1)
        start = tf.gather(before, at + 1 - tf.gather(self._lengths, which))
        pieces = self._table.lookup(substrings(text, start, end))
        single = which == len(self._lengths) - 1
        pieces = tf.where(single & (pieces == self._none), self._unknown, pieces)
        shape = tf.stack([size, tf.constant(len(self._lengths), tf.int64)])
        empty = tf.fill(shape, tf.constant(self._none, tf.int32))
        return tf.tensor_scatter_nd_update(empty, places, pieces)

    def _search(self, ids: tf.Tensor, lengths: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns int64 [characters], which of its candidates is the last piece of the best
        segmentation up to each character.

        Args:
            ids: the candidates.
            lengths, splits: int64, the characters of each word, and where the words begin.
        """
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        begins = tf.gather(splits, order)  # [words], the longest word first
        most = tf.reduce_max(tf.concat([lengths, [0]], 0))
        # How many words have a character at each place.
        ascending = tf.reverse(tf.gather(lengths, order), [0])
        places = tf.range(most)
        active = tf.size(lengths, tf.int64) - tf.searchsorted(
            ascending, places, side="right", out_type=tf.int64
        )
        longest = int(self._lengths[0])
        columns = (self._lengths - 1).astype(np.int32)
        number = len(columns)

        def body(place: tf.Tensor, best: tf.Tensor, chosen: tf.TensorArray) -> tuple:
            count = active[place]
            best = best[:count]
            scores = tf.gather(self._scores, tf.gather(ids, begins[:count] + place))
            sums = scores + tf.gather(best, columns, axis=1)
            highest = tf.reduce_max(sums, 1, keepdims=True)
            first = tf.reduce_min(tf.where(sums == highest, tf.range(number), number), 1)
            best = tf.concat([highest, best[:, :-1]], 1)
            return place + 1, best, chosen.write(tf.cast(place, tf.int32), first)

        start = np.full([1, longest], -np.inf)
        start[0, 0] = 0
        _, _, chosen = repeated(
            lambda place, *_: place < most,
            body,
            (
                tf.constant(0, tf.int64),
                tf.repeat(start, tf.size(lengths), 0),
                tf.TensorArray(
                    tf.int32, tf.cast(most, tf.int32), infer_shape=False, element_shape=[None]
                ),
            ),
            (
                tf.TensorShape([]), tf.TensorShape([None, longest]), tf.TensorShape(None),
            ),
        )  # fmt: skip
        # By place, the longest words first; now by word.
        rank = tf.argsort(order)  # [words]
        size = splits[-1]
        word = row_of_each(splits, size)
        inside = tf.range(size) - tf.gather(splits, word)
        before = tf.cumsum(active, exclusive=True)
        at = tf.gather(before, inside) + tf.cast(tf.gather(rank, word), tf.int64)
        return tf.cast(tf.gather(chosen.concat(), at), tf.int64)
