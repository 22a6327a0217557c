"""Loads saved tasks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bertfam_tf.tasks import storage
from bertfam_tf.tasks.base import Task, task_class
from bertfam_tf.tasks.multi_task import MultiTask


def load(directory: str | Path) -> Task | MultiTask:
    """The task that ``Task.save`` wrote, or the tasks that ``MultiTask.save`` wrote.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    return storage.load(Path(directory), task_class, MultiTask)


def unpacked(stored: dict[str, bytes]) -> Task | MultiTask:
    """The task of ``storage.packed``."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in stored.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return load(folder)
