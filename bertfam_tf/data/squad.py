"""Files in SQuAD's format: paragraphs, and questions on them (arXiv 1606.05250, 1806.03822)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_squad(
    file: str | os.PathLike[str], limit: int | None = None
) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
    """Reads questions and answers, in the file's order.

    Args:
        file: JSON of SQuAD 1.1 or 2.0.
        limit: how many questions to read; None for all.

    Returns:
        features, ``question`` and ``context``, lists of strings; and labels: ``answer``, the first
        gold answer, ``answer_start``, its offset in the context in characters ("" and -1 for none),
        and ``answers``, the list of all gold answers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not in the format; the text says which question is not.
    """
    path = Path(file)
    x: dict[str, list[str]] = {"question": [], "context": []}
    y: dict[str, list[Any]] = {"answer": [], "answer_start": [], "answers": []}
    where = "the beginning"
    try:
        for article in json.loads(path.read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for row in paragraph["qas"]:
                    if len(x["question"]) == limit:
                        return x, y
                    where = f"question {row['id']!r}"
                    none = row.get("is_impossible", False) or not row["answers"]
                    answers = [] if none else row["answers"]
                    first = answers[0] if answers else {"text": "", "answer_start": -1}
                    x["question"].append(row["question"])
                    x["context"].append(paragraph["context"])
                    y["answer"].append(first["text"])
                    y["answer_start"].append(first["answer_start"])
                    y["answers"].append([answer["text"] for answer in answers])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not in SQuAD's format, from {where} on: {error!r}.") from error
    return x, y
