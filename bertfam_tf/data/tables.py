"""Tables of other libraries, and lists of rows, as columns: none of these libraries is imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bertfam_tf.data.columnar import class_names, named, pyarrow
from bertfam_tf.hints import hint
from bertfam_tf.names import unknown

TEXT = "text"
TEXT_PAIR = "text_pair"
LABEL = "label"
LANGUAGE = "language"
# Rows of a stream that are converted at a time.
_CHUNK = 256

Columns: TypeAlias = Mapping[str, str | int | Sequence[str | int]]


class Fields(NamedTuple):
    """Names of the features of an example.

    Fields:
        required: texts that every example has.
        optional: texts that an example may have.
        described: strings that describe an example, such as its language; only dicts, frames and
            data sets of dicts have them.
        aliases: usual names of columns in published tables, of a text or the label, where the
            column has not its own name; several columns are a label of several values.
        labelled: whether examples may have labels.
        words: whether a text may be a list of its words.
    """

    required: tuple[str, ...] = (TEXT,)
    optional: tuple[str, ...] = (TEXT_PAIR,)
    described: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    labelled: bool = True
    words: bool = False

    def __str__(self) -> str:
        required = " and ".join(map(repr, self.required))
        return " and optionally ".join([required, *map(repr, self.omissible)])

    @property
    def omissible(self) -> tuple[str, ...]:
        """All names that an example may lack."""
        return (*self.optional, *self.described)

    def check(self, features: Iterable[str]) -> None:
        """Raises ValueError for other names than these."""
        names = set(features)
        if not set(self.required) <= names <= {*self.required, *self.omissible}:
            raise ValueError(f"Features must be {self}, got {sorted(names)}.{hint(sorted(names))}")


TEXTS = Fields()


class Table(NamedTuple):
    """Columns by name, whatever library they are from.

    Fields:
        kind: the word for the table in error messages.
        names: the names of its columns; numbers of tuples' members.
        read: maps a name to the values, a list or an array.
    """

    kind: str
    names: list[Any]
    read: Callable[[Any], Any]


class Stream(NamedTuple):
    """Rows that are read again in each epoch.

    Fields:
        tables: starts to read, and yields some rows at a time.
    """

    tables: Callable[[], Iterator[Table]]


def is_frame(x: Any) -> bool:
    """Returns whether it is a ``DataFrame``."""
    return hasattr(x, "iloc") and hasattr(x, "columns")


def from_pandas(x: Any, name: str = "") -> Any:
    """Converts a pandas ``Series``, ``Index``, array or frame to lists or NumPy arrays.

    Args:
        x: anything; objects that are not from pandas are returned unchanged. Dicts and tuples are
            converted element by element.
        name: its name in error messages, if it has no name itself.

    Raises:
        ValueError: if a value is missing (None, NaN, ``pandas.NA``); the message names row and
            column.
    """
    if isinstance(x, Mapping):
        return {key: from_pandas(values, str(key)) for key, values in x.items()}
    if type(x) is tuple:
        return tuple(from_pandas(values, name) for values in x)
    if is_frame(x):
        if not x.columns.is_unique:
            repeated = str(x.columns[x.columns.duplicated()][0])
            raise ValueError(f"The DataFrame has several columns {repeated!r}, expected one.")
        rows = np.stack([np.asarray(from_pandas(x[c], str(c))) for c in x.columns], axis=1)
        return rows.tolist() if rows.dtype == object else rows
    if not hasattr(x, "to_numpy"):
        return x
    name = str(getattr(x, "name", None) or name)
    values = x.to_numpy()
    missing = np.flatnonzero(x.isna()) if hasattr(x, "isna") else np.zeros(0, int)
    if len(missing):
        row = int(missing[0])
        label = x.index[row] if hasattr(x, "index") and hasattr(x, "iloc") else row
        at = f"Row {row}" if label == row else f"Row {row} (index {label})"
        raise ValueError(
            f"{at} of {name!r} is missing, and {len(missing)} of {len(values)} rows are; drop "
            "them with dropna(), or fill them."
        )
    if values.dtype != object:
        return values
    # Lists in Parquet files are read as arrays.
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def as_table(x: Any) -> Table | None:
    """Returns a table of columns in memory; None for anything else.

    Args:
        x: a data frame of pandas or polars, a table of pyarrow or of a library that exports Arrow's
            C stream, a data set of ``datasets``, or a list of dicts.
    """
    if is_frame(x):
        return Table("DataFrame", list(x.columns), lambda name: from_pandas(x[name], str(name)))
    if _of(x, "polars"):
        if hasattr(x, "collect"):  # a LazyFrame
            x = x.collect()
        if hasattr(x, "get_column"):
            return Table("DataFrame", list(x.columns), lambda name: x.get_column(name).to_list())
        return None
    if _of(x, "datasets") and hasattr(x, "column_names") and hasattr(x, "__len__"):
        plain, classes = x.with_format(None), _classes_of(x)
        return Table(
            "Dataset",
            list(x.column_names),
            lambda name: _with_names(list(plain[name]), classes.get(name)),
        )
    if isinstance(x, list | tuple) and x and isinstance(x[0], Mapping):
        return _of_dicts(x)
    if hasattr(x, "to_pylist") and hasattr(x, "column_names"):  # pyarrow's tables and batches
        return _of_arrow(x)
    is_column = hasattr(x, "to_numpy") or hasattr(x, "to_pylist") or _of(x, "datasets")
    if hasattr(x, "__arrow_c_stream__") and not is_column:
        return _of_arrow(pyarrow(f"A {type(x).__name__}").table(x))
    return None


def as_stream(x: Any) -> Stream | None:
    """Returns the rows of an iterable data set of ``datasets`` or pyarrow; None for other data."""
    if _of(x, "datasets") and hasattr(x, "column_names") and not hasattr(x, "__len__"):
        plain, classes = x.with_format(None), _classes_of(x)

        def tables() -> Iterator[Table]:
            rows = iter(plain)
            while chunk := list(islice(rows, _CHUNK)):
                yield _of_dicts(chunk, classes)

        return Stream(tables)
    if _of(x, "pyarrow") and hasattr(x, "to_batches") and not hasattr(x, "column_names"):
        return Stream(lambda: (_of_arrow(b) for b in x.to_batches(batch_size=_CHUNK) if b.num_rows))
    return None


def of_columns(x: Mapping[str, Any]) -> Table:
    """Returns a dict of columns as a table."""
    return Table("dict", list(x), lambda name: values_of(x[name], str(name)))


def of_tuples(x: Any, fields: Fields, labelled: bool, pair: bool | None = None) -> Any:
    """Returns a list of examples that are tuples as columns, and anything else unchanged.

    Args:
        x: such as ``[("a fine film", "positive")]``: the texts in the order of ``fields``, and the
            label last; without labels also lists of several texts.
        fields: names of the texts.
        labelled: whether examples have a label, unless they are too short for one.
        pair: whether examples have the optional texts; None where both may be.

    Raises:
        ValueError: for tuples of different lengths.
    """
    if not isinstance(x, list) or not x:
        return x
    if not (labelled and fields.labelled) and _are_texts(x[0], fields):
        x = [tuple(row) if isinstance(row, list) else row for row in x]
    if not isinstance(x[0], tuple):
        return x
    texts = (*fields.required, *(() if pair is False else fields.optional))
    count, least = len(x[0]), len(fields.required)
    with_label = fields.labelled and least < count <= len(texts) + 1
    with_label = with_label and (labelled or count == len(texts) + 1)
    if not (with_label or least <= count <= len(texts)):
        return x
    if fields.words and isinstance(x[0][0], str | bytes) and not (labelled and with_label):
        return x  # tuples of words
    for row, example in enumerate(x):
        if not isinstance(example, tuple) or len(example) != count:
            raise ValueError(
                f"Example {row} must be a tuple of {count}, as the first one, got {example!r:.200}."
            )
    members = [list(column) for column in zip(*x, strict=True)]
    last = members.pop() if with_label else None
    columns = dict(zip(texts, members, strict=False))
    return {**columns, LABEL: last} if labelled and with_label else columns


def members(data: Any, fields: Fields) -> tuple[Any, ...]:
    """Returns ``(x, y, sample_weight)`` as a tuple, which may have been a list, or ``(x,)``.

    Raises:
        ValueError: for a list that may be either labels and texts, or two lists of words.
    """
    if isinstance(data, tuple):
        return data
    if not isinstance(data, list) or not 2 <= len(data) <= 3 or _are_rows(data, fields):
        return (data,)
    x, y = data[:2]
    if fields.words and isinstance(x, list) and isinstance(y, list) and isinstance(x[0], str):
        raise ValueError(
            "A list of lists of strings may be words, or texts and tags; write a tuple (x, y) for "
            "the latter."
        )
    return tuple(data)


def _are_rows(data: list[Any], fields: Fields) -> bool:
    """Whether the members of a list are examples, not texts, labels and weights."""
    first = data[0]
    if isinstance(first, str | bytes) or not hasattr(first, "__getitem__"):
        return True
    if _are_texts(first, fields) or (isinstance(first, list) and not first):
        return True
    if not isinstance(first, Mapping | tuple):
        return False
    values = first.values() if isinstance(first, Mapping) else first
    of_texts = any(isinstance(value, str | bytes) for value in values)
    if isinstance(first, Mapping):
        return all(
            isinstance(row, Mapping) and (of_texts or row.keys() == first.keys()) for row in data
        )
    of_columns = len((*fields.required, *fields.optional)) > 1 and not fields.words
    return not of_columns or of_texts


def _are_texts(row: Any, fields: Fields) -> bool:
    """Whether a list has the texts of an example, as sentence-transformers writes pairs."""
    size = len(fields.required)
    of_texts = isinstance(row, list) and all(isinstance(text, str | bytes) for text in row)
    return of_texts and 1 < size <= len(row) <= size + len(fields.optional) and not fields.words


def selected(
    table: Table, fields: Fields, columns: Columns | None = None, *, labelled: bool
) -> dict[str, Any]:
    """Returns a table's texts and label by the names that a task has for them.

    Args:
        table: the table; other columns are ignored.
        fields: names of the texts.
        columns: the columns of texts and ``label``, where these have other names; a list of
            columns is one text of several strings.
        labelled: whether to read the label, if there is one.

    Raises:
        ValueError: if a column, or a value in it, is missing.
    """
    columns = dict(columns or {})
    known = (*fields.required, *fields.omissible, LABEL)
    for name in columns:
        if name not in known:
            raise ValueError(f"columns: {unknown('text', name, known)}")
    features = {}
    for name in known:
        if name == LABEL and not labelled:
            continue
        column = columns.get(name, name if name in table.names else _alias(name, table, fields))
        if column is None:
            if name in fields.required:
                raise ValueError(
                    f"The {table.kind} has no column {name!r}, only {table.names}; columns="
                    f"{{{name!r}: …}} names another one."
                )
            continue
        features[name] = _read(table, column)
    return features


def _alias(name: str, table: Table, fields: Fields) -> Any:
    for feature, column in fields.aliases:
        if feature == name and all(name in table.names for name in _each(column)):
            return dict.fromkeys(column) if isinstance(column, tuple) else column
    return None


def _read(table: Table, column: Any) -> Any:
    for name in _each(column):
        if name not in table.names:
            names = list(map(str, table.names))
            raise ValueError(f"columns: {unknown('column', str(name), names)}")
    if isinstance(column, Mapping):  # a label of several columns
        return {name: complete(table.read(name), str(name)) for name in column}
    if isinstance(column, list | tuple):
        values = [complete(table.read(name), str(name)) for name in column]
        return [list(row) for row in zip(*values, strict=True)]
    return complete(table.read(column), str(column))


def complete(values: Any, name: str) -> Any:
    """Returns values, of which none may be missing.

    Raises:
        ValueError: for None and NaN; the message names row and column.
    """
    if isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.kind == "O"):
        missing = [
            row
            for row, value in enumerate(values)
            if value is None or (isinstance(value, float) and value != value)
        ]
        if missing:
            raise ValueError(
                f"Row {missing[0]} of {name!r} is missing, and {len(missing)} of {len(values)} "
                "rows are; drop them, or fill them."
            )
    return values


def values_of(x: Any, name: str) -> Any:
    """Returns one column of another library as a list, and anything else unchanged.

    Raises:
        ValueError: if a value is missing.
    """
    if _of(x, "polars") and hasattr(x, "to_list"):
        return complete(x.to_list(), getattr(x, "name", "") or name)
    if hasattr(x, "to_pylist") and not hasattr(x, "column_names"):
        return complete(x.to_pylist(), name)
    if _of(x, "datasets") and hasattr(x, "__len__") and not hasattr(x, "column_names"):
        return complete(list(x), name)
    return x


def _each(column: Any) -> Iterable[Any]:
    return column if isinstance(column, list | tuple | Mapping) else [column]


def _of(x: Any, library: str) -> bool:
    return type(x).__module__.partition(".")[0] == library


def _of_dicts(
    rows: Sequence[Mapping[str, Any]], classes: Mapping[str, list[str]] | None = None
) -> Table:
    classes = classes or {}

    def read(name: str) -> list[Any]:
        for row, values in enumerate(rows):
            if not isinstance(values, Mapping) or name not in values:
                raise ValueError(f"Row {row} has no {name!r}, got {values!r:.200}.")
        return _with_names([row[name] for row in rows], classes.get(name))

    # A column that only later rows have is an error of the rows without it.
    names = dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row)
    return Table("list of dicts", list(names), read)


def _of_arrow(table: Any) -> Table:
    classes = class_names(table.schema.metadata)

    def read(name: str) -> list[Any]:
        return _with_names(table.column(name).to_pylist(), classes.get(name))

    return Table("table", list(table.schema.names), read)


def _with_names(values: list[Any], names: list[str] | None) -> list[Any]:
    return values if names is None else [named(value, names) for value in values]


def _classes_of(dataset: Any) -> dict[str, list[str]]:
    """The names of classes by column, of a data set of ``datasets``, which may have no features."""
    features = getattr(dataset, "features", None)
    if not features:
        return {}
    content = {"info": {"features": features.to_dict()}}
    return class_names({b"huggingface": json.dumps(content, default=str).encode()})
