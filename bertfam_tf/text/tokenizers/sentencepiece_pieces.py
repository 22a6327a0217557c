"""Tables of a SentencePiece vocabulary: the text of pieces, and pieces replaced by several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.graph import Pieces, repeats
from bertfam_tf.text.tokenizers.sentencepiece_model import CONTROL, FOUND, SPACE, UNKNOWN

_UNKNOWN_TEXT = " ⁇ "


class Surface:
    """Joins pieces into text.

    Args:
        pieces: the vocabulary.
        kinds: the type of each piece.
        spec: the model's normalizer_spec.
    """

    def __init__(self, pieces: Sequence[str], kinds: Sequence[int], spec: Any) -> None:
        texts = [
            "" if kind == CONTROL else _UNKNOWN_TEXT if kind == UNKNOWN else
            piece.replace(SPACE, " ")
            for kind, piece in zip(kinds, pieces, strict=True)
        ]  # fmt: skip
        self._texts = tf.constant(texts)
        # Pieces whose leading space is removed at the beginning of a text, and pieces that end the
        # beginning of a text.
        self._opens = np.array([text.startswith(" ") and kind in FOUND
                                for kind, text in zip(kinds, texts, strict=True)])  # fmt: skip
        if not (spec.add_dummy_prefix or spec.remove_extra_whitespaces):
            self._opens[:] = False
        shown = zip(self._opens, texts, strict=True)
        self._shown = np.array([bool(text[1:] if opens else text) for opens, text in shown])
        if not spec.remove_extra_whitespaces:
            self._shown |= self._opens

    def join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the texts, string [batch], of ids, ragged [batch, (pieces)]."""
        values = tf.gather(self._texts, ids.values)
        shown = tf.cast(tf.gather(self._shown, ids.values), tf.int32)
        before = tf.cumsum(shown, exclusive=True)
        first = tf.gather(tf.concat([before, [0]], 0), ids.row_starts())
        leading = before == tf.gather(first, ids.value_rowids())
        drop = leading & tf.gather(self._opens, ids.values)
        values = tf.where(
            drop,
            tf.strings.substr(values, tf.cast(drop, tf.int32), tf.strings.length(values)),
            values,
        )
        return tf.strings.reduce_join(ids.with_values(values), axis=-1)


class Replacements:
    """Pieces that are replaced by several.

    Args:
        pieces: the vocabulary.
        parts: the ids that replace each id.
    """

    def __init__(self, pieces: Sequence[str], parts: Mapping[int, Sequence[int]]) -> None:
        self.replaced = np.zeros(len(pieces), bool)
        self.replaced[list(parts)] = True
        rows = [parts.get(index, (index,)) for index in range(len(pieces))]
        lengths = np.array([len(piece.replace(SPACE, "").encode("utf-8")) for piece in pieces])
        self._counts = np.array(list(map(len, rows)), np.int64)
        self._begins = np.cumsum(self._counts) - self._counts
        self._ids = np.concatenate(rows).astype(np.int32)
        self._lengths = lengths.astype(np.int32)
        after = np.cumsum(self._lengths[self._ids])
        first = after[self._begins] - self._lengths[self._ids[self._begins]]
        self._ends = (after - np.repeat(first, self._counts)).astype(np.int32)

    def apply(self, pieces: Pieces) -> Pieces:
        """Returns the pieces after replacement.

        A part covers its own bytes if the replaced piece covers exactly its number of bytes,
        otherwise all bytes of that piece.
        """
        which, inside, splits = repeats(tf.gather(self._counts, pieces.ids))  # [parts]
        old = tf.gather(pieces.ids, which)
        place = tf.gather(self._begins, old) + inside
        ids = tf.gather(self._ids, place)
        splits = tf.gather(splits, pieces.splits)
        if pieces.starts is None or pieces.ends is None:
            return Pieces(ids, None, None, splits)
        start, end = tf.gather(pieces.starts, which), tf.gather(pieces.ends, which)
        simple = (end - start == tf.gather(self._lengths, old)) & tf.gather(self.replaced, old)
        last = start + tf.gather(self._ends, place)
        return Pieces(
            ids,
            tf.where(simple, last - tf.gather(self._lengths, ids), start),
            tf.where(simple, last, end),
            splits,
        )
