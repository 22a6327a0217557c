"""Reads the metadata of `.tflite` files by the flatbuffers' own rules, without a library."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, NamedTuple

# Types of tokenizers in the schema, and their files.
_TOKENIZERS = {4: "vocab.txt", 5: "spiece.model"}


class Table:
    """A flatbuffer's table.

    Args:
        content: the flatbuffer.
        place: the position of the table in it; None for its root.
    """

    def __init__(self, content: bytes, place: int | None = None):
        self.content = content
        self.place = self._number("I", 0) if place is None else place

    def _number(self, kind: str, place: int) -> Any:
        return struct.unpack_from(f"<{kind}", self.content, place)[0]

    def has(self, field: int) -> bool:
        return bool(self._field(field))

    def _field(self, field: int) -> int:
        vtable = self.place - self._number("i", self.place)
        if 4 + 2 * field >= self._number("H", vtable):
            return 0
        offset = self._number("H", vtable + 4 + 2 * field)
        return offset and self.place + offset

    def _target(self, field: int) -> int:
        place = self._field(field)
        return place + self._number("I", place)

    def byte(self, field: int) -> int:
        return self.content[self._field(field)]

    def integer(self, field: int) -> int:
        return self._number("I", self._field(field))

    def bytes(self, field: int) -> bytes:
        start = self._target(field)
        return bytes(self.content[start + 4 : start + 4 + self._number("I", start)])

    def text(self, field: int) -> str:
        return self.bytes(field).decode("utf-8")

    def table(self, field: int) -> Table:
        return Table(self.content, self._target(field))

    def tables(self, field: int) -> list[Table]:
        if not self.has(field):
            return []
        start = self._target(field)
        places = [start + 4 + 4 * i for i in range(self._number("I", start))]
        return [Table(self.content, place + self._number("I", place)) for place in places]


def metadata_table(model: bytes) -> Table | None:
    """Returns the root of a model's metadata; None if there are none."""
    root = Table(model)
    entries = {entry.text(0): entry.integer(1) for entry in root.tables(6)}
    index = entries.get("TFLITE_METADATA")
    return None if index is None else Table(root.tables(4)[index].bytes(0))


class Metadata(NamedTuple):
    """The metadata of a file.

    Fields:
        name, description: texts; "" if missing.
        inputs, outputs: the names of the tensors, in the file's order.
        tokenizer: the name of the tokenizer's file; "" if the app tokenizes.
        files: name to content of the associated files.
    """

    name: str
    description: str
    inputs: list[str]
    outputs: list[str]
    tokenizer: str
    files: dict[str, bytes]


def read_metadata(model: bytes) -> Metadata | None:
    """Returns the metadata of a model; None if there are none."""
    root = metadata_table(model)
    if root is None:
        return None
    files = {}
    if zipfile.is_zipfile(io.BytesIO(model)):
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    [graph] = root.tables(3)
    return Metadata(
        *(root.text(field) if root.has(field) else "" for field in (0, 1)),
        inputs=[entry.text(0) for entry in graph.tables(2)],
        outputs=[entry.text(0) for entry in graph.tables(3)],
        tokenizer="".join(_TOKENIZERS[unit.byte(0)] for unit in graph.tables(5)),
        files=files,
    )
