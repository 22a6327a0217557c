"""Files that GLUE's server scores (Wang et al. 2019, arXiv 1804.07461; gluebenchmark.com/faq)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.data.published import columns_of
from bertfam_tf.data.rows import Row
from bertfam_tf.files import atomic, check_kind
from bertfam_tf.names import join_names, unknown
from bertfam_tf.recipes.schema import Recipe
from bertfam_tf.recipes.splits import columns, published_name, rows_of
from bertfam_tf.tasks import Task, TextClassifier, TextRegressor

_HEADER = b"index\tprediction\n"
# Labels by the name of the file; None for scores.
_NUMBERS = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("entailment", "neutral", "contradiction")
FILES: Mapping[str, tuple[str, ...] | None] = {
    "CoLA.tsv": _NUMBERS, "SST-2.tsv": _NUMBERS, "MRPC.tsv": _NUMBERS, "QQP.tsv": _NUMBERS,
    "WNLI.tsv": _NUMBERS, "STS-B.tsv": None, "QNLI.tsv": _ENTAILMENT, "RTE.tsv": _ENTAILMENT,
    "MNLI-m.tsv": _MNLI, "MNLI-mm.tsv": _MNLI, "AX.tsv": _MNLI,
}  # fmt: skip


def write_submission(task: Task, recipe: Recipe, file: str | Path, split: str = "test") -> int:
    """Writes predictions for a split without labels, as GLUE's server takes them.

    Labels 0 and 1 are the order of the task's labels, or the labels of the recipe's files where
    ``data.labels`` renames them. Scores of STS-B are limited to 0 and 5.

    Args:
        task: the trained task.
        recipe: its recipe; ``data.test`` is the split.
        file: the output; its name says which of GLUE's tasks it is: one of ``FILES``.
        split: ``dev`` or ``test``.

    Returns:
        The number of rows.

    Raises:
        ValueError: if the name of the file is unknown, the task is of another kind or has other
            labels, or the recipe has no such split.
        FileExistsError: if there is another kind of file, such as GLUE's own data.
    """
    file = Path(file)
    if file.name not in FILES:
        raise ValueError(unknown("file of GLUE", file.name, FILES))
    kind = TextRegressor if FILES[file.name] is None else TextClassifier
    if task.problem_type != kind.problem_type:
        raise ValueError(f"{file.name} is for a {kind.__name__}, got a {type(task).__name__}.")
    check_kind(file, "a file of predictions for GLUE's server", _HEADER)
    labels = _labels(task, recipe, file.name)
    rows = _rows(recipe, split, type(task).__name__)
    features = {name: [row.features[name] for _, row in rows] for name in rows[0][1].features}
    answers = task.predict(features, batch_size=recipe.train.batch_size or 32)
    with atomic(file) as temporary, temporary.open("w", encoding="utf-8") as output:
        output.write(_HEADER.decode())
        for (index, _), answer in zip(rows, answers, strict=True):
            text = f"{np.clip(answer, 0, 5):.3f}" if labels is None else labels[answer["label"]]
            output.write(f"{index}\t{text}\n")
    return len(rows)


def _labels(task: Task, recipe: Recipe, name: str) -> dict[str, str] | None:
    """Returns the labels of a file by the labels of a task; None for scores."""
    labels = FILES[name]
    if labels is None:
        return None
    renamed = recipe.data.labels if isinstance(recipe.data.labels, Mapping) else {}
    label_of = {new: old for old, new in renamed.items()} or {
        name: name for name in task.class_names
    }
    if labels == _NUMBERS and len(label_of) == 2 and set(label_of.values()) != set(labels):
        label_of = dict(zip(task.class_names, labels, strict=True))
    if set(label_of.values()) != set(labels) or not set(task.class_names) <= label_of.keys():
        raise ValueError(
            f"{name} has the labels {join_names(labels)}, got a task with the labels "
            f"{join_names(task.class_names)}."
        )
    return label_of


def _rows(recipe: Recipe, split: str, task: str) -> list[tuple[int, Row]]:
    """Returns the rows of a split and their numbers, ascending."""
    data = recipe.data
    name = published_name(data)
    chosen = columns(data, task) or columns_of(name or "") or {}
    if name is not None:
        chosen = {**chosen, "id": "idx"}
    texts: Any = {name: column for name, column in chosen.items() if name != "label"}
    rows, _ = rows_of(replace(data, label=None, columns=texts, on_error="raise"), split, task)
    # Splits of tensorflow-datasets are shuffled when they are prepared; files are not.
    numbered: list[tuple[int, Any]] = [
        (number if row.id is None else int(row.id), row) for number, row in enumerate(rows)
    ]
    return sorted(numbered, key=lambda each: each[0])
