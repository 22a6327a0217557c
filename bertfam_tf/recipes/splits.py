"""The splits of a recipe's data."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from bertfam_tf import tasks
from bertfam_tf.data import read_rows
from bertfam_tf.data.published import columns_of
from bertfam_tf.data.records import Column
from bertfam_tf.names import unknown
from bertfam_tf.recipes.reading import expand
from bertfam_tf.recipes.schema import DataConfig


def read_split(
    data: DataConfig, split: str, task: str = "TextClassifier", names: list[str] | None = None
) -> tf.data.Dataset:
    """Reads a split as ``(features, label)``, with a task's names and types.

    Args:
        data: the ``data`` section of a recipe.
        split: ``train``, ``dev`` or ``test``.
        task: the task's class.
        names: the valid labels, if the recipe names none.

    Returns:
        A dataset of ``(features, label)``, or ``(features,)`` without labels.

    Raises:
        ValueError: if the recipe has no such split, a file or a column is missing, or a row is
            invalid.
    """
    return open_split(data, split, task, names)[0]


def columns(data: DataConfig) -> dict[str, Column] | None:
    """Returns the columns of texts and label; None for a published dataset with known columns."""
    label: dict[str, Column] = {} if data.label is None else {"label": data.label}
    if data.columns is not None:
        return {**label, **data.columns}
    if data.tfds is not None and columns_of(data.tfds) is not None:
        return None
    pair = {} if data.text_pair is None else {"text_pair": data.text_pair}
    return {"text": data.text, **label, **pair}


def open_split(
    data: DataConfig, split: str, task: str, names: list[str] | None = None
) -> tuple[tf.data.Dataset, list[str]]:
    """Reads a split as ``read_split`` does; also returns the names of its labels."""
    names_of_files = getattr(data, split, None)
    if names_of_files is None:
        raise ValueError(f"The recipe names no {split} file.")
    files: list[str | Path] = (
        list(names_of_files) if isinstance(names_of_files, list) else [names_of_files]
    )
    if data.tfds is None:
        files = [expand(str(file)) for file in files]
    limit = data.limit if split == "train" else None
    target = None
    if data.label is not None:
        labels = trainable_task(task).file_labels()
        assert labels is not None
        target = labels(names if data.labels is None else data.labels)
    rows = read_rows(
        files,
        columns(data),
        format=data.format,
        target=target,
        limit=limit,
        skip=data.on_error == "skip",
        iob2=data.tag_scheme == "iob2",
        tfds=data.tfds,
        data_dir=None if data.data_dir is None else str(expand(data.data_dir)),
    )
    return rows.dataset(), [] if target is None else target.names


def trainable_task(task: str) -> type[tasks.Task]:
    """Returns the class of a task that recipes can train.

    Raises:
        ValueError: if there is no such task.
    """
    known = tasks.trainable_tasks()
    if task not in known:
        raise ValueError(unknown("task", task, known))
    return tasks.task_class(task)
