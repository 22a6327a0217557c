"""Reads the files of a split, in any of the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bertfam_tf.data.conll import conll_rows
from bertfam_tf.data.published import Published
from bertfam_tf.data.questions import squad_rows
from bertfam_tf.data.race import archive_of, race_rows
from bertfam_tf.data.records import Column, csv_rows, jsonl_rows, tsv_rows
from bertfam_tf.data.rows import InvalidRow, Reader, Row, Rows
from bertfam_tf.data.targets import Target
from bertfam_tf.names import unknown

_RECORDS = {"tsv": tsv_rows, "csv": csv_rows, "jsonl": jsonl_rows}
FORMATS = (*_RECORDS, "conll", "squad", "race", "tfds", "txt")
_SUFFIXES = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll",
    ".json": "squad", ".txt": "txt",
}  # fmt: skip
_TEXT: Mapping[str, Column] = {"text": "text", "label": "label"}


def format_of(file: str | Path, default: str = "tsv") -> str:
    """The format by file name extension: .tsv, .csv, .jsonl, .conll, .json (SQuAD), .txt; race for
    folders and tar archives; ``default`` for all others."""
    path = Path(file)
    if path.is_dir() or (path.suffix not in _SUFFIXES and archive_of(path) is not None):
        return "race"
    return _SUFFIXES.get(path.suffix, default)


def read_rows(
    files: str | Path | Sequence[str | Path],
    columns: Mapping[str, Column] | None = None,
    *,
    format: str | None = None,
    target: Target | None = None,
    limit: int | None = None,
    skip: bool = False,
    iob2: bool = False,
    tfds: str | None = None,
    data_dir: str | None = None,
) -> Rows:
    """Reads rows of local files, or of splits of a data set of tensorflow-datasets.

    Args:
        files: one or several files, read one after the other; splits if ``format`` is tfds.
        columns: maps the names of features, and ``label``, to columns; see ``records``. None uses
            the columns ``text`` and ``label``; for conll, the last column as tags; and the known
            columns of a data set of tensorflow-datasets. The known columns of squad are
            ``question`` and ``context``, which also name the features that are not mapped.
        format: one of ``FORMATS``; None detects it from each file's name.
        target: reads labels; None omits them.
        limit: the maximum number of rows.
        skip: whether invalid rows are skipped; otherwise the first one raises an error.
        iob2: whether to convert tags from IOB1 to IOB2; for conll.
        tfds, data_dir: the data set of tensorflow-datasets, and the directory of prepared data.

    Raises:
        ValueError: if a row is invalid (the message names file and line), a file is missing or has
            no rows, or ``limit`` is below 1.
    """
    files = [files] if isinstance(files, str | Path) else list(files)
    if not files:
        raise ValueError("There are no files to read.")
    if format is not None and format not in FORMATS:
        raise ValueError(unknown("format", format, FORMATS))
    if format == "tfds" or (format is None and tfds is not None):
        if tfds is None:
            raise ValueError("The format tfds needs the name of a data set, such as glue/mrpc.")
        published = Published(tfds, columns, data_dir)
        labelled = target is not None
        readers = [
            (f"{tfds} {split}", partial(published.rows, str(split), labelled=labelled))
            for split in files
        ]
        return Rows(readers, target, limit, skip)  # type: ignore[arg-type]
    return Rows(
        [(str(f), _reader(Path(f), format, columns, target is not None, iob2)) for f in files],
        target,
        limit,
        skip,
    )


def _reader(
    file: Path, format: str | None, columns: Mapping[str, Column] | None, labelled: bool, iob2: bool
) -> Reader:
    format = format or format_of(file)
    if format == "race":
        if not file.exists() and archive_of(file) is None:
            raise ValueError(f"There is no folder or archive {file}.")
        return partial(race_rows, file)
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    if format == "squad":
        return partial(squad_rows, file, columns, labelled=labelled)
    if format == "txt":
        return partial(_lines, file)
    columns_by_name = {
        name: column
        for name, column in (_TEXT if columns is None else columns).items()
        if labelled or name != "label"
    }
    if format == "conll":
        word, tag = (
            columns_by_name[name] if isinstance(columns_by_name.get(name), int) else default
            for name, default in (("text", 0), ("label", -1))
        )
        return partial(conll_rows, file, word, tag if labelled else None, iob2=iob2)  # type: ignore[arg-type]
    return partial(_RECORDS[format], file, columns_by_name)


def _lines(file: Path) -> Iterator[Row | InvalidRow]:
    """Yields one text per line."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            yield Row(f"{file}: line {number}", {"text": line.rstrip(b"\n").removesuffix(b"\r")})
