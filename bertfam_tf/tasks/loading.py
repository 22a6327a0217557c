"""Loads saved tasks."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras

from bertfam_tf import parsing
from bertfam_tf.names import truncated
from bertfam_tf.sources import CheckpointError
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
        return _load_keras(Path(directory))
    return storage.load(Path(directory), task_class, MultiTask)


def _load_keras(file: Path) -> Any:
    """Loads a file in Keras' format, as Keras does in its safe mode.

    Raises:
        CheckpointError: if it is missing, damaged, or has code in it.
    """
    if not file.is_file():
        raise CheckpointError(f"There is no file {file}.")
    try:
        with zipfile.ZipFile(file) as archive:
            size = archive.getinfo("config.json").file_size
        if size > parsing.MAX_BYTES:
            raise ValueError(
                f"config.json has {size:,} bytes, expected at most {parsing.MAX_BYTES:,}."
            )
        return keras.models.load_model(file)
    except Exception as error:  # Keras and h5py raise many types of errors
        raise CheckpointError(
            f"{file} cannot be loaded as a model of Keras: {truncated(error)}"
        ) from error
