"""Character maps: the replacement of each character by FastBertNormalize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text.kernels.internals import character_map_model
from bertfam_tf.text.kernels.unicode import CODEPOINTS


class CharacterMap:
    """A replacement for each code point.

    Args:
        default: the replacement of all characters; None leaves them unchanged.
    """

    def __init__(self, default: str | None = None) -> None:
        self._strings: list[bytes] = [b""]
        self._places: dict[bytes, int] = {}
        self._choice = np.zeros(CODEPOINTS, np.int64)
        if default is not None:
            self._choice[:] = self._index_of(default.encode("utf-8"))

    def _index_of(self, string: bytes) -> int:
        if string not in self._places:
            self._places[string] = len(self._strings)
            self._strings.append(string)
        return self._places[string]

    def put(self, codepoints: Any, text: str | bytes) -> None:
        """Replaces characters by a text.

        Args:
            codepoints: an integer, a list of integers or bool [0x110000].
            text: the replacement, in UTF-8 if it is bytes; "" removes the characters.
        """
        string = text if isinstance(text, bytes) else text.encode("utf-8")
        self._choice[codepoints] = self._index_of(string)

    def keep(self, codepoints: Any) -> None:
        """Leaves characters unchanged; arguments as for ``put``."""
        self._choice[codepoints] = 0

    def kernel(self, invalid: bytes | None = None) -> tf_text.FastBertNormalizer:
        """Returns the kernel that applies the map.

        Args:
            invalid: the replacement of byte sequences that are not UTF-8; None replaces them as
                U+FFFD.
        """
        if invalid is None:
            place = self._choice[0xFFFD]
            invalid = self._strings[place] if place else "\ufffd".encode()
        model = character_map_model(self._strings, self._choice, invalid)
        return tf_text.FastBertNormalizer(model_buffer=tf.constant(model))


def separate_words(
    table: CharacterMap,
    *,
    unknown: str,
    isolated: np.ndarray,
    removed: np.ndarray,
    changed: dict[int, str],
    known: Iterable[str],
    written: Callable[[str], str],
) -> None:
    """Fills a map that separates words, punctuation marks and Chinese characters by spaces.

    Args:
        table: the map, whose default is ``unknown``.
        unknown: the replacement of characters outside the vocabulary.
        isolated: bool [0x110000], the characters that are separate words.
        removed: bool [0x110000], the characters to remove.
        changed: the normalized text of characters that normalization changes, before ``written``.
        known: the characters of the vocabulary.
        written: maps a character to its form in the kernel's vocabulary, without spaces.
    """

    def spaced(char: str) -> str:
        return f" {written(char)} " if isolated[ord(char)] else written(char)

    table.put(isolated, f" {unknown} ")
    table.keep(ord(" "))
    for char in known:
        text = spaced(char)
        if text == char:
            table.keep(ord(char))
        else:
            table.put(ord(char), text)
    for codepoint, text in changed.items():
        table.put(codepoint, "".join(char if char == " " else spaced(char) for char in text))
    table.put(removed, "")
