"""Tasks on disk."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bertfam_tf
from bertfam_tf import files, parsing, registry
from bertfam_tf.checkpoints import Tensors, fill, safetensors
from bertfam_tf.checkpoints.fill import compare
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.layers import filled_later
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.sources import CheckpointError, sha256
from bertfam_tf.text import load_tokenizer

if TYPE_CHECKING:
    from bertfam_tf.tasks.base import Task
    from bertfam_tf.tasks.multi_task import MultiTask

_DESCRIPTION = "bertfam.json"
_TOKENIZER = "tokenizer"


def describe(task: Task) -> dict[str, Any]:
    """What is needed to rebuild a task, except weights and tokenizer, as JSON values."""
    return {
        "bertfam_tf": bertfam_tf.__version__,
        "task": type(task).__name__,
        "family": task.backbone.family,
        "config": task.backbone.config.to_dict(),
        "options": task.options.stored(),
    }


def describe_tasks(model: MultiTask) -> dict[str, Any]:
    """As ``describe``, of several tasks that share a backbone."""
    tasks = model.tasks
    each = {
        name: {"task": type(task).__name__, "options": task.options.stored()}
        for name, task in tasks.items()
    }
    shared = describe(next(iter(tasks.values())))
    return {**shared, "task": type(model).__name__, "options": {}, "tasks": each}


def save(task: Task | MultiTask, target: Path, overwrite: bool) -> None:
    """Writes a task as ``Task.save`` says."""
    files.remove_leftovers(target)
    if target.exists() and not (overwrite and is_saved(target)):
        raise FileExistsError(f"{target} exists and is not a saved task to be overwritten.")
    with files.atomic(target) as path:
        path.mkdir()
        _write(task, path)


def _write(task: Task | MultiTask, directory: Path) -> None:
    weights: dict[str, Any] = {}
    for name, each in task.served_tasks().items():
        weights |= {_stored_path(name, each, path): x for path, x in plain_weights(each).items()}
    safetensors.write(weights, directory / SINGLE)
    task.tokenizer.save(directory / _TOKENIZER)
    found = sorted(file for file in directory.rglob("*") if file.is_file())
    stored = {str(file.relative_to(directory)): sha256(file) for file in found}
    text = json.dumps({**task.describe(), "sha256": stored}, indent=2) + "\n"
    (directory / _DESCRIPTION).write_text(text, "utf-8")
    # safetensors creates files that only the owner can read.
    shutil.copymode(directory / _DESCRIPTION, directory / SINGLE)


def packed(task: Task | MultiTask) -> dict[str, bytes]:
    """The files of a saved task by their paths, for pickles and copies."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "task"
        save(task, directory, overwrite=False)
        found = [file for file in directory.rglob("*") if file.is_file()]
        return {file.relative_to(directory).as_posix(): file.read_bytes() for file in found}


def unpacked(stored: dict[str, bytes]) -> Task | MultiTask:
    """The task of ``packed``."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in stored.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return bertfam_tf.load(folder)


def _stored_path(name: str, task: Task, path: str) -> str:
    """The name of a weight in the file: those of heads of several tasks have the tasks' names."""
    shared = {variable.path for variable in task.backbone.weights}
    return path if not name or path in shared else f"{name}/{path}"


def is_saved(directory: str | Path) -> bool:
    """Whether a directory is one that ``Task.save`` wrote."""
    return (Path(directory) / _DESCRIPTION).is_file()


def load(
    path: Path,
    task_class: Callable[[str], type[Task]],
    several: Callable[[dict[str, Task]], MultiTask],
) -> Task | MultiTask:
    """The task, or tasks, that ``save`` wrote.

    Args:
        path: its directory.
        task_class: finds a task by its name.
        several: makes the model of several tasks.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    file = path / _DESCRIPTION
    if not path.exists():
        files.remove_leftovers(path)
    if not file.is_file():
        raise CheckpointError(f"No {_DESCRIPTION} in {path}; expected a directory of Task.save().")
    stored = parsing.read_json(file, CheckpointError)
    try:
        family, config, digests = stored["family"], stored["config"], dict(stored["sha256"])
        described = {
            str(name): (str(each["task"]), dict(each["options"]))
            for name, each in dict(stored.get("tasks", {"": stored})).items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not the description of a task: {error!r}") from error
    try:
        classes = {name: task_class(cls) for name, (cls, _) in described.items()}
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    try:
        for name_of_file, digest in digests.items():
            _check_digest(path, name_of_file, digest)
        tokenizer = load_tokenizer(path / _TOKENIZER)
        tensors = safetensors.read(path)
        what = f"The weights in {path} and {_DESCRIPTION}"
        with filled_later():
            backbone = _backbone(file, family, config, tensors, what)
            tasks = {
                name: cls(backbone, tokenizer, **described[name][1])
                for name, cls in classes.items()
            }
            task = tasks[""] if "tasks" not in stored else several(tasks)
        for name, each in tasks.items():
            paths = {v.path: _stored_path(name, each, v.path) for v in each.weights}
            others = tuple(f"{re.escape(other)}/.*" for other in tasks if other != name)
            fill(each.weights, tensors, paths, others, what)
    except CheckpointError:
        raise
    except Exception as error:  # invalid options raise errors of any type
        raise CheckpointError(
            f"{path} cannot be loaded: {truncated(error)}. If {_DESCRIPTION} was changed "
            "since it was saved, save the task again or download it again."
        ) from error
    return task


def _backbone(file: Path, family: Any, config: Any, tensors: Tensors, what: str) -> Backbone:
    """The backbone that a description names, if its weights are there."""
    if not isinstance(family, str) or not isinstance(config, dict):
        raise CheckpointError(f"{file} is not the description of a task: it has no config.")
    record = registry.get(family)
    typed = record.config.from_dict(config)
    shapes = declared(record, typed, len(tensors), str(file))
    compare(shapes, tensors, {path: path for path in shapes}, (".*",), what)
    return Backbone(family, typed)


def _check_digest(directory: Path, name: str, digest: str) -> None:
    file = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise CheckpointError(
            f"{directory / _DESCRIPTION} lists {truncated_repr(name)}, outside of it."
        )
    if not file.is_file():
        raise CheckpointError(f"{file} is missing.")
    if sha256(file) != digest:
        raise CheckpointError(f"{file} is not the file that was saved; its sha256 differs.")
