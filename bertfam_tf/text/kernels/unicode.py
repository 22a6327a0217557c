"""Classes of characters, and the rules of BERT's normalizer.

They equal the ``tokenizers`` library's and do not depend on the Unicode version of the running
Python: the classes are in ``unicode_tables.json``, and ``unicodedata`` is only used for the
decompositions of characters listed there, which Unicode guarantees never to change.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

CODEPOINTS = 0x110000
CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2B740),
    # The library starts the next block at 2B920 instead of 2B820; kept, so that ids are equal.
    (0x2B740, 0x2B820), (0x2B920, 0x2CEB0), (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip
HANGUL = range(0xAC00, 0xD7A4)
# The white space of Python's ``str.split``.
SPACES = (
    *range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
)  # fmt: skip


def mask_of(codepoints: Iterable[int]) -> np.ndarray:
    """Returns bool [0x110000], true at the given code points."""
    mask = np.zeros(CODEPOINTS, bool)
    mask[list(codepoints)] = True
    return mask


@functools.cache
def tables(source: str) -> dict[str, str]:
    """Returns the tables of a source, which ``tools/make_unicode_tables.py`` writes.

    Args:
        source: ``tokenizers``; ``python``, whose other classes are the same; or ``moses``.
    """
    file = Path(__file__).with_name("unicode_tables.json")
    return json.loads(file.read_text("utf-8"))[source]


def members(text: str) -> np.ndarray:
    """Returns bool [0x110000] from pairs (gap since the last range, length) in base 36."""
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
    """Character classes, bool [0x110000] each, and the map to lower case."""

    removed: np.ndarray
    space: np.ndarray
    punctuation: np.ndarray
    mark: np.ndarray
    decomposed: np.ndarray
    chinese: np.ndarray
    lower: dict[int, str]


@functools.cache
def classes() -> Classes:
    """Returns the classes of the ``tokenizers`` library."""
    chinese = np.zeros(CODEPOINTS, bool)
    for start, end in CHINESE:
        chinese[start:end] = True
    table = tables("tokenizers")
    decomposed = members(table["DECOMPOSED"])
    decomposed[HANGUL.start : HANGUL.stop] = True
    removed = members(table["REMOVED"])
    removed[[0, 0xFFFD]] = True
    return Classes(
        removed=removed,
        space=members(table["SPACE"]),
        punctuation=members(table["PUNCTUATION"]),
        mark=members(table["MARK"]),
        decomposed=decomposed,
        chinese=chinese,
        lower=_lower_map(table["LOWER"]),
    )


@functools.cache
def python_classes() -> Classes:
    """Returns the classes of Python 3.11, the reference for tokenizers written in Python."""
    known = classes()
    chinese = known.chinese.copy()
    chinese[0x2B820:0x2CEB0] = True
    table = tables("python")
    removed = members(table["REMOVED"])
    removed[[0, 0xFFFD]] = True
    return dataclasses.replace(
        known,
        removed=removed,
        punctuation=members(table["PUNCTUATION"]),
        mark=members(table["MARK"]),
        decomposed=known.decomposed | members(table["DECOMPOSED"]),
        chinese=chinese,
    )


def byte_level_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the letters, the numbers, and the white space other than " ", bool [0x110000] each,
    in the regular expression that byte-level BPE splits words with."""
    table = tables("tokenizers")
    letters, numbers = members(table["BYTE_LETTER"]), members(table["BYTE_NUMBER"])
    return letters, numbers, members(table["BYTE_SPACE"])


@dataclasses.dataclass(frozen=True)
class Rules:
    """The four options of BERT's normalizer, and the character classes that it uses."""

    lower_case: bool
    strip_accents: bool
    split_chinese: bool
    clean_text: bool
    tables: Callable[[], Classes] = classes

    def changed(self) -> dict[int, str]:
        """Returns the replacement of each character that accents, case or white space change.

        White space maps to " ", accents to "". Not included are characters that cleaning removes
        (see ``removed``) or that are only separated, such as punctuation (see ``isolated``).
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
        """Returns the characters that cleaning removes, bool [0x110000]."""
        # The library checks for white space first: tab and line feed, which are also control
        # characters, become spaces.
        known = self.tables()
        return known.removed if self.clean_text else np.zeros(CODEPOINTS, bool)

    def isolated(self) -> np.ndarray:
        """Returns the characters that are separate words after normalization, bool [0x110000]."""
        known = self.tables()
        return known.punctuation | known.chinese if self.split_chinese else known.punctuation
