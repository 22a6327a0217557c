"""The normalization before SentencePiece: Python code, then the rules in the model file.

The published tokenizers normalize text in a few lines of Python (white space, quotation marks,
accents, case) and then by the rules of the model file's ``precompiled_charsmap``, which replace the
longest matching sequence of characters. ``compose`` makes one charsmap of both, so that the kernel
does all of it in the pass that segments the text.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Mapping

import numpy as np

from bertfam_tf.text.kernels.double_array import HAS_VALUE, IS_VALUE, PAGE, DoubleArray
from bertfam_tf.text.kernels.unicode import CODEPOINTS, SPACES, members, tables

# The bytes of a UTF-8 character by its first byte.
_LENGTHS = np.array([1] * 0xC0 + [2] * 0x20 + [3] * 0x10 + [4] * 0x10)
_LABEL = 0x800000FF
# Published models have 46,000 units, 265,000 prefixes of keys of up to 13 bytes, and replacements
# of up to 33 bytes.
_MOST_UNITS, _MOST_KEYS, _LONGEST_KEY, _LONGEST_TEXT = 1 << 20, 1 << 20, 255, 1 << 10
_BEYOND = "far more than published models have"
_QUOTES = ("''", "``")
# These decompose to half of a quotation mark, but only after quotation marks were replaced.
_LATE_QUOTES = (0x1FEF, 0xFF07, 0xFF40)


@functools.cache
def assigned() -> np.ndarray:
    """Returns the characters of Unicode 14, bool [0x110000].

    The reference runs with that version. Unicode never changes the decomposition, combining class
    or lower case of an assigned character, so as long as later characters are left unchanged, the
    result is the same with every later version of Python.
    """
    return members(tables("python")["ASSIGNED"])


def is_digit(char: str) -> bool:
    """Returns ``char.isdigit()`` in Unicode 14."""
    return bool(assigned()[ord(char)]) and char.isdigit()


@functools.cache
def preparation(unify_spaces: bool, strip_accents: bool, lower_case: bool) -> dict[int, str]:
    """Returns the replacement of each character that the Python preprocessing changes.

    Args:
        unify_spaces: whether white space of any kind becomes " ".
        strip_accents: whether to apply NFKD and remove combining characters.
        lower_case: whether to lower-case, before the decomposition and after it.
    """
    result: dict[int, str] = {}
    for codepoint in np.flatnonzero(assigned()).tolist() if strip_accents or lower_case else ():
        text = char = chr(codepoint)
        if lower_case:
            text = text.lower()
        if strip_accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(part for part in text if not unicodedata.combining(part))
        if lower_case:
            # One character at a time: a final sigma depends on its context.
            text = "".join(map(str.lower, text))
        if text != char:
            result[codepoint] = text
    return result | (dict.fromkeys(SPACES, " ") if unify_spaces else {})


class Rules:
    """Replacements of sequences of characters, as in a model file.

    The keys are in a double-array trie (see ``DoubleArray``); a key's value is the position of its
    replacement among zero-terminated strings.

    Args:
        data: the content of ``precompiled_charsmap``: size of the trie, trie, strings.

    Raises:
        ValueError: if the content is truncated.
    """

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if data and (len(data) < 4 + size or size % 4 or not size):
            raise ValueError(
                f"{len(data)} bytes of normalization rules, expected more than {size}."
            )
        self._units = np.frombuffer(data[4 : 4 + size], np.uint32) if data else _empty()
        self._strings = data[4 + size :]
        self._root = int(self._base(0))
        self._child_cache: dict[int, list[tuple[int, int]]] = {}

    def check(self) -> None:
        """Checks that every lookup stays inside the trie and ends.

        Raises:
            ValueError: if a unit or replacement is out of range, keys form a cycle, or there are
                many more than in any published model.
        """
        units = self._units.astype(np.int64)
        if len(units) > _MOST_UNITS // 4:
            raise ValueError(f"{len(units)} units of normalization rules, {_BEYOND}.")
        leads = units < IS_VALUE
        ends = np.arange(len(units)) ^ (units >> 10) << ((units & 1 << 9) >> 6) | PAGE - 1
        starts = units[~leads] & ~IS_VALUE
        if (ends[leads] >= len(units)).any() or (starts >= len(self._strings)).any():
            raise ValueError("normalization rules that point outside of the table.")
        texts = self._strings.split(b"\0")
        if texts[-1] or max(map(len, texts), default=0) > _LONGEST_TEXT:
            raise ValueError(f"an unterminated replacement, or one of over {_LONGEST_TEXT} bytes.")
        # Keys with equal endings share nodes, so a few nodes can hold any number of keys.
        level, total = {self._root: 1}, 0
        for _ in range(_LONGEST_KEY):
            below: dict[int, int] = {}
            for base, times in level.items():
                for _, slot in self._children(base):
                    child = self._base(slot)
                    below[child] = below.get(child, 0) + times
            level = below
            total += sum(level.values())
            if not level:
                return
            if total > _MOST_KEYS:
                raise ValueError(f"more than {_MOST_KEYS} normalization rules, {_BEYOND}.")
        raise ValueError(
            f"a normalization rule of more than {_LONGEST_KEY} bytes, or rules that form a cycle."
        )

    def to_bytes(self) -> bytes:
        """Returns the content of ``precompiled_charsmap``."""
        size = self._units.nbytes.to_bytes(4, "little")
        return size + self._units.astype("<u4").tobytes() + self._strings

    def _base(self, slot: int) -> int:
        unit = int(self._units[slot])
        return slot ^ (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _children(self, base: int) -> list[tuple[int, int]]:
        """Returns the label and the slot of each child of a node."""
        if base in self._child_cache:
            return self._child_cache[base]
        labels = np.arange(1, PAGE)
        slots = base ^ labels
        slots_in = np.minimum(slots, len(self._units) - 1)
        matches = (self._units[slots_in] & _LABEL == labels) & (slots == slots_in)
        self._child_cache[base] = list(
            zip(labels[matches].tolist(), slots[matches].tolist(), strict=True)
        )
        return self._child_cache[base]

    def _value(self, slot: int) -> str | None:
        if not int(self._units[slot]) & HAS_VALUE:
            return None
        start = int(self._units[self._base(slot)]) & ~IS_VALUE
        return self._strings[start : self._strings.index(0, start)].decode("utf-8", "replace")

    def characters(self, base: int | None = None) -> Iterator[tuple[str, int, str | None]]:
        """Yields the characters that follow a prefix of keys.

        Args:
            base: the base of the prefix's node; None for the empty prefix.

        Yields:
            ``(character, base, replacement)``: the base of the longer prefix's node, and the
            replacement if that prefix is a key, else None.
        """
        stack = [(self._root if base is None else base, b"")]
        while stack:
            base, begun = stack.pop()
            for label, slot in self._children(base):
                key = begun + bytes([label])
                if len(key) < _LENGTHS[key[0]]:
                    stack.append((self._base(slot), key))
                else:
                    yield key.decode("utf-8", "replace"), self._base(slot), self._value(slot)

    def joined(self) -> set[str]:
        """Returns the characters of all keys of several characters."""
        result, stack, known = set(), [self._root], {self._root}
        while stack:
            begun = stack.pop()
            for char, base, _ in self.characters(begun):
                longer = any(label for label, _ in self._children(base))
                if begun != self._root or longer:
                    result.add(char)
                # Keys with equal endings share nodes.
                if longer and base not in known:
                    known.add(base)
                    stack.append(base)
        return result

    def longer(
        self, allowed: np.ndarray, most_bytes: int = _LONGEST_KEY
    ) -> Iterator[tuple[str, str]]:
        """Yields ``(key, replacement)`` for keys of several characters.

        Args:
            allowed: bool [0x110000], the characters that keys have.
            most_bytes: how many bytes keys may have.
        """
        stack: list[tuple[str, int | None]] = [("", None)]
        while stack:
            begun, node = stack.pop()
            for char, base, value in self.characters(node):
                fits = len((begun + char).encode("utf-8", "replace")) <= most_bytes
                if fits and len(char) == 1 and allowed[ord(char)]:
                    stack.append((begun + char, base))
                    if begun and value is not None:
                        yield begun + char, value

    def singles(self) -> dict[str, str]:
        """Returns the replacements of single characters."""
        return {char: text for char, _, text in self.characters()
                if text is not None and len(char) == 1}  # fmt: skip

    def apply(self, text: str) -> str:
        """Returns the text with the longest key at each position replaced."""
        data, result, at = text.encode("utf-8"), "", 0
        while at < len(data):
            length, value = int(_LENGTHS[data[at]]), None
            base = self._root
            for end in range(at, len(data)):
                slot = base ^ data[end]
                if slot >= len(self._units) or int(self._units[slot]) & _LABEL != data[end]:
                    break
                base, replacement = self._base(slot), self._value(slot)
                if replacement is not None:
                    length, value = end + 1 - at, replacement
            result += data[at : at + length].decode("utf-8") if value is None else value
            at += length
        return result

    def add(self, key: bytes, value: bytes) -> None:
        """Adds or replaces a rule, both in UTF-8."""
        if len(self._units) > _MOST_UNITS:
            raise ValueError(f"{len(self._units)} units of normalization rules, {_BEYOND}.")
        self._child_cache.clear()
        start = len(self._strings)
        self._strings += value + b"\0"
        self._units = self._units.copy()
        slot = 0
        for label in key:
            # Equal subtrees are shared; this one will differ.
            self._relocate(slot)
            child = self._base(slot) ^ label
            if int(self._units[child]) & _LABEL != label:
                self._units[child] = label
            slot = child
        self._relocate(slot)
        self._units[slot] |= HAS_VALUE
        self._units[self._base(slot)] = IS_VALUE | start
        self._child_cache.clear()
        self._root = self._base(0)

    def _relocate(self, slot: int) -> None:
        """Moves a node's children to a new page, with room for more."""
        self._child_cache.clear()
        base, new = self._base(slot), len(self._units)
        old = self._units
        self._units = np.concatenate([old, np.zeros(PAGE, np.uint32)])
        if int(old[slot]) & HAS_VALUE:
            self._units[new] = old[base]
        elif int(old[base]) & _LABEL == 0 and int(old[base]):
            self._units[new] = _unit(new, self._base(base), old[base])
        else:
            # A zero would be read as a child with the label 0.
            self._units[new] = IS_VALUE
        if int(old[slot]) >> 10:
            for label, child in self._children(base):
                self._units[new ^ label] = _unit(new ^ label, self._base(child), old[child])
        self._units[slot] = _unit(slot, new, old[slot])


def _empty() -> np.ndarray:
    return np.zeros(PAGE, np.uint32)


def _unit(slot: int, base: int, unit: int) -> int:
    """Returns a unit moved to ``slot``, with its children at ``base``."""
    return (slot ^ base) << 10 | int(unit) & (HAS_VALUE | 0xFF)


def compose(
    rules: Rules,
    prepared: Mapping[int, str],
    unify_quotes: bool,
    known: np.ndarray,
    unknown: str,
    substitutes: Mapping[int, str],
) -> tuple[Rules, dict[int, str]] | None:
    """Returns one set of rules for the Python code followed by the model's rules.

    The new rules have a replacement for each character and for bytes that are not UTF-8. This is
    impossible if a rule for several characters can apply: if its key can occur in the output of the
    Python code, and a character of the key or the replacement is in the vocabulary.

    Args:
        rules: the rules of the model.
        prepared: the replacements by the Python code, see ``preparation``.
        unify_quotes: whether `` and '' become " before everything else.
        known: bool [0x110000], the characters of the vocabulary.
        unknown: the replacement of all other characters.
        substitutes: the replacements of some characters of the vocabulary.

    Returns:
        The rules, and the normalized text of each character that is known or changed; None if
        there are no such rules.
    """
    possible = np.ones(CODEPOINTS, bool)
    possible[list(prepared)] = False
    possible[[ord(char) for char in set("".join(prepared.values()))]] = True
    singles = rules.singles()

    def is_known(text: str) -> bool:
        return any(known[ord(char)] for char in text)

    for key, value in rules.longer(possible):
        if is_known(value) or any(is_known(singles.get(char, char)) for char in key):
            return None

    changed = {codepoint: chr(codepoint) for codepoint in np.flatnonzero(known).tolist()}
    changed |= {ord(char): text for char, text in singles.items()}
    changed |= {codepoint: rules.apply(text) for codepoint, text in prepared.items()}
    texts: dict[str, int] = {}

    def written(text: str) -> str:
        text = "".join(char if known[ord(char)] else unknown for char in text)
        return text.translate(substitutes)

    choice = np.full(CODEPOINTS, texts.setdefault(unknown, 0))
    for codepoint, text in changed.items():
        choice[codepoint] = texts.setdefault(written(text), len(texts))
    result = _one_by_one(list(texts), choice)
    if unify_quotes:
        for quotes in _QUOTES:
            result.add(quotes.encode(), written(rules.apply('"')).encode("utf-8"))
    return result, changed


def staged(rules: Rules, prepared: Mapping[int, str]) -> dict[int, str]:
    """Adds the rule for quotation marks to the model's rules, if ``compose`` is impossible.

    Two quotation marks separated only by combining characters then also become one.

    Returns:
        ``prepared``, without the decompositions that are now part of the rules.
    """
    late = {codepoint: prepared[codepoint] for codepoint in _LATE_QUOTES if codepoint in prepared}
    for codepoint, text in late.items():
        rules.add(chr(codepoint).encode(), rules.apply(text).encode("utf-8"))
    for quotes in _QUOTES:
        rules.add(quotes.encode(), rules.apply('"').encode("utf-8"))
    return {codepoint: text for codepoint, text in prepared.items() if codepoint not in late}


def _one_by_one(texts: list[str], choice: np.ndarray) -> Rules:
    """Returns rules for each single character.

    Args:
        texts: the replacements.
        choice: int [0x110000], for each character the index of its replacement.
    """
    encoded = [text.encode("utf-8") for text in texts]
    ends = np.cumsum([len(text) + 1 for text in encoded])
    trie = DoubleArray()
    values = np.array([trie.value(int(end) - len(text) - 1)
                       for text, end in zip(encoded, ends, strict=True)])  # fmt: skip
    bases = values[choice]
    # Bytes that are not UTF-8, and truncated sequences, have rules of their own.
    invalid = int(ends[choice[0xFFFD]]) - len(encoded[choice[0xFFFD]]) - 1
    bases[0xD800:0xE000] = -1
    two = bases[:0x800].reshape(32, 64)
    three = bases[:0x10000].reshape(16, 64, 64)
    four = np.concatenate([bases, np.full(5 * 0x40000 - CODEPOINTS, -1)]).reshape(5, 64, 64, 64)
    first = np.full(PAGE, trie.value(invalid))
    first[0xC2:0xE0] = trie.blocks(two[2:], invalid)
    middle = trie.blocks(three, invalid).reshape(16, 64)
    middle[0, :0x20] = middle[0xD, 0x20:] = -1
    first[0xE0:0xF0] = trie.blocks(middle, invalid)
    upper = trie.blocks(trie.blocks(four, invalid).reshape(5, 64, 64), invalid).reshape(5, 64)
    upper[0, :0x10] = upper[4, 0x10:] = -1
    first[0xF0:0xF5] = trie.blocks(upper, invalid)
    unchanged = [index for index in range(0x80) if texts[choice[index]] == chr(index)]
    first[:0x80] = bases[:0x80]
    first[unchanged] = -1
    trie.first_bytes(first[1:])
    units = trie.array()
    # The kernel treats a zero byte like any other.
    units[PAGE] = _unit(PAGE, int(first[0]), HAS_VALUE)
    pool = b"".join(text + b"\0" for text in encoded)
    return Rules(units.nbytes.to_bytes(4, "little") + units.tobytes() + pool)
