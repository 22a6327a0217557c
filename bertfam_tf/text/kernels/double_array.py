"""Double-array tries over UTF-8 bytes, in the layout of the darts-clone library."""

from __future__ import annotations

import numpy as np

PAGE = 256
HAS_VALUE = 1 << 8
IS_VALUE = 1 << 31


class DoubleArray:
    """Builds a trie.

    The child with label ``c`` of the node at slot ``n`` is at slot ``base ^ c``, where ``base = n ^
    offset(n)``, and the node's value is at slot ``base``. Only the 64 continuation bytes can follow
    a first byte, so the children of a node fill a quarter of a page, and two nodes with
    equal subtrees can share them: only their offsets differ.
    """

    def __init__(self) -> None:
        self._pages = [np.zeros(PAGE, np.uint32), np.zeros(PAGE, np.uint32)]
        self._pages[0][0] = PAGE << 10  # the root; its children fill page 1
        self._blocks: list[int] = []
        self._holes: list[int] = []
        self._stored: dict[bytes, int] = {}

    def _new_page(self) -> None:
        start = len(self._pages) * PAGE
        self._pages.append(np.zeros(PAGE, np.uint32))
        # Children go to the upper half of a page: the value slot of either block is then in the
        # lower half, whose remaining slots hold the values of single characters.
        self._blocks += [start + 0xC0, start + 0x80]
        self._holes += [start + slot for slot in range(0x7F, 0, -1) if slot != 0x40]

    def value(self, value: int) -> int:
        """Stores a value and returns its base."""
        if not self._holes:
            self._new_page()
        slot = self._holes.pop()
        self._pages[slot // PAGE][slot % PAGE] = IS_VALUE | value
        return slot

    def blocks(self, children: np.ndarray, value: int) -> np.ndarray:
        """Stores nodes, equal ones once.

        Args:
            children: int [n, 64] or any shape that reshapes to it, the bases of the children of
                each node; -1 for none.
            value: the value of all these nodes.

        Returns:
            int [n], the base of each node.
        """
        result = []
        for node in children.reshape(-1, 64):
            key = node.tobytes()
            if key not in self._stored:
                self._stored[key] = self._block(node, value)
            result.append(self._stored[key])
        return np.array(result)

    def _block(self, children: np.ndarray, value: int) -> int:
        if not self._blocks:
            self._new_page()
        start = self._blocks.pop()
        base = start ^ 0x80
        slots = np.arange(start, start + 64)
        page = self._pages[start // PAGE]
        page[start % PAGE : start % PAGE + 64] = _units(slots, 0x80 | slots & 0x3F, children)
        page[base % PAGE] = IS_VALUE | value
        return base

    def first_bytes(self, children: np.ndarray) -> None:
        """Stores the bases, int [255], that the first bytes 1 to 255 lead to."""
        labels = np.arange(1, PAGE)
        self._pages[1][1:] = _units(PAGE + labels, labels, children)

    def array(self) -> np.ndarray:
        """Returns the trie, uint32.

        Raises:
            ValueError: if the trie outgrows the format.
        """
        units = np.concatenate(self._pages)
        if len(units) > 1 << 21:
            raise ValueError("the character map is too large for a normalizer model.")
        return units


def _units(slots: np.ndarray, labels: np.ndarray, bases: np.ndarray) -> np.ndarray:
    units = (slots ^ bases) << 10 | HAS_VALUE | labels
    return np.where(bases < 0, 0, units).astype(np.uint32)
