"""Loads saved tasks."""

from __future__ import annotations

from pathlib import Path

from bertfam_tf.tasks import storage
from bertfam_tf.tasks.multi_task import MultiTask
from bertfam_tf.tasks.task import Task, task_class


def load(directory: str | Path) -> Task | MultiTask:
    """The task that ``Task.save`` wrote, or the tasks that ``MultiTask.save`` wrote.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    return storage.load(Path(directory), task_class, MultiTask)
