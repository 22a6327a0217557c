"""Unicode normalization and other steps of the `tokenizers` library's normalizers, in the graph.

A text is a row of code points, each with the bytes of the original text that it comes from, as the
library aligns them: a character that several are replaced by stands for the first of these if they
are composed, and for the last if a run or a pair is replaced.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels import unicode_tables as tables
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.charsmap import Rules
from bertfam_tf.text.kernels.graph import (
    Pieces,
    flags,
    repeated,
    row_of_each,
    row_of_repeats,
    unlikely,
)
from bertfam_tf.text.kernels.unicode import CODEPOINTS, HANGUL, classes, mask_of, members

_PAGE = 256
# The library replaces graphemes of fewer bytes as a whole.
_GRAPHEME_BYTES = 6
_JOINER = 0x200D
# No rule's replacement, which ends at a zero.
_NONE = "\0"
_LEADING = ((0x1100, 0x1160), (0xA960, 0xA97D))
_VOWEL = ((0x1160, 0x11A8), (0xD7B0, 0xD7C7))
_TRAILING = ((0x11A8, 0x1200), (0xD7CB, 0xD7FC))
# Rust's `char::is_whitespace`, and `\s` in the library's regular expressions.
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
        """Returns the characters where `mask`, bool [n], is true."""
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

    def widths(self) -> tf.Tensor:
        """Returns int32 [n], the bytes of each character in UTF-8."""
        wide = [tf.cast(self.codes >= limit, tf.int32) for limit in (0x80, 0x800, 0x10000)]
        return 1 + wide[0] + wide[1] + wide[2]


Step = Callable[[Characters], Characters]
Form: TypeAlias = Literal["NFC", "NFD", "NFKC", "NFKD"]


class Reader(tf.Module):
    """Reads texts as characters; bytes that are not UTF-8 as `errors="replace"` does."""

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
        width = read.widths()
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
        counts = tf.gather(self._lengths, choice)
        end = tf.cumsum(counts)
        size = tf.reduce_sum(counts)
        which = row_of_repeats(counts)
        inside = tf.range(size) - tf.gather(end - counts, which)
        chosen = tf.gather(choice, which)
        code = tf.gather(self._codes, tf.gather(self._begins, chosen) + inside)
        return Characters(
            tf.where(chosen == 0, tf.gather(text.codes, which), code),
            tf.gather(text.starts, which),
            tf.gather(text.ends, which),
            tf.gather(tf.concat([[0], end], 0), text.splits),
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
        size = tf.size(blank)
        joins = tf.concat([blank[1:] & blank[:-1] & ~opens[1:], [False]], 0)[:size]
        joined = joins | tf.concat([[False], joins], 0)[:size]
        changed = joined | self._alone(text.codes)
        return text._replace(codes=tf.where(changed, self._by, text.codes)).keep(~joins)


class Pairs:
    """Replaces two equal characters by another one, which stands for the second.

    Args:
        char: the character.
        by: what replaces two of them.
    """

    def __init__(self, char: str, by: str) -> None:
        self._char, self._by = ord(char), ord(by)

    def __call__(self, text: Characters) -> Characters:
        same = text.codes == self._char
        size = tf.size(same)
        begins = tf.where(~same | text.opens_row())[:, 0]
        run = tf.cumsum(tf.cast(~same | text.opens_row(), tf.int64)) - 1
        # The place in a run, counted from the character before it unless that is another text's.
        inside = tf.range(tf.size(same, tf.int64)) - tf.gather(begins, run)
        inside -= tf.cast(~tf.gather(same, tf.gather(begins, run)), tf.int64)
        second = same & (inside % 2 == 1)
        first = tf.concat([second[1:], [False]], 0)[:size]
        return text._replace(codes=tf.where(second, self._by, text.codes)).keep(~first)


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


# Unicode's normalization forms.


@functools.cache
def decompositions(compatible: bool) -> dict[int, str]:
    """Returns the characters that NFD, or NFKD if `compatible`, decomposes in the library."""
    form: Form = "NFKD" if compatible else "NFD"
    found = classes().decomposed
    if compatible:
        found = found | members(tables.COMPATIBLE)
    known = np.flatnonzero(found).tolist()
    return {code: unicodedata.normalize(form, chr(code)) for code in known}


@functools.cache
def accents() -> dict[int, str]:
    """Returns the characters that StripAccents removes."""
    return dict.fromkeys(np.flatnonzero(members(tables.ACCENT)).tolist(), "")


@functools.cache
def _combining() -> np.ndarray:
    """Returns the canonical combining class of each character, int [0x110000]."""
    result = np.zeros(CODEPOINTS, np.int32)
    for code in np.flatnonzero(members(tables.ORDERED)).tolist():
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
        inserted = tf.cast(tf.concat([[False], source[1:] == source[:-1]], 0), tf.int32)
        inserted = inserted[: tf.size(source)]
        order = self._order(apart)
        codes, classes_, change = (
            tf.gather(part, order) for part in (apart.codes, self._class(apart.codes), inserted)
        )
        rows = apart.rows()
        if self._compositions is not None:
            codes, change, rows = self._composed(codes, classes_, change, rows)
        taken = tf.where(change > 0, 0, 1 - change)
        place = tf.cumsum(taken) - taken - tf.cast(change > 0, tf.int32)
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
            size = tf.size(codes)
            place = tf.range(size)
            starter = tf.where(kinds == 0, place, -1)
            last = _running_maximum(starter)
            last = tf.concat([[-1], last[:-1]], 0)[:size]  # the last starter before each
            before = tf.concat([[0], kinds[:-1]], 0)[:size]
            # The marks between are in order, so only the last of them can be in the way.
            close = (last == place - 1) | ((before < kinds) & (kinds > 0))
            at = tf.maximum(last, 0)
            close &= (last >= 0) & (tf.gather(rows, at) == rows)
            key = tf.bitwise.left_shift(tf.cast(tf.gather(codes, at), tf.int64), 21)
            made = self._compositions.lookup(key + tf.cast(codes, tf.int64))
            found = tf.where(close & (made >= 0))[:, 0]
            to = tf.gather(at, found)
            # Each starter takes the first of its candidates.  Marks before that stay: in Unicode,
            # none of them is composed with the result if not with the starter.
            first = tf.concat([[True], to[1:] != to[:-1]], 0)[: tf.size(to)]
            found = tf.boolean_mask(found, first)
            return found, tf.gather(at, found), tf.gather(made, found)

        def body(*state: tf.Tensor) -> Any:
            codes, kinds, change, rows, found, to, made = state
            codes = tf.tensor_scatter_nd_update(codes, to[:, tf.newaxis], made)
            more = tf.gather(change, found) - 1
            change = tf.tensor_scatter_nd_add(change, to[:, tf.newaxis], more)
            kept = tf.tensor_scatter_nd_update(
                tf.ones_like(codes, tf.bool), found[:, tf.newaxis], tf.zeros_like(to, tf.bool)
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


def _running_maximum(values: tf.Tensor) -> tf.Tensor:
    """Returns the maximum of the values up to each one; they ascend where they are not -1."""
    count = tf.cumsum(tf.cast(values >= 0, tf.int32))
    found = tf.concat([[-1], tf.boolean_mask(values, values >= 0)], 0)
    return tf.gather(found, count)


def _affected(form: Form) -> np.ndarray:
    """Returns bool [0x110000], the characters without which a form leaves texts unchanged."""
    result = _combining() > 0
    apart = decompositions("K" in form)
    if form.endswith("D"):
        result[list(apart)] = True
        return result
    pairs = _compositions()
    composed = set(pairs.values())
    stable = {code for code in composed if form == "NFC" or code not in _compatible()}
    result[[code for code in apart if code not in stable]] = True
    result[[second for _, second in pairs]] = True
    return result


@functools.cache
def _compatible() -> set[int]:
    return set(np.flatnonzero(members(tables.COMPATIBLE)).tolist())


# The rules of SentencePiece as the library applies them.


class Graphemes(tf.Module):
    """Replaces short graphemes of several characters by the rules of a SentencePiece model.

    The library replaces a grapheme of fewer than 6 bytes by what its shortest beginning is replaced
    by, and so drops the rest of it.

    Args:
        rules: the model's rules.

    Raises:
        ValueError: a replacement would be replaced itself.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(name="graphemes")
        singles = rules.singles()
        longer = dict(rules.longer(np.ones(CODEPOINTS, bool), _GRAPHEME_BYTES - 1))
        texts = {key: text for key, text in (singles | longer).items()
                 if len(key.encode("utf-8")) < _GRAPHEME_BYTES}  # fmt: skip
        for text in dict.fromkeys(texts.values()):
            if any(singles.get(char, char) != char for char in text):
                raise ValueError(f"a rule's replacement {text[:20]!r} has a rule itself")
        names = ("JOINED", "PREFIX", "CONTROL", "PICTURE", "CONSONANT", "LINKER", "LINKED")
        bits = {name: 1 << index for index, name in enumerate((*names, "L", "V", "T", "LV", "LVT"))}
        kinds = np.zeros(CODEPOINTS, np.int32)
        for name in names:
            kinds[members(getattr(tables, name))] |= bits[name]
        for name, spans in (("L", _LEADING), ("V", _VOWEL), ("T", _TRAILING)):
            for start, end in spans:
                kinds[start:end] |= bits[name]
        syllables = np.array(HANGUL)
        kinds[syllables] |= np.where((syllables - HANGUL.start) % 28, bits["LVT"], bits["LV"])
        self._bits = bits
        self._kinds = Lookup(kinds)
        joining = kinds & ~(bits["CONTROL"] | bits["PICTURE"] | bits["CONSONANT"] | bits["L"]
                            | bits["LV"] | bits["LVT"])  # fmt: skip
        joining[ord("\r")] = 1
        self._joining = Lookup(joining > 0)
        with tf.init_scope():
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant([*texts], tf.string), tf.constant([*texts.values()], tf.string)
                ),
                _NONE,
            )

    def __call__(self, text: Characters) -> Characters:
        def replaced(*parts: tf.Tensor) -> list[tf.Tensor]:
            return list(self._replaced(Characters(*parts)))

        found = tf.reduce_any(self._joining(text.codes))
        return Characters(*unlikely(found, replaced, list(text), []))

    def _replaced(self, text: Characters) -> Characters:
        size = tf.size(text.codes, tf.int64)
        begin = tf.where(self._opens(text))[:, 0]
        end = tf.concat([begin[1:], [size]], 0)[: tf.size(begin)]
        bytes_before = tf.concat([[0], tf.cumsum(text.widths())], 0)
        count = tf.gather(bytes_before, end) - tf.gather(bytes_before, begin)
        short = (end - begin > 1) & (count < _GRAPHEME_BYTES)
        begin, end = (tf.boolean_mask(each, short) for each in (begin, end))
        found = tf.fill(tf.shape(begin), _NONE)
        for length in range(1, _GRAPHEME_BYTES):
            place = tf.minimum(begin[:, tf.newaxis] + tf.range(length, dtype=tf.int64), size - 1)
            key = tf.strings.unicode_encode(tf.gather(text.codes, place), "UTF-8")
            new = (found == _NONE) & (begin + length <= end)
            found = tf.where(new, self._table.lookup(key), found)
        hit = found != _NONE
        begin, end, found = (tf.boolean_mask(each, hit) for each in (begin, end, found))
        values = tf.strings.unicode_decode(found, "UTF-8")
        # Each character becomes one, except those of the graphemes: the first becomes all.
        parts = tf.cast(end - begin, tf.int32)
        change = tf.tensor_scatter_nd_add(
            tf.zeros([size + 1], tf.int32),
            tf.concat([begin, end], 0)[:, tf.newaxis],
            tf.concat([parts, -parts], 0),
        )
        parts = tf.cumsum(change)[:-1]  # of the grapheme of each character, 0 for others
        counts = tf.tensor_scatter_nd_update(
            tf.where(parts > 0, tf.constant(0, tf.int64), 1),
            begin[:, tf.newaxis],
            tf.cast(values.row_lengths(), tf.int64),
        )
        after = tf.cumsum(counts)
        which = row_of_repeats(counts)
        inside = tf.range(tf.reduce_sum(counts)) - tf.gather(after - counts, which)
        part = tf.cast(tf.gather(parts, which), tf.int64)
        codes = tf.tensor_scatter_nd_update(
            tf.gather(text.codes, which), tf.where(part > 0), values.values
        )
        place = which + tf.minimum(inside, tf.maximum(part - 1, 0))
        return Characters(
            codes,
            tf.gather(text.starts, place),
            tf.gather(text.ends, place),
            tf.gather(tf.concat([[0], after], 0), text.splits),
        )

    def _opens(self, text: Characters) -> tf.Tensor:
        """Returns bool [n], which characters begin a grapheme.

        The rules are those of Unicode's annex 29.  Flags are left out: each has 4 bytes, so no
        grapheme with one is short.
        """
        bits, kind = self._bits, self._kinds(text.codes)
        size = tf.size(kind)

        def has(which: tf.Tensor, *names: str) -> tf.Tensor:
            mask = sum(bits[name] for name in names)
            return tf.bitwise.bitwise_and(which, mask) > 0

        before = tf.concat([[0], kind[:-1]], 0)[:size]
        code_before = tf.concat([[0], text.codes[:-1]], 0)[:size]
        crlf = (code_before == ord("\r")) & (text.codes == ord("\n"))
        apart = has(before, "CONTROL") | has(kind, "CONTROL")
        joins = has(kind, "JOINED") | has(before, "PREFIX")
        joins |= has(before, "L") & has(kind, "L", "V", "LV", "LVT")
        joins |= has(before, "LV", "V") & has(kind, "V", "T")
        joins |= has(before, "LVT", "T") & has(kind, "T")
        # A picture after a joiner whose row of signs follows a picture.
        row = text.opens_row()
        place = tf.range(size)
        extends = has(kind, "JOINED") & ~row
        base = _running_maximum(tf.where(extends, -1, place))
        base_before = tf.concat([[0], base[:-1]], 0)[:size]
        joins |= (
            has(kind, "PICTURE")
            & (code_before == _JOINER)
            & has(tf.gather(kind, base_before), "PICTURE")
        )
        # A consonant after signs with a linker among them that follow a consonant.
        links = has(kind, "LINKER", "LINKED") & ~row
        base = _running_maximum(tf.where(links, -1, place))
        linkers = tf.cumsum(tf.cast(has(kind, "LINKER"), tf.int32))
        since = linkers - tf.gather(linkers, base)
        base_before = tf.concat([[0], base[:-1]], 0)[:size]
        since_before = tf.concat([[0], since[:-1]], 0)[:size]
        joins |= (
            has(kind, "CONSONANT")
            & (since_before > 0)
            & has(tf.gather(kind, base_before), "CONSONANT")
        )
        return row | ~(crlf | (joins & ~apart))


def original_offsets(pieces: Pieces, text: Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `(starts, ends)`, int32 [n], of pieces in the original texts.

    Args:
        pieces: pieces with offsets in the bytes of `text.strings()`.
        text: the normalized texts.
    """
    widths = text.widths()
    size = tf.size(widths, tf.int64)
    character = tf.concat([row_of_repeats(widths), [size]], 0)
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
            changes = {code: _mapped(text, step) for code, text in changes.items()} | later
        result.append(Replaced(changes))
    return result


def _mapped(text: str, changes: Mapping[int, str]) -> str:
    return "".join(changes.get(ord(char), char) for char in text)
