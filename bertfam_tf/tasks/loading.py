"""Loads saved tasks, and checkpoints as the task that their head is for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from bertfam_tf.checkpoints import Checkpoint, keras_files
from bertfam_tf.names import truncated
from bertfam_tf.sources import CheckpointError, opened, resolve
from bertfam_tf.tasks import options as declared
from bertfam_tf.tasks import storage
from bertfam_tf.tasks.multi_task import MultiTask
from bertfam_tf.tasks.task import Task, task_class, task_classes


def load(directory: str | Path) -> Task | MultiTask:
    """The task that ``Task.save`` wrote, or the tasks that ``MultiTask.save`` wrote.

    Args:
        directory: their directory; or a file ``NAME.keras``, as for ``keras.models.load_model``.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    if Path(directory).suffix == ".keras" and not Path(directory).is_dir():
        return _load_keras(Path(directory))
    return storage.load(Path(directory), task_class, MultiTask)


def load_checkpoint(
    path: Any,
    task: str | None = None,
    labels: Sequence[str] | int | None = None,
    language: str | int | None = None,
) -> Task:
    """Returns a checkpoint as a task; its ``from_pretrained`` warns about a new head.

    Args:
        path: the same as for ``Task.from_pretrained``.
        task: the task's class; None for the one that the checkpoint is for, by its head or by
            sentence-transformers' files.
        labels: names of the labels, or their number; None for the names that the checkpoint stores.
        language: the same as for ``Task.from_pretrained``.

    Raises:
        ValueError: for an unknown task or language, labels of a task without any, or a checkpoint
            whose head does not say what it is for; the error lists the tasks.
        CheckpointError: as ``from_pretrained`` raises it.
    """
    with opened(path) as source:
        cls = task_class(task) if task is not None else _class_of(source)
        chosen: dict[str, Any] = {} if language is None else {"language": language}
        if labels is None:
            return cls.from_pretrained(source, **chosen)
        name = declared.class_option(cls.options_type)
        if name is None:
            raise ValueError(f"labels must be None for a {cls.__name__}, which has none.")
        return cls.from_pretrained(source, **{name: labels}, **chosen)


def _class_of(path: str | Path) -> type[Task]:
    """The class of the task that a checkpoint is for."""
    classes = task_classes()
    directory = resolve(path)
    for cls in classes:
        if cls.published_type.matches(directory):
            return cls
    checkpoint = Checkpoint(directory)
    if checkpoint.task_options.keys() == {"pooling", "normalize"}:  # KerasHub's
        return task_class("TextEmbedder")
    stored = checkpoint.heads()
    matching = []
    for cls in classes:
        with contextlib.suppress(ValueError):  # the family has no such head
            head = cls.head_of(checkpoint.family.name)
            if head in stored and cls.published_type.loader is None:
                matching.append((cls, head))
    for cls, head in matching:
        # As in transformers, one score without a problem type is a regression.
        count = len(checkpoint.head_labels(head) or ()) if cls.problem_type else 0
        problem = "regression" if count == 1 else "single_label_classification"
        several_numbers = cls.problem_type == "regression" and count > 1
        if cls.problem_type == (checkpoint.outputs or problem) and not several_numbers:
            return cls
    if len(matching) == 1:
        return matching[0][0]
    names = ", ".join(sorted(cls.__name__ for cls in classes))
    reason = f"the heads {', '.join(stored)}" if stored else "no head"
    raise ValueError(f"{path} has {reason}; choose its task, one of {names}.")


def _load_keras(file: Path) -> Any:
    """Loads a file in Keras' format, as Keras does in its safe mode.

    Raises:
        CheckpointError: if it is missing, damaged, or has code in it.
    """
    if not file.is_file():
        raise CheckpointError(f"There is no file {file}.")
    try:
        keras_files.check(file)
        return keras.models.load_model(file)
    except CheckpointError:
        raise
    except Exception as error:  # Keras and h5py raise many types of errors
        raise CheckpointError(
            f"{file} cannot be loaded as a model of Keras: {truncated(error)}"
        ) from error
