"""Unicode normalization and other steps of the ``tokenizers`` library's normalizers, in the graph.

A text is a row of code points, each with the bytes of the original text that it comes from, as the
library aligns them: a character that several are replaced by stands for the first of these if they
are composed, and for the last if a run or a pair is replaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.graph import Pieces, flags, following, previous, repeats, row_of_each
from bertfam_tf.text.kernels.unicode import CODEPOINTS, mask_of

_PAGE = 256
# Rust's ``char::is_whitespace``, and ``\s`` in the library's regular expressions.
SPACES = (*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000)  # fmt: skip


class Characters(NamedTuple):
    """The characters of a batch of texts.

    Fields:
        codes: int32 [n], code points.
        starts, ends: int32 [n], the bytes of the original text that each comes from.
        splits: int64 [batch + 1], row splits.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor

    def keep(self, mask: tf.Tensor) -> Characters:
        """Returns the characters where ``mask``, bool [n], is true."""
        kept = tf.where(mask)[:, 0]
        before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], 0)
        codes, starts, ends = (tf.gather(part, kept) for part in self[:3])
        return Characters(codes, starts, ends, tf.gather(before, self.splits))

    def strings(self) -> tf.Tensor:
        """Returns the texts, string [batch]."""
        rows = tf.RaggedTensor.from_row_splits(self.codes, self.splits, validate=False)
        return tf.strings.unicode_encode(rows, "UTF-8")

    def rows(self) -> tf.Tensor:
        """Returns int64 [n], the index of each character's text."""
        return row_of_each(self.splits, tf.size(self.codes, tf.int64))

    def opens_row(self) -> tf.Tensor:
        """Returns bool [n], whether a character is the first of its text."""
        return flags(self.splits, tf.size(self.codes, tf.int64))


def utf8_widths(codes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [n], the bytes of each of the codepoints [n] in UTF-8."""
    wide = [tf.cast(codes >= limit, tf.int32) for limit in (0x80, 0x800, 0x10000)]
    return 1 + wide[0] + wide[1] + wide[2]


Step = Callable[[Characters], Characters]


class Reader(tf.Module):
    """Reads texts as characters; bytes that are not UTF-8 as ``errors="replace"`` does."""

    def __init__(self) -> None:
        super().__init__(name="character_reader")
        with tf.init_scope():
            self._clean = CharacterMap().kernel()

    def __call__(self, texts: tf.Tensor) -> Characters:
        """Returns the characters of texts, string [batch]."""
        clean, source = self._clean.normalize_with_offsets(texts)
        rows = tf.strings.unicode_decode(clean, "UTF-8")
        splits = tf.cast(rows.row_splits, tf.int64)
        read = Characters(rows.values, rows.values, rows.values, splits)
        width = utf8_widths(read.codes)
        # Each row of offsets has one more entry, for the end.
        row = tf.cast(read.rows(), tf.int32)
        end = tf.cumsum(width) + row
        places = (tf.gather(source.values, at) for at in (end - width, end))
        starts, ends = (tf.cast(place, tf.int32) for place in places)
        return read._replace(starts=starts, ends=ends)


class Lookup:
    """A number for each code point, in pages that are stored once.

    Args:
        numbers: integer or bool [0x110000].
    """

    def __init__(self, numbers: np.ndarray) -> None:
        kind = numbers.dtype if numbers.dtype == bool else np.int32
        known: dict[bytes, int] = {}
        pages = [page.tobytes() for page in numbers.astype(kind).reshape(-1, _PAGE)]
        self._pages = np.array([known.setdefault(page, len(known)) for page in pages], np.int32)
        self._values = np.frombuffer(b"".join(known), kind)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of code points, int32 [n]."""
        page = tf.gather(self._pages, codes // _PAGE)
        return tf.gather(self._values, page * _PAGE + codes % _PAGE)


class Replaced:
    """Replaces each character by a text.

    Args:
        changes: the replacements by code point; "" removes a character.
    """

    def __init__(self, changes: Mapping[int, str]) -> None:
        texts = dict.fromkeys(changes.values())
        place = {text: index + 1 for index, text in enumerate(texts)}
        choice = np.zeros(CODEPOINTS, np.int32)
        for code, text in changes.items():
            choice[code] = place[text]
        self._choice = Lookup(choice)
        lengths = np.array([1, *map(len, texts)], np.int64)
        self._lengths = lengths
        self._begins = np.cumsum(lengths) - lengths
        self._codes = np.array([0, *(ord(char) for text in texts for char in text)], np.int32)

    def __call__(self, text: Characters) -> Characters:
        choice = self._choice(text.codes)
        which, inside, splits = repeats(tf.gather(self._lengths, choice))
        chosen = tf.gather(choice, which)
        code = tf.gather(self._codes, tf.gather(self._begins, chosen) + inside)
        return Characters(
            tf.where(chosen == 0, tf.gather(text.codes, which), code),
            tf.gather(text.starts, which),
            tf.gather(text.ends, which),
            tf.gather(splits, text.splits),
        )


class Spaces:
    """Replaces runs of white space by one character, which stands for the last of them.

    Args:
        members: the code points that are white space.
        alone: those that are replaced even if they are alone.
        by: the character that replaces them.
    """

    def __init__(self, members: Sequence[int], alone: Sequence[int], by: str) -> None:
        self._members = Lookup(mask_of(members))
        self._alone = Lookup(mask_of(alone))
        self._by = ord(by)

    def __call__(self, text: Characters) -> Characters:
        blank, opens = self._members(text.codes), text.opens_row()
        joins = blank & following(blank & ~opens, False)
        changed = joins | previous(joins, False) | self._alone(text.codes)
        return text._replace(codes=tf.where(changed, self._by, text.codes)).keep(~joins)


class Pairs:
    """Replaces two equal characters by another one, which stands for the second.

    Args:
        char: the character.
        by: the replacement of two of them.
    """

    def __init__(self, char: str, by: str) -> None:
        self._char, self._by = ord(char), ord(by)

    def __call__(self, text: Characters) -> Characters:
        same = text.codes == self._char
        begins = tf.where(~same | text.opens_row())[:, 0]
        run = tf.cumsum(tf.cast(~same | text.opens_row(), tf.int64)) - 1
        # The place in a run, counted from the character before it unless that is another text's.
        inside = tf.range(tf.size(same, tf.int64)) - tf.gather(begins, run)
        inside -= tf.cast(~tf.gather(same, tf.gather(begins, run)), tf.int64)
        second = same & (inside % 2 == 1)
        codes = tf.where(second, self._by, text.codes)
        return text._replace(codes=codes).keep(~following(second, False))


class Stripped:
    """Removes white space at the ends of texts.

    Args:
        left, right: the ends.
    """

    def __init__(self, left: bool, right: bool) -> None:
        self._left, self._right = left, right
        self._spaces = Lookup(mask_of(SPACES))

    def __call__(self, text: Characters) -> Characters:
        solid = tf.cast(~self._spaces(text.codes), tf.int64)
        count = tf.concat([[0], tf.cumsum(solid)], 0)
        rows = text.rows()
        first, last = (tf.gather(tf.gather(count, text.splits[i : i + size]), rows)
                       for i, size in ((0, -1), (1, tf.size(text.splits))))  # fmt: skip
        kept = tf.ones_like(solid, tf.bool)
        if self._left:
            kept &= count[1:] > first
        if self._right:
            kept &= count[:-1] < last
        return text.keep(kept)


def original_offsets(pieces: Pieces, text: Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ``(starts, ends)``, int32 [n], of pieces in the original texts.

    Args:
        pieces: pieces with offsets in the bytes of ``text.strings()``.
        text: the normalized texts.
    """
    widths = utf8_widths(text.codes)
    size = tf.size(widths, tf.int64)
    character = tf.concat([repeats(widths)[0], [size]], 0)
    before = tf.cast(tf.concat([[0], tf.cumsum(widths)], 0), tf.int64)
    rows = pieces.rows()
    base = tf.gather(before, tf.gather(text.splits, rows))
    start, end = (base + tf.cast(part, tf.int64) for part in (pieces.starts, pieces.ends))
    empty = start == end
    first = tf.gather(character, start)
    last = tf.gather(character, tf.maximum(end - 1, start))
    # A piece of nothing, at the end of its text, is after the last character.
    beyond = first >= tf.gather(text.splits, rows + 1)
    starts, ends = (tf.concat([part, [0]], 0) for part in (text.starts, text.ends))
    closing = tf.gather(ends, tf.maximum(first - 1, 0))
    opening = tf.where(beyond, closing, tf.gather(starts, first))
    return opening, tf.where(empty | beyond, opening, tf.gather(ends, last))


def chain(steps: Sequence[Step | Mapping[int, str]]) -> list[Step]:
    """Returns the steps, with adjacent maps of characters joined."""
    result: list[Step] = []
    for is_map, group in itertools.groupby(steps, lambda step: isinstance(step, Mapping)):
        if not is_map:
            result += cast(list[Step], list(group))
            continue
        changes: dict[int, str] = {}
        for step in cast(list[Mapping[int, str]], list(group)):
            later = {code: text for code, text in step.items() if code not in changes}
            changes = {code: text.translate(step) for code, text in changes.items()} | later
        result.append(Replaced(changes))
    return result
