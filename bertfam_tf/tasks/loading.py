"""Loads saved tasks."""

from __future__ import annotations

from pathlib import Path

import keras

from bertfam_tf.tasks import storage
from bertfam_tf.tasks.multi_task import MultiTask
from bertfam_tf.tasks.task import Task, task_class


def load(directory: str | Path) -> Task | MultiTask:
    """The task that ``Task.save`` wrote, or the tasks that ``MultiTask.save`` wrote.

    Args:
        directory: their directory; or a file ``NAME.keras``, as for ``keras.models.load_model``.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    if Path(directory).suffix == ".keras" and not Path(directory).is_dir():
        return keras.models.load_model(directory)
    return storage.load(Path(directory), task_class, MultiTask)
