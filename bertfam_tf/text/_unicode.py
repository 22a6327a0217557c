"""What becomes of each character on its way through BERT's normalizer and word splitter.

The answers are those of the `tokenizers` library, whatever the Unicode version of the Python that
asks: character classes come from the committed `_unicode_tables`, and of `unicodedata` only the
decompositions of characters listed there are used, which Unicode promises never to change.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Callable

import numpy as np

from bertfam_tf.text import _unicode_tables as tables
from bertfam_tf.text import _unicode_tables_python as python_tables

CODEPOINTS = 0x110000
CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2B740),
    # The library starts the next block at 2B920 where Unicode has 2B820; kept, for equal ids.
    (0x2B740, 0x2B820), (0x2B920, 0x2CEB0), (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip
HANGUL = range(0xAC00, 0xD7A4)


def _members(text: str) -> np.ndarray:
    numbers = [int(word, 36) for word in text.split()]
    mask, position = np.zeros(CODEPOINTS, bool), 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        mask[position + gap : position + gap + length] = True
        position += gap + length
    return mask


def _lower_map(text: str) -> dict[int, str]:
    numbers = [int(word, 36) for word in text.split()]
    small, start = {0x130: "i\u0307"}, 0
    for gap, count, step, delta in zip(*(numbers[i::4] for i in range(4)), strict=True):
        start += gap
        for codepoint in range(start, start + count * step, step):
            small[codepoint] = chr(codepoint + delta)
    return small


@dataclasses.dataclass(frozen=True)
class Classes:
    """Boolean arrays over all codepoints, and the map of capitals."""

    removed: np.ndarray
    space: np.ndarray
    punctuation: np.ndarray
    mark: np.ndarray
    decomposed: np.ndarray
    chinese: np.ndarray
    lower: dict[int, str]


@functools.cache
def classes() -> Classes:
    """Returns the decoded tables (a few milliseconds, once)."""
    chinese = np.zeros(CODEPOINTS, bool)
    for start, end in CHINESE:
        chinese[start:end] = True
    decomposed = _members(tables.DECOMPOSED)
    decomposed[HANGUL.start : HANGUL.stop] = True
    removed = _members(tables.REMOVED)
    removed[[0, 0xFFFD]] = True
    return Classes(
        removed=removed,
        space=_members(tables.SPACE),
        punctuation=_members(tables.PUNCTUATION),
        mark=_members(tables.MARK),
        decomposed=decomposed,
        chinese=chinese,
        lower=_lower_map(tables.LOWER),
    )


@functools.cache
def python_classes() -> Classes:
    """Returns the same of Python 3.11, which the tokenizers of GPT and XLM ran on."""
    known = classes()
    chinese = known.chinese.copy()
    chinese[0x2B820:0x2CEB0] = True
    removed = _members(python_tables.REMOVED)
    removed[[0, 0xFFFD]] = True
    return dataclasses.replace(
        known,
        removed=removed,
        punctuation=_members(python_tables.PUNCTUATION),
        mark=_members(python_tables.MARK),
        decomposed=known.decomposed | _members(python_tables.DECOMPOSED),
        chinese=chinese,
    )


def byte_level_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the masks of letters, numbers and white space other than " " in the pattern that
    byte-level BPE cuts words with."""
    return _members(tables.BYTE_LETTER), _members(tables.BYTE_NUMBER), _members(tables.BYTE_SPACE)


@dataclasses.dataclass(frozen=True)
class Rules:
    """The four switches of BERT's normalizer, and which tables it reads."""

    lower_case: bool
    strip_accents: bool
    split_chinese: bool
    clean_text: bool
    tables: Callable[[], Classes] = classes

    def changed(self) -> dict[int, str]:
        """Returns the text of every character that accents, case or white space alter.

        White space maps to " ", accents to "".  Not listed are characters that cleaning removes
        (see `removed`) and such as only stand apart, like punctuation (see `apart`).
        """
        known = self.tables()
        touched = known.space.copy()
        if self.strip_accents:
            touched |= known.mark | known.decomposed
        if self.lower_case:
            touched[list(known.lower)] = True
        touched &= ~self.removed()
        result: dict[int, str] = {}
        for codepoint in np.flatnonzero(touched).tolist():
            text = char = chr(codepoint)
            if self.strip_accents:
                if known.decomposed[codepoint]:
                    text = unicodedata.normalize("NFD", text)
                text = "".join(part for part in text if not known.mark[ord(part)])
            if self.lower_case:
                text = "".join(known.lower.get(ord(part), part) for part in text)
            text = "".join(" " if known.space[ord(part)] else part for part in text)
            if text != char:
                result[codepoint] = text
        return result

    def removed(self) -> np.ndarray:
        """Returns the mask of characters that cleaning removes."""
        # White space goes first in the library: what is both (tab, line feed) becomes a space.
        known = self.tables()
        return known.removed if self.clean_text else np.zeros(CODEPOINTS, bool)

    def apart(self) -> np.ndarray:
        """Returns the mask of characters that are words of their own after normalization."""
        known = self.tables()
        return known.punctuation | known.chinese if self.split_chinese else known.punctuation
