"""Unicode's normalization forms."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.graph import previous, repeated, unlikely
from bertfam_tf.text.kernels.normalization import Characters, Lookup, Replaced
from bertfam_tf.text.kernels.unicode import CODEPOINTS, HANGUL, classes, members, tables

Form: TypeAlias = Literal["NFC", "NFD", "NFKC", "NFKD"]


@functools.cache
def decompositions(compatible: bool) -> dict[int, str]:
    """Returns the characters that NFD, or NFKD if ``compatible``, decomposes in the library."""
    form: Form = "NFKD" if compatible else "NFD"
    decomposed = classes().decomposed
    if compatible:
        decomposed = decomposed | members(tables("tokenizers")["COMPATIBLE"])
    known = np.flatnonzero(decomposed).tolist()
    return {code: unicodedata.normalize(form, chr(code)) for code in known}


@functools.cache
def accents() -> dict[int, str]:
    """Returns the characters that StripAccents removes."""
    return dict.fromkeys(np.flatnonzero(members(tables("tokenizers")["ACCENT"])).tolist(), "")


@functools.cache
def _combining() -> np.ndarray:
    """Returns the canonical combining class of each character, int [0x110000]."""
    result = np.zeros(CODEPOINTS, np.int32)
    for code in np.flatnonzero(members(tables("tokenizers")["ORDERED"])).tolist():
        result[code] = unicodedata.combining(chr(code))
    return result


@functools.cache
def _compositions() -> dict[tuple[int, int], int]:
    """Returns the characters that two others are composed to."""
    result = {}
    for code in np.flatnonzero(classes().decomposed).tolist():
        char = chr(code)
        if code in HANGUL:
            last = (code - HANGUL.start) % 28
            lead, vowel = divmod((code - HANGUL.start) // 28, 21)
            pair = (code - last, 0x11A7 + last) if last else (0x1100 + lead, 0x1161 + vowel)
            result[pair] = code
        elif unicodedata.normalize("NFC", char) == char:
            first, second = (int(part, 16) for part in unicodedata.decomposition(char).split())
            result[first, second] = code
    return result


class Normalized(tf.Module):
    """Unicode's normalization forms, in the version that the library has.

    Args:
        form: "NFC", "NFD", "NFKC" or "NFKD".
    """

    def __init__(self, form: Form) -> None:
        super().__init__(name="unicode_normalization")
        self._apart = Replaced(decompositions("K" in form))
        self._class = Lookup(_combining())
        self._compositions: Any = None
        if form.endswith("C"):
            pairs = _compositions()
            keys = np.array([a << 21 | b for a, b in pairs], np.int64)
            with tf.init_scope():
                values = tf.lookup.KeyValueTensorInitializer(
                    keys, np.array([*pairs.values()], "i4")
                )
                self._compositions = tf.lookup.StaticHashTable(values, -1)
        self._affected = Lookup(_affected(form))

    def may_change(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns bool, whether texts with these code points, int32 [n], may change."""
        return tf.reduce_any(self._affected(codes))

    def __call__(self, text: Characters) -> Characters:
        def normalized(*parts: tf.Tensor) -> list[tf.Tensor]:
            return list(self._normalized(Characters(*parts)))

        return Characters(*unlikely(self.may_change(text.codes), normalized, list(text), []))

    def _normalized(self, text: Characters) -> Characters:
        # Characters are replaced one by one in the library: the first one of a decomposition takes
        # the place of the character, and the others are inserted after it.
        apart = self._apart(text._replace(starts=tf.range(tf.size(text.codes))))
        source = apart.starts
        inserted = tf.cast(source == previous(source, -1), tf.int32)
        order = self._order(apart)
        codes, classes_, change = (
            tf.gather(part, order) for part in (apart.codes, self._class(apart.codes), inserted)
        )
        rows = apart.rows()
        if self._compositions is not None:
            codes, change, rows = self._composed(codes, classes_, change, rows)
        is_kept = tf.where(change > 0, 0, 1 - change)
        place = tf.cumsum(is_kept) - is_kept - tf.cast(change > 0, tf.int32)
        place = tf.maximum(place, tf.gather(tf.cast(text.splits, tf.int32), rows))
        counts = tf.math.unsorted_segment_sum(
            tf.ones_like(rows), rows, tf.size(text.splits, tf.int64) - 1
        )
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        starts, ends = (tf.gather(part, place) for part in (text.starts, text.ends))
        return Characters(codes, starts, ends, splits)

    def _order(self, text: Characters) -> tf.Tensor:
        """Returns the canonical order of the characters, int32 [n]."""
        kind = self._class(text.codes)
        segment = tf.cumsum(tf.cast((kind == 0) | text.opens_row(), tf.int64))
        return tf.argsort(segment * 256 + tf.cast(kind, tf.int64), stable=True)

    def _composed(
        self, codes: tf.Tensor, kinds: tf.Tensor, change: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Composes ordered characters; returns their codes, changes and rows."""

        def candidates(codes: tf.Tensor, kinds: tf.Tensor, rows: tf.Tensor) -> Any:
            place = tf.range(tf.size(codes))
            starter = tf.where(kinds == 0, place, -1)
            last = running_maximum(starter)
            last = previous(last, -1)  # the last starter before each
            before = previous(kinds, 0)
            # The marks between are in order, so only the last of them can be in the way.
            close = (last == place - 1) | ((before < kinds) & (kinds > 0))
            at = tf.maximum(last, 0)
            close &= (last >= 0) & (tf.gather(rows, at) == rows)
            key = tf.bitwise.left_shift(tf.cast(tf.gather(codes, at), tf.int64), 21)
            composed = self._compositions.lookup(key + tf.cast(codes, tf.int64))
            second = tf.where(close & (composed >= 0))[:, 0]
            to = tf.gather(at, second)
            # Each starter takes the first of its candidates. Marks before that stay: in Unicode,
            # none of them is composed with the result if not with the starter.
            second = tf.boolean_mask(second, to != previous(to, -1))
            return second, tf.gather(at, second), tf.gather(composed, second)

        def body(*state: tf.Tensor) -> Any:
            codes, kinds, change, rows, second, to, composed = state
            codes = tf.tensor_scatter_nd_update(codes, to[:, tf.newaxis], composed)
            more = tf.gather(change, second) - 1
            change = tf.tensor_scatter_nd_add(change, to[:, tf.newaxis], more)
            kept = tf.tensor_scatter_nd_update(
                tf.ones_like(codes, tf.bool), second[:, tf.newaxis], tf.zeros_like(to, tf.bool)
            )
            parts = [tf.boolean_mask(part, kept) for part in (codes, kinds, change, rows)]
            return (*parts, *candidates(parts[0], parts[1], parts[3]))

        state = (codes, kinds, change, rows, *candidates(codes, kinds, rows))
        state = repeated(
            lambda *state: tf.size(state[4]) > 0,
            body,
            state,
            tuple(tf.TensorShape([None]) for _ in state),
        )
        return state[0], state[2], state[3]


def running_maximum(values: tf.Tensor) -> tf.Tensor:
    """Returns the maximum of the values up to each one; they ascend where they are not -1."""
    count = tf.cumsum(tf.cast(values >= 0, tf.int32))
    ascending = tf.concat([[-1], tf.boolean_mask(values, values >= 0)], 0)
    return tf.gather(ascending, count)


def _affected(form: Form) -> np.ndarray:
    """Returns bool [0x110000], the characters without which a form leaves texts unchanged."""
    result = _combining() > 0
    apart = decompositions("K" in form)
    if form.endswith("D"):
        result[list(apart)] = True
        return result
    pairs = _compositions()
    composed = set(pairs.values())
    compatible = members(tables("tokenizers")["COMPATIBLE"])
    stable = {code for code in composed if form == "NFC" or not compatible[code]}
    result[[code for code in apart if code not in stable]] = True
    result[[second for _, second in pairs]] = True
    return result
