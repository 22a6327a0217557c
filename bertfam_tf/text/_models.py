"""Writers of the two flatbuffers that tensorflow-text's Fast* kernels read.

tensorflow-text itself builds only two fixed character maps for its normalizer, and word models
that carry every punctuation mark and Chinese character there is.  The formats allow more.
"""

from __future__ import annotations

import flatbuffers
import numpy as np
from flatbuffers import encode, number_types, packer
from flatbuffers.table import Table

MAX_REPLACEMENT_BYTES = 63

_DIFFERENT = 1 << 30
_LENGTH_BITS = 6
_HAS_LEAF = 1 << 8
_LEAF = 1 << 31
_PAGE = 256


class DoubleArray:
    """A trie over UTF-8 bytes in the layout of the darts-clone library.

    The child with label `c` of the node at slot `n` is at slot `base ^ c`, where
    `base = n ^ offset(n)`, and the node's value at slot `base`.  Only the 64 continuation bytes
    follow a first byte, so one node's children fill a quarter page, and two nodes with equal
    subtrees can share them: only their offsets differ.
    """

    def __init__(self) -> None:
        self._pages = [np.zeros(_PAGE, np.uint32), np.zeros(_PAGE, np.uint32)]
        self._pages[0][0] = _PAGE << 10  # the root; its children fill page 1
        self._blocks: list[int] = []
        self._holes: list[int] = []

    def _new_page(self) -> None:
        start = len(self._pages) * _PAGE
        self._pages.append(np.zeros(_PAGE, np.uint32))
        # Children go to the upper half of a page, for then the value slot of either block lies in
        # the lower half, and what remains there is room for the values of single characters.
        self._blocks += [start + 0xC0, start + 0x80]
        self._holes += [start + slot for slot in range(0x7F, 0, -1) if slot != 0x40]

    def value(self, value: int) -> int:
        """Stores a value and returns its base."""
        if not self._holes:
            self._new_page()
        slot = self._holes.pop()
        self._pages[slot // _PAGE][slot % _PAGE] = _LEAF | value
        return slot

    def block(self, children: np.ndarray, value: int) -> int:
        """Stores the 64 bases in `children` (-1: no such child) and returns their common base."""
        if not self._blocks:
            self._new_page()
        start = self._blocks.pop()
        base = start ^ 0x80
        slots = np.arange(start, start + 64)
        page = self._pages[start // _PAGE]
        page[start % _PAGE : start % _PAGE + 64] = _unit(slots, 0x80 | slots & 0x3F, children)
        page[base % _PAGE] = _LEAF | value
        return base

    def first_bytes(self, children: np.ndarray) -> None:
        """Stores the 255 bases that the bytes 1 to 255 lead to."""
        labels = np.arange(1, _PAGE)
        self._pages[1][1:] = _unit(_PAGE + labels, labels, children)

    def array(self) -> np.ndarray:
        units = np.concatenate(self._pages)
        if len(units) > 1 << 21:
            raise ValueError("the character map is too large for a normalizer model")
        return units


def _unit(slots: np.ndarray, labels: np.ndarray, bases: np.ndarray) -> np.ndarray:
    units = (slots ^ bases) << 10 | _HAS_LEAF | labels
    return np.where(bases < 0, 0, units).astype(np.uint32)


def normalizer_model(strings: list[bytes], choice: np.ndarray, invalid: bytes) -> np.ndarray:
    """Builds a FastBertNormalize model from any character map.

    Args:
        strings: replacement strings.  The first stands for "unchanged", whatever it holds.
        choice: int [0x110000], for each codepoint the index of its string.
        invalid: what a byte sequence that is not UTF-8 becomes.  The kernel cuts such input into
            the sequences that `bytes.decode(errors="replace")` would replace, one by one.

    Returns:
        uint8 array, the flatbuffer.

    Raises:
        ValueError: a string is longer than 63 bytes, or the map outgrows the format.
    """
    pool = bytearray()
    positions: dict[bytes, int] = {}

    def encoded(string: bytes) -> int:
        if len(string) > MAX_REPLACEMENT_BYTES:
            raise ValueError(f"replacement longer than {MAX_REPLACEMENT_BYTES} bytes: {string!r}")
        if string not in positions:
            positions[string] = len(pool)
            pool.extend(string)
        return _DIFFERENT | positions[string] << _LENGTH_BITS | len(string)

    trie = DoubleArray()
    invalid_value = encoded(invalid)
    zero = encoded(strings[choice[0]]) if choice[0] else 0
    bases = np.array([-1] + [trie.value(encoded(string)) for string in strings[1:]])[choice]

    def blocks(children: np.ndarray) -> np.ndarray:
        stored: dict[bytes, int] = {}
        result = []
        for row in children.reshape(-1, 64):
            key = row.tobytes()
            if key not in stored:
                stored[key] = trie.block(row, invalid_value)
            result.append(stored[key])
        return np.array(result)

    # Level by level from the last byte up; F4, the last first byte, has only part of its children.
    last = blocks(bases)
    middle = blocks(np.concatenate([last, np.full(-len(last) % 4096, -1)]))
    four = blocks(middle)
    first = np.full(_PAGE, trie.value(invalid_value))
    first[:0x80] = bases[:0x80]
    first[0xC2:0xE0] = last[2:32]
    first[0xE0:0xF0] = middle[:16]
    first[0xF0:0xF5] = four[:5]
    trie.first_bytes(first[1:])
    units = trie.array()

    builder = flatbuffers.Builder(units.nbytes + len(pool) + 256)
    pool_offset = builder.CreateNumpyVector(np.frombuffer(bytes(pool) or b"\0", np.uint8))
    trie_offset = builder.CreateNumpyVector(units)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, trie_offset, 0)
    builder.PrependInt32Slot(2, zero, 0)
    builder.PrependUOffsetTRelativeSlot(3, pool_offset, 0)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)


def sentence_model(word_model: bytes) -> np.ndarray:
    """Turns a FastWordpiece model of single words into one that takes whole sentences.

    The sentence models that tensorflow-text builds carry a node for each punctuation mark and
    Chinese character that its own Unicode tables know.  Text whose words stand apart by spaces
    needs none of them, and the model is smaller and does not depend on those tables.

    Args:
        word_model: from `tensorflow_text.build_fast_wordpiece_model(no_pretokenization=True)`.

    Returns:
        uint8 array, the flatbuffer.
    """
    root = encode.Get(packer.uoffset, word_model, 0)
    table = Table(word_model, root)
    uint32 = number_types.Uint32Flags

    def vector(field: int, dtype: type) -> np.ndarray:
        offset = table.Offset(4 + 2 * field)
        if not offset:
            return np.zeros(0, dtype)
        count = table.VectorLen(offset)
        return np.frombuffer(word_model, dtype, count, table.Vector(offset))

    def number(field: int) -> int:
        return int(table.GetSlot(4 + 2 * field, 0, uint32))

    builder = flatbuffers.Builder(len(word_model) + 256)
    # Field 1 is a vector of pairs of uint32, which a vector of uint64 equals byte for byte.
    vectors = {0: np.uint32, 1: np.uint64, 2: np.int32, 8: np.int32}
    offsets = {field: builder.CreateNumpyVector(vector(field, dtype))
               for field, dtype in vectors.items()}  # fmt: skip
    for field in (5, 6):
        text = table.String(table.Offset(4 + 2 * field) + table.Pos)
        offsets[field] = builder.CreateString(text)
    builder.StartObject(14)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    for field in (3, 4, 7, 9):
        builder.PrependUint32Slot(field, number(field), 0)
    builder.PrependBoolSlot(10, True, False)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)
