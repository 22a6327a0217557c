"""Reads the JSON of SQuAD 1.1 and 2.0 (arXiv 1606.05250, 1806.03822)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.data.rows import InvalidRow, Row, as_bytes
from bertfam_tf.names import truncated


def squad_rows(
    file: Path, columns: Mapping[str, Any] | None = None, *, labelled: bool = True
) -> Iterator[Row | InvalidRow]:
    """Yields questions: ``question`` and ``context``; the label is a list of (text, start).

    Args:
        file: read as a whole, because it is a single JSON object.
        columns: other names for ``question`` and ``context``, such as ``{"text": "question"}``.
        labelled: whether answers are expected.

    Raises:
        ValueError: if the file is not JSON, or has no list ``data``.
    """
    try:
        with parsing.open_binary(file) as stream:
            content = json.loads(stream.read())
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(parsing.not_utf8(f"{file}: line {line}", error.object)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{file} is not JSON: {truncated(error)}.") from error
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise ValueError(
            f"{file} has no list 'data'; expected SQuAD's format, an array of objects, or one "
            "object per line."
        )
    mapped = (columns or {}).items()
    first, second = (
        next((name for name, column in mapped if column == own), own)
        for own in ("question", "context")
    )
    for i, article in enumerate(articles):
        where = f"{file}: article {i}"
        try:
            for j, paragraph in enumerate(article["paragraphs"]):
                where = f"{file}: article {i}, paragraph {j}"
                context, questions = paragraph["context"], paragraph["qas"]
                encoded = as_bytes(context)
                for question in questions:
                    yield _question(file, question, encoded, (first, second), labelled)
        except (KeyError, TypeError, AttributeError) as error:
            yield InvalidRow(
                "structure", f"{where} does not have SQuAD's format: {_missing(error)}."
            )


def _question(
    file: Path, question: Any, context: bytes, names: tuple[str, str], labelled: bool
) -> Row | InvalidRow:
    name = question.get("id") if isinstance(question, dict) else None
    location = f"{file}: question {name}"
    try:
        texts = (as_bytes(question["question"]), context)
        features: dict[str, Any] = dict(zip(names, texts, strict=True))
        answers = None
        if labelled:
            gold = [] if question.get("is_impossible") else question["answers"]
            answers = [(answer["text"], answer["answer_start"]) for answer in gold]
        return Row(location, features, answers, None if name is None else str(name))
    except (KeyError, TypeError, AttributeError) as error:
        return InvalidRow(
            "structure", f"{location} does not have SQuAD's format: {_missing(error)}."
        )


def _missing(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
