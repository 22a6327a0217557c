"""Rows of files: validated once before training, then streamed in each epoch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import marked
from bertfam_tf.data.targets import Names, Target
from bertfam_tf.names import join_names, printable

# The number of rows that are passed from Python into the graph at a time.
_CHUNK = 256
_SHOWN = 3
# The maximum length of an error message, which may quote a cell of any size.
_LONGEST = 400
_log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One row of a file: an example.

    Fields:
        location: where it is, such as ``train.csv: line 3``.
        features: texts by the feature names of tasks; UTF-8, or a list of UTF-8 strings.
        label: the label in the file, or converted by a ``Target``; None if there is none.
        id: the row's id in the file, a number if JSON or a table has one; or None.
        lines: its number of lines; more than one if quotes contain line breaks.
        not_utf8: the error message if bytes of its line are not UTF-8.
    """

    location: str
    features: dict[str, bytes | list[bytes]]
    label: Any = None
    id: str | int | float | None = None
    lines: int = 1
    not_utf8: str = ""


class InvalidRow(ValueError):
    """An error in one row, which readers yield instead of the row.

    Args:
        kind: the kind of error, in one word, for counting.
        text: the error message, which includes the location.
        lines: the number of lines of the row.
    """

    def __init__(self, kind: str, text: str, lines: int = 1):
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        if lines > 1:
            text += f" Quotes make {lines:,} lines, from that one on, a single row."
        super().__init__(printable(text))
        self.kind = kind
        self.lines = lines


Reader = Callable[[], Iterator[Row | InvalidRow]]


@dataclass
class Rows:
    """The rows of a split, in the order of its files.

    The constructor reads everything once, so that invalid rows are found before training starts,
    and sizes are known. Iterating reads again, so that memory does not grow with the files.

    Args:
        readers: the name of each file, and a function that reads it from the beginning.
        target: converts labels; None omits them.
        limit: the maximum number of rows.
        skip: whether invalid rows are skipped, counted and logged; otherwise the first one raises
            an error. Rows that are not UTF-8 are invalid if there is a target; in files without
            labels, which are only read, the first one is logged.

    Attributes:
        count: the number of valid rows.
        skipped: the number of skipped rows by kind of error.
        labels: the number of rows by label, of a target that names labels.
        skipped_lines: the number of their lines; larger if a stray quote in a CSV file joins lines.

    Raises:
        ValueError: if a row is invalid, a file has no rows, no row has a label of those that a
            target collects, or ``limit`` is below 1.
    """

    readers: list[tuple[str, Reader]]
    target: Target | None = None
    limit: int | None = None
    skip: bool = False
    count: int = field(init=False, default=0)
    skipped: Counter[str] = field(init=False, default_factory=Counter)
    skipped_lines: int = field(init=False, default=0)
    labels: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}.")
        self._first: Row | None = None
        first_ones: list[str] = []
        broken, first_broken = 0, ""
        for name, reader in self.readers:
            before, invalid = self.count, ""
            for row in self._checked(name, reader):
                if isinstance(row, InvalidRow):
                    if not self.skip:
                        raise ValueError(str(row))
                    self.skipped[row.kind] += 1
                    self.skipped_lines += row.lines
                    invalid = invalid or str(row)
                    first_ones += [str(row)] if len(first_ones) < _SHOWN else []
                    continue
                broken += bool(row.not_utf8)
                first_broken = first_broken or printable(row.not_utf8)
                self._first = self._first or row
                if self.target is not None:
                    self.labels.update(self.target.names_in(row.label))
                self.count += 1
                if self.count == self.limit:
                    break
            if self.count == before:
                problem = f" that are valid. The first error: {invalid}" if invalid else "."
                raise ValueError(f"{name} has no rows{problem}")
            if self.count == self.limit:
                break
        if isinstance(self.target, Names) and not self.target.names:
            names = join_names([name for name, _ in self.readers], _SHOWN)
            raise ValueError(f"No row of {names} has a label.")
        if broken:
            _log.warning(
                "%d rows are not UTF-8, and the bytes that are not are read as U+FFFD. The first: "
                "%s",
                broken,
                first_broken,
            )
        if self.skipped:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.skipped.most_common())
            rows = self.skipped.total()
            _log.warning(
                "Skipped %d rows%s and kept %d: %s. The first: %s",
                rows,
                f" ({self.skipped_lines:,} lines)" if self.skipped_lines > rows else "",
                self.count,
                kinds,
                " ".join(first_ones),
            )

    def _checked(self, name: str, reader: Reader) -> Iterator[Row | InvalidRow]:
        try:
            for row in reader():
                if isinstance(row, Row):
                    row = self._with_target(row)
                yield row
        except OSError as error:  # of reads from an open file, which do not name it
            if error.filename is not None or error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, name) from error

    def _with_target(self, row: Row) -> Row | InvalidRow:
        for name, value in row.features.items():
            before = value if self._first is None else self._first.features[name]
            size, expected = (
                len(v) if isinstance(v, list) else "no list of" for v in (value, before)
            )
            if size != expected or size == 0:
                text = f"{row.location} has {size} {name}, expected {expected or 'some'} as before."
                return InvalidRow(name, text, row.lines)
        if self.target is None:
            return row._replace(label=None)
        if row.not_utf8:
            return InvalidRow("encoding", row.not_utf8, row.lines)
        try:
            return row._replace(label=self.target.read(row.label, row.features))
        except ValueError as error:
            return InvalidRow(self.target.what, f"{row.location}: {error}", row.lines)

    def __iter__(self) -> Iterator[Row]:
        """Yields the valid rows.

        Raises:
            ValueError: if a file was changed since it was validated.
        """
        good = (
            row for name, reader in self.readers for row in self._checked(name, reader)
            if isinstance(row, Row)
        )  # fmt: skip
        left = self.count
        for row in islice(good, self.count):
            left -= 1
            yield row
        if left:
            names = ", ".join(name for name, _ in self.readers)
            raise ValueError(f"{names} has {left} valid rows less than when it was validated.")

    def dataset(self) -> tf.data.Dataset:
        """Returns the rows as ``(features, label)``, or ``(features,)`` without a target.

        Returns:
            A data set of known cardinality. Features are a dict of string scalars, or of vectors of
            known size; the label has the ``spec`` of its ``Target``.
        """
        assert self._first is not None
        features = {
            name: tf.TensorSpec(
                [None] + ([len(value)] if isinstance(value, list) else []), "string"
            )
            for name, value in self._first.features.items()
        }
        spec: tuple = (features,)
        if self.target is not None:
            spec += (tf.nest.map_structure(_batched, self.target.spec),)
        dataset = tf.data.Dataset.from_generator(self._chunks, output_signature=spec)
        return dataset.unbatch().apply(tf.data.experimental.assert_cardinality(self.count))

    def _chunks(self) -> Iterator[tuple]:
        rows = iter(self)
        while chunk := list(marked(islice(rows, _CHUNK))):
            names = chunk[0].features
            members: tuple = ({n: _array([row.features[n] for row in chunk]) for n in names},)
            if self.target is not None:
                labels = [self.target.value(row.label) for row in chunk]
                if isinstance(labels[0], dict):
                    members += ({n: _array([label[n] for label in labels]) for n in labels[0]},)
                else:
                    members += (_array(labels),)
            yield members


def _batched(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def _array(column: Sequence[Any]) -> np.ndarray:
    leaf = column[0][0] if isinstance(column[0], list) else column[0]
    # dtype object keeps trailing NUL bytes, which numpy's string type drops.
    return np.array(column, dtype=object if isinstance(leaf, bytes) else "int32")


def as_bytes(text: str) -> bytes:
    """Encodes as UTF-8; restores bytes from surrogateescape, other surrogates become "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
