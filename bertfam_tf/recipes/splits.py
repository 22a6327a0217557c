"""The splits of a recipe's data."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf import tasks
from bertfam_tf.data import read_rows
from bertfam_tf.data.labels import summary
from bertfam_tf.data.published import columns_of
from bertfam_tf.data.reading import is_published, published_splits
from bertfam_tf.data.records import Column
from bertfam_tf.data.rows import Rows
from bertfam_tf.data.targets import Tags, Target
from bertfam_tf.names import join_names, unknown
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
    return open_split(data, split, task, names).rows


class Split(NamedTuple):
    """A split of a recipe's data.

    Fields:
        rows: the result of ``read_split``.
        names: the names of its labels.
        description: its files, and how many examples there are of each label, in one line.
    """

    rows: tf.data.Dataset
    names: list[str]
    description: str

    def announce(self) -> None:
        """Prints the description to standard error, to show the labels before training."""
        print(self.description, file=sys.stderr)


def columns(data: DataConfig, task: str | None = None) -> dict[str, Column] | None:
    """Returns the columns of texts and label; None for a published data set with known columns.

    Args:
        data: the section ``data`` of a recipe.
        task: the task's class, whose texts name the columns where the recipe does not.
    """
    label: dict[str, Column] = {} if data.label is None else {"label": data.label}
    if data.columns is not None:
        return {**label, **data.columns}
    published = published_name(data)
    if published is not None and columns_of(published) is not None:
        return None
    if task is not None and (data.text, data.text_pair) == ("text", None):
        cls = tasks.task_class(task)
        kind = cls.file_labels()
        if kind is not None and data.label == "label":
            label = {"label": kind.column}
        return {**{name: name for name in cls.fields.required}, **label}
    column_of = {"text": data.text, **label}
    return column_of if data.text_pair is None else {**column_of, "text_pair": data.text_pair}


def published_name(data: DataConfig) -> str | None:
    """Returns the data set of tensorflow-datasets that a recipe names; None for files."""
    if data.tfds is not None:
        return data.tfds
    published = published_splits(data.train)
    return None if published is None else published[0]


def open_split(
    data: DataConfig, split: str, task: str, names: list[str] | None = None, seed: int = 0
) -> Split:
    """Opens a split like ``read_split``, with the names of its labels and a description.

    Args:
        data, split, task, names: the same as for ``read_split``.
        seed: the seed for the training examples that ``data.per_label`` draws.
    """
    rows, target = rows_of(data, split, task, names)
    class_names, files = [] if target is None else target.names, getattr(data, split)
    file_names = files if isinstance(files, str) else join_names(files, 3)
    opened = Split(rows.dataset(), class_names, _description(rows, target, file_names))
    if split != "train" or data.per_label is None:
        return opened
    return _sampled(opened, data.per_label, seed, file_names)


def rows_of(
    data: DataConfig, split: str, task: str, names: list[str] | None = None
) -> tuple[Rows, Target | None]:
    """Returns the rows of a split and the reader of their labels; see ``read_split``."""
    value = getattr(data, split, None)
    if value is None:
        raise ValueError(f"The recipe names no {split} file; name it as data.{split}=FILE.")
    files: list[str | Path] = list(value) if isinstance(value, list) else [value]
    if data.tfds is None:
        files = [file if is_published(file) else expand(str(file)) for file in files]
    limit = data.limit if split == "train" else None
    target = None
    if data.label is not None:
        labels = trainable_task(task).file_labels()
        assert labels is not None
        target = labels(names if data.labels is None else data.labels)
        if data.tag_scheme is not None and not isinstance(target, Tags):
            raise ValueError(f"data.tag_scheme must be null for {task}, whose labels are no tags.")
    rows = read_rows(
        files,
        columns(data, task),
        format=data.format,
        target=target,
        limit=limit,
        skip=data.on_error == "skip",
        iob2=data.tag_scheme == "iob2",
        tfds=data.tfds,
        data_dir=None if data.data_dir is None else str(expand(data.data_dir)),
    )
    return rows, target


def _sampled(split: Split, number: int, seed: int, files: str) -> Split:
    """Returns a split with ``number`` random examples of each label, in the order of the file."""
    rows = split.rows
    spec = rows.element_spec[-1]
    if len(rows.element_spec) < 2 or spec.dtype != tf.string or spec.shape.rank != 0:
        raise ValueError("data.per_label must be null for a task without a label for each example.")
    labels = np.array([label.decode() for _, label in rows.as_numpy_iterator()])
    for name, count in Counter(labels.tolist()).items():
        if count < number:
            raise ValueError(
                f"data.per_label is {number}, but there are {count} examples of the label {name!r}."
            )
    random = np.random.default_rng(seed)
    kept = np.zeros(len(labels), bool)
    for name in sorted(set(labels.tolist())):
        kept[random.choice(np.flatnonzero(labels == name), number, replace=False)] = True
    mask = tf.constant(kept)
    # AutoGraph warns of two lambdas in one statement.
    chosen = rows.enumerate().filter(lambda i, row: mask[i])
    chosen = chosen.map(lambda i, row: row)
    chosen = chosen.apply(tf.data.experimental.assert_cardinality(int(kept.sum())))
    text = f"{files}: {kept.sum():,} of {len(labels):,} examples, {number} of each label."
    return split._replace(rows=chosen, description=text)


def _description(rows: Rows, target: Target | None, files: str) -> str:
    text = f"{files}: {rows.count:,} examples."
    if target is None or not rows.labels:
        return text
    order = dict.fromkeys([*target.names, *sorted(rows.labels)])
    counts = {name: rows.labels[name] for name in order if name in rows.labels}
    return f"{text} {summary(counts, f'{target.what.capitalize()}s')}"


def trainable_task(task: str) -> type[tasks.Task]:
    """Returns the class of a task that recipes can train.

    Raises:
        ValueError: if there is no such task.
    """
    known = tasks.trainable_tasks()
    if task not in known:
        raise ValueError(unknown("task", task, known))
    return tasks.task_class(task)
