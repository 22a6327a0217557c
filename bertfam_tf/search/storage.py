"""The files of an index: a description, and parts with vectors and texts.

``index.json`` names the model and its settings. ``part-NNNNN.safetensors`` has the ``vectors`` of
some documents, their ``rows`` in the file, ``texts`` and ``ids``, concatenated UTF-8, and
``text_ends`` and ``id_ends``, their byte offsets. Files in faiss' own format are never read: an
untrusted file could make it read or write out of bounds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from bertfam_tf import files, parsing
from bertfam_tf.checkpoints import safetensors as written
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.tasks.precision import checked_ranges

FILE = "index.json"
FORMAT = 1
PRECISIONS = ("float32", "int8", "binary")
_MAX_WIDTH, _MAX_ROWS = 1 << 20, 1 << 40
_DTYPES = {"float32": "float32", "int8": "int8", "binary": "uint8"}
_STORED = {"float32": "F32", "int8": "I8", "binary": "U8"}


@dataclass(frozen=True)
class Description:
    """The content of ``index.json``.

    Attributes:
        model: the model's sha256, see ``fingerprint``.
        family, name: the model's family and name, for people.
        width: the number of values of an embedding.
        precision: the precision of the stored vectors, one of ``PRECISIONS``.
        prompt: the name of the prompt before each document, or None.
        source: identifies the file of documents.
        rows: the number of its rows.
        part_rows: the number of rows of a part.
        ranges: for int8, the smallest and the largest of each value; None before the first part.
        documents: the number of documents; None while it is being built.
        format: the version of the format of these files.
    """

    model: str
    family: str
    name: str
    width: int
    precision: str
    prompt: str | None
    source: dict[str, Any]
    rows: int
    part_rows: int
    ranges: list[list[float]] | None = None
    documents: int | None = None
    format: int = FORMAT

    @property
    def parts(self) -> int:
        """The number of parts."""
        return -(-self.rows // self.part_rows)

    @property
    def stored_width(self) -> int:
        """The number of columns of the stored vectors."""
        return -(-self.width // 8) if self.precision == "binary" else self.width


def write_description(directory: Path, described: Description) -> None:
    """Writes ``index.json`` atomically."""
    files.write(directory / FILE, json.dumps(asdict(described), indent=2) + "\n")


def read_description(directory: Path) -> Description:
    """Returns the description of an index.

    Raises:
        ValueError: if there is none, or it is damaged.
    """
    file = directory / FILE
    if not file.is_file():
        raise ValueError(f"No {FILE} in {directory}; expected an index of bertfam index.")
    stored = parsing.read_json(file)
    names = {field.name for field in fields(Description)}
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or names != set(stored):
        raise ValueError(f"{file} is not the description of an index of format {FORMAT}.")
    limits = {"width": _MAX_WIDTH, "rows": _MAX_ROWS, "part_rows": _MAX_ROWS}
    for name, largest in limits.items():
        if type(stored[name]) is not int or not 1 <= stored[name] <= largest:
            raise ValueError(f"{file}: {name} must be from 1 to {largest:,}, got "
                             f"{truncated_repr(stored[name])}.")  # fmt: skip
    documents, precision = stored["documents"], stored["precision"]
    whole = documents is None or (type(documents) is int and 0 < documents <= stored["rows"])
    texts = ("model", "family", "name")
    if (
        not whole
        or precision not in PRECISIONS
        or not isinstance(stored["prompt"], str | None)
        or not isinstance(stored["source"], dict)
        or not all(isinstance(stored[name], str) for name in texts)
    ):
        raise ValueError(f"{file} has a value that is not valid; build the index again.")
    if stored["ranges"] is not None or (precision == "int8" and documents is not None):
        try:
            checked_ranges(precision, stored["ranges"], stored["width"])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}: {error}") from error
    return Description(**stored)


class Part:
    """One file of an index.

    Args:
        file: its path.
        described: the index.

    Attributes:
        count: the number of its documents.

    Raises:
        ValueError: if the file is missing or damaged, or does not fit the description.
    """

    def __init__(self, file: Path, described: Description):
        self.file = file
        self._tensors = written.read_file(file)
        about = self._about()
        self.count = about["rows"][1][0] if len(about["rows"][1]) == 1 else -1
        expected = {
            "vectors": (_STORED[described.precision], (self.count, described.stored_width)),
            "rows": ("I64", (self.count,)),
            "text_ends": ("I64", (self.count,)),
            "id_ends": ("I64", (self.count,)),
        }
        for name, (dtype, shape) in expected.items():
            if about[name] != (dtype, shape) or not 0 <= self.count <= described.part_rows:
                actual = " ".join(map(str, about[name]))
                raise ValueError(
                    f"{file}: {name} is {actual}, expected {dtype} {shape}, of at most "
                    f"{described.part_rows} rows."
                )
        for name in ("texts", "ids"):
            if about[name][0] != "U8" or len(about[name][1]) != 1:
                raise ValueError(f"{file}: {name} is {about[name]}, expected bytes.")
        self._sizes = {name: about[name][1][0] for name in ("texts", "ids")}

    def vectors(self) -> np.ndarray:
        """Returns the stored vectors, (documents, width) or (documents, bytes).

        Raises:
            ValueError: if values are not finite.
        """
        stored = self._tensors["vectors"]
        if stored.dtype == np.float32 and not np.isfinite(stored).all():
            raise ValueError(f"{self.file}: vectors contains NaN or infinity.")
        return stored

    def documents(self, places: Sequence[int]) -> list[tuple[int, str, str]]:
        """Returns the row, id and text of documents of this part.

        Raises:
            ValueError: if the file lacks texts or ids.
        """
        rows = self._tensors["rows"]
        texts, ids = (self._strings(name, places) for name in ("text", "id"))
        return [(int(rows[p]), i, t) for p, i, t in zip(places, ids, texts, strict=True)]

    def _strings(self, kind: str, places: Sequence[int]) -> list[str]:
        ends, size = self._tensors[f"{kind}_ends"], self._sizes[f"{kind}s"]
        if len(ends) and (ends[-1] != size or ends[0] < 0 or (np.diff(ends) < 0).any()):
            raise ValueError(f"{self.file}: {kind}_ends does not divide {size:,} bytes.")
        with self._opened() as opened:
            stored = opened.get_slice(f"{kind}s")
            spans = [(int(ends[p - 1]) if p else 0, int(ends[p])) for p in places]
            encoded = [stored[a:b].tobytes() if a < b else b"" for a, b in spans]
        return [string.decode("utf-8", "replace") for string in encoded]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        parsing.check_regular(self.file)
        try:
            with safetensors.safe_open(self.file, framework="numpy") as opened:
                yield opened
        except (safetensors.SafetensorError, OSError, MemoryError) as error:
            raise ValueError(
                f"{self.file} cannot be read as safetensors; it may be missing, truncated or "
                f"damaged: {truncated(error)}"
            ) from error

    def _about(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        names = {"vectors", "rows", "texts", "text_ends", "ids", "id_ends"}
        if self._tensors.keys() != names:
            raise ValueError(
                f"{self.file} has {', '.join(sorted(self._tensors))[:200]}, expected "
                f"{', '.join(sorted(names))}."
            )
        return {name: (self._tensors.dtype(name), self._tensors.shape(name)) for name in names}


def write_part(
    file: Path,
    described: Description,
    vectors: np.ndarray,
    documents: list[tuple[int, bytes, bytes]],
) -> None:
    """Writes a part atomically.

    Args:
        file: its path.
        described: the index.
        vectors: (documents, width), or (documents, bytes) for binary.
        documents: the row, id and text of each document.
    """
    rows, ids, texts = zip(*documents, strict=True) if documents else ((), (), ())
    arrays = {
        "vectors": np.ascontiguousarray(vectors, _DTYPES[described.precision]),
        "rows": np.array(rows, "int64"),
    }
    for name, strings in (("text", texts), ("id", ids)):
        arrays[f"{name}s"] = np.frombuffer(b"".join(strings), "uint8")
        arrays[f"{name}_ends"] = np.cumsum([len(string) for string in strings], dtype="int64")
    with files.atomic(file) as temporary:
        written.write(arrays, temporary)


def part_file(directory: Path, number: int) -> Path:
    """Returns the path of a part."""
    return directory / f"part-{number:05}.safetensors"


def parts(directory: Path, described: Description) -> Iterator[Part]:
    """Yields the parts of an index; errors as for ``Part``."""
    return (Part(part_file(directory, i), described) for i in range(described.parts))
