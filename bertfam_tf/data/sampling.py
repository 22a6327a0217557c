"""The first rows of a table, and guesses of the roles of its columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.data.columnar import class_names, named, opened, records
from bertfam_tf.data.records import csv_reader, elements, is_json_array, other_separator
from bertfam_tf.data.rows import InvalidRow
from bertfam_tf.names import join_names

ROWS = 1000
# Usual names of columns, the most usual first.
_TEXTS = (
    *("text", "sentence", "message", "review", "content", "comment", "body", "question"),
    *("utterance", "query", "document", "description", "tweet", "title", "premise", "sentence1"),
    *("question1", "text_a", "string1", "#1 string", "sentence_a"),
)
_PAIRS = {
    "sentence1": "sentence2", "question1": "question2", "premise": "hypothesis",
    "text_a": "text_b", "text": "text_pair", "string1": "string2", "#1 string": "#2 string",
    "question": "sentence", "sentence_a": "sentence_b",
}  # fmt: skip
_LABELS = (
    *("label", "labels", "gold_label", "intent", "category", "class", "sentiment", "target"),
    *("topic", "score", "rating", "stars", "tag", "tags", "ner_tags", "y", "is_duplicate"),
    "quality",
)
# A column of labels has at most this share of distinct values.
_DISTINCT = 0.5


def sample(file: Path, format: str, count: int = ROWS) -> list[dict[str | int, Any]]:
    """Returns the first rows of a table by column.

    Args:
        file: the table.
        format: tsv, csv, jsonl, json, parquet or arrow.
        count: the maximum number of rows.

    Returns:
        Rows by the names in the first line; by numbers from 0 if the first line has values instead.

    Raises:
        ValueError: for a file that is damaged or has no rows.
    """
    rows: list[dict[str | int, Any]] = []
    if format in ("parquet", "arrow"):
        with opened(file) as (schema, batches):
            classes = class_names(schema.metadata)
            for row in islice(records(file, batches(schema.names)), count):
                if isinstance(row, InvalidRow):
                    raise row
                rows.append(
                    {n: named(x, classes[n]) if n in classes else x for n, x in row.items()}
                )
    elif format == "json" and is_json_array(file):
        rows = [record for _, record in islice(elements(file), count)]
    elif format in ("json", "jsonl"):
        lines = (line for line in parsing.byte_lines(file) if line.strip())
        rows = [_object(file, line) for line in islice(lines, count)]
    else:
        rows = _cells(file, format, count)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file} has no rows with columns.")
    return rows


def _object(file: Path, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} has a line that is not JSON: {error}.") from None


def _cells(file: Path, format: str, count: int) -> list[dict[str | int, Any]]:
    if format == "csv":
        records: Iterable[list[str]] = csv_reader(file, "replace")
    else:
        lines = (line.decode("utf-8", "replace") for line in parsing.byte_lines(file))
        records = (line.rstrip("\r\n").split("\t") for line in lines)
    try:
        table = list(islice(records, count + 1))
    except csv.Error as error:
        raise ValueError(f"{file} is not CSV: {error}.") from None
    if not table:
        return []
    header, rows = table[0], table[1:]
    names: Sequence[str | int] = header
    if not _is_header(header, rows):
        names, rows = range(len(header)), table
    # Rows may lack cells, such as after a stray quote.
    return [{**dict.fromkeys(names), **dict(zip(names, row, strict=False))} for row in rows]


def is_usual_name(cell: str) -> bool:
    """Returns whether columns of texts or labels often have this name."""
    return cell.strip().lower() in (*_TEXTS, *_LABELS)


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line has names: usual ones, or none that is a value of its column."""
    if any(map(is_usual_name, first)):
        return True
    columns = zip(first, *(row for row in rows if len(row) == len(first)), strict=True)
    return bool(rows) and not any(values[0] in values[1:] for values in columns)


def guess_columns(rows: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """Returns the columns of ``text``, ``text_pair`` and ``label`` that a table seems to have.

    Usual names decide; then the longest strings are the text, and the column with the fewest
    distinct values, which repeat, is the label.

    Args:
        rows: the result of ``sample``.

    Returns:
        The columns by feature; a feature that no column seems to be is missing.
    """
    # A missing value is an error of its row, not a reason against its column.
    columns = {
        name: [row[name] for row in rows if not _is_missing(row.get(name))] for name in _names(rows)
    }
    features: dict[str, Any] = {}
    label = _usual(columns, _LABELS) or _fewest(columns)
    texts = {
        name: values
        for name, values in columns.items()
        if name != label and values and all(isinstance(value, str | list) for value in values)
    }
    text = _usual(texts, _TEXTS) if texts else None
    if text is None and texts:
        text = max(texts, key=lambda name: sum(len(str(value)) for value in texts[name]))
    if text is not None:
        lower: dict[Any, Any] = {str(name).lower(): name for name in reversed(list(texts))}
        # The text may be the second one of a pair, such as QNLI's sentence after its question.
        before = {second: first for first, second in _PAIRS.items()}.get(str(text).lower())
        features["text"] = text = lower.get(before, text)
        second = lower.get(_PAIRS.get(str(text).lower()))
        if second is not None and text != second:
            features["text_pair"] = second
    if label is not None:
        features["label"] = label
    return features


def _names(rows: Iterable[Mapping[Any, Any]]) -> Iterable[Any]:
    """Returns the columns of all rows, of which the first may lack some."""
    return dict.fromkeys(name for row in rows for name in row)


def _is_missing(value: Any) -> bool:
    return value is None or value != value  # NaN


def no_column(feature: str, rows: Sequence[Mapping[Any, Any]]) -> str:
    """Returns the error for a feature that no column seems to be."""
    names = list(map(str, _names(rows)))
    option = feature.replace("_", "-")
    return (
        f"No column looks like the {feature}; name it with --{option}. Columns: "
        f"{join_names(names)}.{other_separator(names)}"
    )


def _usual(columns: Mapping[Any, Any], names: Sequence[str]) -> Any:
    lower = {str(name).strip().lower(): name for name in reversed(list(columns))}
    return next((lower[name] for name in names if name in lower), None)


def _fewest(columns: Mapping[Any, Sequence[Any]]) -> Any:
    distinct = {}
    for name, values in columns.items():
        if all(isinstance(value, str | int | float | bool) for value in values):
            count = len(set(map(str, values)))
            if 1 < count <= _DISTINCT * len(values):
                distinct[name] = count
    return min(distinct, key=lambda name: distinct[name]) if distinct else None
