"""Reads the files of a split, in any of the formats."""

from __future__ import annotations

import copy
import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bertfam_tf import parsing
from bertfam_tf.data.columnar import columnar_rows
from bertfam_tf.data.conll import conll_rows
from bertfam_tf.data.published import Published
from bertfam_tf.data.questions import squad_rows
from bertfam_tf.data.race import archive_of, race_rows
from bertfam_tf.data.records import Column, csv_rows, first_bytes, json_rows, jsonl_rows, tsv_rows
from bertfam_tf.data.rows import InvalidRow, Reader, Row, Rows
from bertfam_tf.data.sampling import is_usual_name
from bertfam_tf.data.targets import Tags, Target
from bertfam_tf.names import unknown
from bertfam_tf.user_warnings import warn

_RECORDS = {
    "tsv": tsv_rows, "csv": csv_rows, "jsonl": jsonl_rows, "json": json_rows,
    "parquet": columnar_rows, "arrow": columnar_rows,
}  # fmt: skip
FORMATS = (*_RECORDS, "conll", "squad", "race", "tfds", "txt")
_SUFFIXES = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll",
    ".json": "squad", ".txt": "txt", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
_TEXT: Mapping[str, Column] = {"text": "text", "label": "label"}
# Before the name of a data set of tensorflow-datasets and a split, in place of a file.
TFDS = "tfds:"


def format_of(file: str | Path, default: str = "tsv") -> str:
    """Returns the format of a file by its name: .tsv, .csv, .jsonl, .conll, .txt, .parquet, .arrow
    or .feather, each of which .gz may follow; tfds for ``tfds:NAME/SPLIT``; race for folders and
    tar archives; ``default`` for all others.

    A file .json is of the format squad, or json if its content is an array or has several lines
    of objects. Of a pattern such as ``*.csv``, the first file decides.
    """
    if is_published(file):
        return "tfds"
    path = next(iter(_matches(file)), Path(file))
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if path.is_dir() or (suffix not in _SUFFIXES and archive_of(path) is not None):
        return "race"
    if suffix == ".json" and path.is_file() and not _is_squad(path):
        return "json"
    return _SUFFIXES.get(suffix, default)


def is_published(file: str | Path) -> bool:
    """Returns whether a name names a split of tensorflow-datasets, ``tfds:NAME/SPLIT``."""
    return str(file).startswith(TFDS)


def expanded(files: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """Returns files with the matches of patterns such as ``*.csv.gz``, sorted, in their place.

    Raises:
        ValueError: if a pattern matches no file.
    """
    paths: list[str | Path] = []
    for file in [files] if isinstance(files, str | Path) else files:
        matches = _matches(file)
        if not matches and glob.has_magic(str(file)) and not _exists(file):
            raise ValueError(f"There is no file {file}.")
        paths += matches or [file]
    return paths


def _matches(file: str | Path) -> list[Path]:
    if is_published(file) or _exists(file) or not glob.has_magic(str(file)):
        return []
    return [Path(match) for match in sorted(glob.glob(str(file), recursive=True))]


def _exists(file: str | Path) -> bool:
    # The path may continue inside an archive.
    return Path(file).exists() or archive_of(Path(file)) is not None


def _is_squad(file: Path) -> bool:
    """Returns whether JSON may be an object of SQuAD's format: not an array nor several objects."""
    start = first_bytes(file)
    if not start.startswith(b"{"):
        return not start.startswith(b"[")
    # A second line that begins with an object follows an object of its own.
    first, _, rest = start.partition(b"\n")
    return not (first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{"))


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
        files: one or several files, patterns such as ``*.csv.gz`` or splits of
            tensorflow-datasets (``tfds:glue/mrpc/train``), read one after the other; splits if
            ``format`` is tfds.
        columns: maps the names of features, and ``label``, to columns; see ``records``. None uses
            the columns ``text`` and ``label``; for conll, the last column as tags; and the known
            columns of a data set of tensorflow-datasets. The known columns of squad are
            ``question`` and ``context``, which also name the features that are not mapped.
        format: one of ``FORMATS``; None detects it from each file's name.
        target: reads labels; None omits them.
        limit: the maximum number of rows.
        skip: whether invalid rows are skipped; otherwise the first one raises an error.
        iob2: whether ``target``, if it reads ``Tags``, converts them from IOB1 to IOB2.
        tfds, data_dir: the data set of tensorflow-datasets, and the directory of prepared data.

    Raises:
        ValueError: if a row is invalid (the message names file and line), a file is missing or has
            no rows, or ``limit`` is below 1.
    """
    if tfds is None and format in (None, "tfds"):
        splits = published_splits(files)
        if splits is not None:
            (tfds, files), format = splits, "tfds"
    files = [files] if isinstance(files, str | Path) else list(files)
    if not files:
        raise ValueError("There are no files to read.")
    if format is not None and format not in FORMATS:
        raise ValueError(unknown("format", format, FORMATS))
    if iob2 and isinstance(target, Tags):
        # A copy that collects labels in the same place, so that other files read as before.
        target = copy.copy(target)
        target.iob2 = True
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
    rows = Rows(
        [(str(f), _reader(Path(f), format, columns, target is not None)) for f in expanded(files)],
        target,
        limit,
        skip,
    )
    if (format or format_of(files[0])) in ("tsv", "csv"):  # others have no line of names
        _warn_of_names(rows, columns or {})
    return rows


def _warn_of_names(rows: Rows, columns: Mapping[str, Column]) -> None:
    """Warns if the first line of a file with numbered columns seems to have their names."""
    numbers = {name: column for name, column in columns.items() if isinstance(column, int)}
    if not numbers:
        return
    first = next(iter(rows))
    cells = {
        name: value.decode("utf-8", "replace")
        for name, value in first.features.items()
        if name in numbers and isinstance(value, bytes)
    }
    if cells == {name: str(numbers[name]) for name in cells} != {}:
        warn(
            f"{first.location} seems to have the numbers of columns, as pandas writes them for "
            "columns without names, but is read as a row: remove the line (header=False)."
        )
    for name, text in cells.items():
        if is_usual_name(text):
            warn(
                f"{first.location} seems to have the names of columns, but is read as a row: "
                f"choose the column {text!r} in place of {numbers[name]}."
            )


def published_splits(files: str | Path | Sequence[str | Path]) -> tuple[str, list[str]] | None:
    """Returns the data set and the splits of names ``tfds:NAME/SPLIT``; None for files.

    Raises:
        ValueError: if files or other data sets are among them, or a name is incomplete.
    """
    names = list(map(str, [files] if isinstance(files, str | Path) else files))
    if not any(map(is_published, names)):
        return None
    pairs = [name.removeprefix(TFDS).rpartition("/")[::2] for name in names]
    if not all(map(is_published, names)) or len({name for name, _ in pairs}) > 1:
        raise ValueError(
            "Splits of tensorflow-datasets must be of one data set, and not mixed with files, "
            f"got {', '.join(names)}."
        )
    if not all(name and split for name, split in pairs):
        raise ValueError(
            f"{names[0]!r} must have a data set and a split, such as tfds:glue/mrpc/train."
        )
    return pairs[0][0], [split for _, split in pairs]


def _reader(
    file: Path, format: str | None, columns: Mapping[str, Column] | None, labelled: bool
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
        return partial(conll_rows, file, word, tag if labelled else None)  # type: ignore[arg-type]
    return partial(_RECORDS[format], file, columns_by_name)


def _lines(file: Path) -> Iterator[Row | InvalidRow]:
    """Yields one text per line."""
    for number, line in enumerate(parsing.byte_lines(file), 1):
        location = f"{file}: line {number}"
        text = line.rstrip(b"\n").removesuffix(b"\r")
        yield Row(location, {"text": text}, not_utf8=parsing.not_utf8(location, line))
