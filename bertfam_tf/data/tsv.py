"""Tab-separated files, streamed: no quoting, and each line is a row, an empty one too.

TensorFlow's reader of lines drops carriage returns wherever they stand.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from bertfam_tf.data.errors import MARK
from bertfam_tf.data.labels import index_of
from bertfam_tf.names import unknown


def read_tsv(
    file: str | Path,
    columns: Mapping[str, str | int],
    *,
    limit: int | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
) -> tf.data.Dataset:
    """Rows of a file as dicts of string scalars, split in the graph.

    Args:
        file: UTF-8 with or without a byte-order mark, LF or CRLF.
        columns: for each name wanted, its column: a name in the file's first line, or a number
            from 0 for a file without a header line.
        limit: reads no more rows than this.
        known: for some of the names, all values that they may have.

    Returns:
        A data set of known cardinality. A row with another number of columns than the first line,
        or with a value that is not known, is an ``InvalidArgumentError`` that names file and line;
        under ``as_value_errors``, as in a task's ``fit``, a ``ValueError``.

    Raises:
        ValueError: when the file is missing or empty, has no such column, or ``limit`` is below 1.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    if limit is not None and limit < 1:
        raise ValueError(f"The limit is 1 or more rows, not {limit}.")
    with path.open("rb") as stream:
        first = stream.readline()
        lines = bool(first) + _count_lines(stream)
    header = first.decode("utf-8-sig", "replace").rstrip("\r\n").split("\t")
    has_header = any(isinstance(column, str) for column in columns.values())
    positions = {name: _position(path, header, column) for name, column in columns.items()}
    rows = max(lines - has_header, 0)
    rows = rows if limit is None else min(rows, limit)
    if not rows:
        raise ValueError(f"{path} has no rows.")

    def parse(number: tf.Tensor, line: tf.Tensor) -> dict[str, tf.Tensor]:
        cells = tf.strings.split(line, "\t")
        where = f"{MARK}{path}: line "
        expected = f" columns; expected {len(header)}, as in the first line."
        found = tf.strings.as_string(tf.size(cells))
        at = tf.strings.as_string(number)
        check = tf.debugging.Assert(
            tf.size(cells) == len(header), [tf.strings.join([where, at, " has ", found, expected])]
        )
        with tf.control_dependencies([check]):
            row = {name: tf.gather(cells, position) for name, position in positions.items()}
        at_line = tf.strings.join([f"{path}: line ", at, ": "])
        checks = [index_of(row[n], values, n, at_line) for n, values in (known or {}).items()]
        with tf.control_dependencies(checks):
            return {name: tf.identity(cell) for name, cell in row.items()}

    dataset = tf.data.TextLineDataset(str(path)).skip(int(has_header)).take(rows)
    if not has_header and first.startswith(b"\xef\xbb\xbf"):
        dataset = dataset.map(lambda line: tf.strings.regex_replace(line, "^\ufeff", ""))
    dataset = dataset.enumerate(start=1 + has_header)
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.apply(tf.data.experimental.assert_cardinality(rows))


def _count_lines(stream) -> int:
    lines, last = 0, b"\n"
    while chunk := stream.read(1 << 20):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")


def _position(path: Path, header: list[str], column: str | int) -> int:
    if isinstance(column, str):
        if column not in header:
            raise ValueError(f"{path}, first line: {unknown('column', column, header)}")
        return header.index(column)
    if not 0 <= column < len(header):
        raise ValueError(f"{path} has {len(header)} columns; there is no column {column}.")
    return column
