"""Saves and loads tasks."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bertfam_tf
from bertfam_tf import files, parsing, registry
from bertfam_tf.checkpoints import Tensors, fill, own, safetensors
from bertfam_tf.checkpoints.fill import compare
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.layers import filled_later
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights, set_trainable, trainable_config
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.sources import DESCRIPTION, TOKENIZER, CheckpointError, sha256
from bertfam_tf.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from bertfam_tf.tasks.multi_task import MultiTask
    from bertfam_tf.tasks.task import Task


def save(task: Task | MultiTask, target: Path, overwrite: bool) -> None:
    """Writes a task; see ``Task.save``."""
    replace = overwrite and is_saved(target)
    if not replace:
        files.check_new(target, "a saved task" if overwrite else "")
    with files.atomic(target, replace=replace) as path:
        path.mkdir()
        _write(task, path)
        if replace:
            files.keep_others(target, path, _files(target))


def _files(directory: Path) -> set[str]:
    """The files of a saved task, as its description lists them."""
    try:
        return {DESCRIPTION, *parsing.read_json(directory / DESCRIPTION)["sha256"]}
    except (ValueError, KeyError, TypeError):  # damaged; others are replaced by name
        return {DESCRIPTION}


def _write(task: Task | MultiTask, directory: Path) -> None:
    weights: dict[str, Any] = {}
    for name, part in task.served_tasks().items():
        weights |= {_stored_path(name, part, path): x for path, x in plain_weights(part).items()}
    labels = getattr(task, "class_names", None)
    description = {**task.describe(), **({"labels": list(labels)} if labels else {})}
    [backbone, *_] = [served.backbone for served in task.served_tasks().values()]
    inside = {variable.path for variable in backbone.weights}
    description["other_weights"] = sorted(weights.keys() - inside)
    description["problem_type"] = getattr(task, "problem_type", None)
    description["training"] = {
        "backbone": trainable_config(backbone),
        "tasks": {name: trainable_config(part) for name, part in task.served_tasks().items()},
    }
    write(directory, weights, task.tokenizer, description)


def write(
    directory: Path,
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    description: Mapping[str, Any],
) -> None:
    """Writes this package's own format into an existing directory.

    Args:
        directory: the directory; checksums of the files that it already contains are stored too.
        weights: arrays by variable path.
        tokenizer: the tokenizer.
        description: the result of ``Task.describe``, but ``task`` may be None: only
            ``from_pretrained`` of a task class can then load it. Further keys: ``heads``, the names
            of the stored heads; ``other_weights``, paths of weights that are not the backbone's;
            ``labels``, of the task's head; ``languages``, code to id.
    """
    safetensors.write(weights, directory / SINGLE)
    tokenizer.save(directory / TOKENIZER)
    members = sorted(file for file in directory.rglob("*") if file.is_file())
    stored = {str(file.relative_to(directory)): sha256(file) for file in members}
    text = json.dumps({**description, "sha256": stored}, indent=2) + "\n"
    (directory / DESCRIPTION).write_text(text, "utf-8")
    # safetensors creates files that only the owner can read.
    shutil.copymode(directory / DESCRIPTION, directory / SINGLE)


def packed(task: Task | MultiTask) -> dict[str, bytes]:
    """Returns the files of a saved task by relative path, for pickling and copying."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "task"
        save(task, directory, overwrite=False)
        members = [file for file in directory.rglob("*") if file.is_file()]
        return {file.relative_to(directory).as_posix(): file.read_bytes() for file in members}


def unpacked(stored: dict[str, bytes]) -> Task | MultiTask:
    """Returns the task of which ``packed`` returned the files.

    Raises:
        CheckpointError: if a path leaves the directory; and as ``load``.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in stored.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise CheckpointError(f"The task contains {truncated_repr(name)}, outside of it.")
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return bertfam_tf.load(folder)


def _stored_path(name: str, task: Task, path: str) -> str:
    """The name of a weight in the file; weights of several tasks' heads begin with the task."""
    shared = {variable.path for variable in task.backbone.weights}
    return path if not name or path in shared else f"{name}/{path}"


def is_saved(directory: str | Path) -> bool:
    """Returns whether ``load`` finds a task in a directory, as ``Task.save`` writes it."""
    file = Path(directory) / DESCRIPTION
    if not file.is_file():
        return False
    with contextlib.suppress(CheckpointError):  # ``load`` reports damaged files
        values = parsing.read_json(file, CheckpointError)
        return not isinstance(values, dict) or values.get("task", "") is not None
    return True


def load(
    path: Path,
    task_class: Callable[[str], type[Task]],
    several: Callable[[dict[str, Task]], MultiTask],
) -> Task | MultiTask:
    """Loads the task, or tasks, that ``save`` wrote.

    Args:
        path: the directory.
        task_class: returns a task class by name.
        several: builds a ``MultiTask`` from tasks by name.

    Raises:
        CheckpointError: if a file is missing, or differs from the one that was saved.
    """
    file = path / DESCRIPTION
    if not path.exists():
        files.remove_leftovers(path)
    if not file.is_file():
        raise CheckpointError(
            f"No {DESCRIPTION} in {path}; expected a directory of Task.save(). Checkpoints and hub "
            "ids are loaded by a task's from_pretrained, such as TextClassifier.from_pretrained."
        )
    stored = parsing.read_json(file, CheckpointError)
    if isinstance(stored, dict) and stored.get("task", "") is None:
        raise CheckpointError(
            f"{path} has a pretrained model without a task; from_pretrained of a task starts from "
            "it, such as TextClassifier.from_pretrained."
        )
    try:
        family, config, digests = stored["family"], stored["config"], dict(stored["sha256"])
        described = {
            str(name): (str(entry["task"]), dict(entry["options"]))
            for name, entry in dict(stored.get("tasks", {"": stored})).items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not the description of a task: {error!r}") from error
    try:
        classes = {name: task_class(cls) for name, (cls, _) in described.items()}
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    try:
        own.check_digests(path, digests)
        beside = tuple(f"{re.escape(str(head))}_head/.*" for head in stored.get("heads", ()))
        tokenizer = load_tokenizer(path / TOKENIZER)
        tensors = safetensors.read(path)
        what = f"The weights in {path} and {DESCRIPTION}"
        with filled_later():
            heads = stored.get("other_weights")
            ignored = (".*",) if heads is None else (*map(re.escape, heads), *beside)
            backbone = _backbone(file, family, config, tensors, ignored, what)
            tasks = {
                name: cls(backbone, tokenizer, **described[name][1])
                for name, cls in classes.items()
            }
            task = tasks[""] if "tasks" not in stored else several(tasks)
        training = stored.get("training", {"backbone": {}, "tasks": {}})
        set_trainable(backbone, training["backbone"])
        for name, member in tasks.items():
            set_trainable(member, training["tasks"].get(name, {}))
            paths = {v.path: _stored_path(name, member, v.path) for v in member.weights}
            others = tuple(f"{re.escape(other)}/.*" for other in tasks if other != name)
            fill(member.weights, tensors, paths, (*others, *beside), what)
    except CheckpointError:
        raise
    except Exception as error:  # invalid options raise errors of any type
        raise CheckpointError(
            f"{path} cannot be loaded: {truncated(error)}. If {DESCRIPTION} was changed "
            "since it was saved, save the task again or download it again."
        ) from error
    return task


def _backbone(
    file: Path, family: Any, config: Any, tensors: Tensors, ignored: Iterable[str], what: str
) -> Backbone:
    """Builds the backbone of a description, and checks that the file has exactly its weights."""
    if not isinstance(family, str) or not isinstance(config, dict):
        raise CheckpointError(f"{file} is not the description of a task: it has no config.")
    record = registry.get(family)
    typed = record.config.from_dict(config)
    shapes = declared(record, typed, len(tensors), str(file))
    compare(shapes, tensors, {path: path for path in shapes}, ignored, what)
    return Backbone(family, typed)
