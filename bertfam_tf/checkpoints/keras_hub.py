"""KerasHub presets: ``config.json`` with a ``registered_name``, and ``model.weights.h5``.

Presets of models with a head also have ``task.json`` and, if the head has weights,
``task.weights.h5``. KerasHub itself is not needed. The families define the names of its classes and
the values that the classes hard-code.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf.checkpoints import hub_presets, huggingface, keras_hub_head
from bertfam_tf.checkpoints.hub_presets import FORMAT as _NAME
from bertfam_tf.checkpoints.keras_weights import stored, table_name
from bertfam_tf.checkpoints.source import Format, Source, requested_family
from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.names import join_names, truncated_repr
from bertfam_tf.registry import Family, FormatNames
from bertfam_tf.sources import CheckpointError

WEIGHTS = "model.weights.h5"
# Keys of all Keras models, which do not affect the computation.
_IGNORED = {"name", "trainable", "dtype"}
# Keys that some classes lack, or have under different names.
_OPTIONAL = {"vocabulary_size", "vocab_size", "num_segments"}


def matches(directory: Path) -> bool:
    """Returns whether ``config.json`` belongs to a preset."""
    if not huggingface.matches(directory):
        return False
    values = huggingface.read_config(directory)
    return "registered_name" in values or "class_name" in values


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a preset; arguments and errors as for ``Format.read``."""
    file = directory / huggingface.CONFIG
    config_of_file = huggingface.read_config(directory)
    family_of_class = hub_presets.family(
        file, hub_presets.class_name(config_of_file), hub_presets.BACKBONE
    )
    record = requested_family(family, family_of_class, _NAME, file)
    names = record.formats[_NAME]
    options = config_of_file.get("config")
    if not isinstance(options, dict):
        raise CheckpointError(f"{file} has no 'config' of the backbone.")
    fields = _fields(file, options, names)
    task = keras_hub_head.read(directory, record, fields)
    config: Any = huggingface.config_from(record, {**fields, **task.fields}, file)
    weights = _weight_files(directory)
    if len(weights) != 1:
        names_of_files = (
            join_names([weight_file.name for weight_file in weights]) if weights else "none"
        )
        raise CheckpointError(
            f"No weights in {directory}: expected {WEIGHTS}, found {names_of_files}."
        )
    tensors = [*_named_tensors(weights[0], names, options, config), *task.tensors]
    sources = {**names.weights, **{path: path for path in names.absent}}
    heads = {weight_file.head for weight_file in names.tasks.values()} - {task.head}
    others = tuple(f"{head}_head/" for head in heads if head)
    return Source(
        record,
        config,
        Tensors(tensors),
        {path: name for path, name in sources.items() if not path.startswith(others)},
        (*names.ignored, *task.ignored),
        values=_values(record, names, task),
        options=task.options,
        outputs=task.outputs,
        unsupported=task.unsupported,
    )


def _values(record: Family, names: FormatNames, task: keras_hub_head.Task) -> dict[str, Any]:
    """Entries of Hugging Face's config about the head."""
    theirs = record.huggingface
    # A head without weights exists without being stored.
    free = [
        task_names.head
        for task_names in names.tasks.values()
        if task_names.head
        and not any(p.startswith(f"{task_names.head}_head/") for p in names.weights)
    ]
    heads = [task.head] if task.head and task.head not in task.unsupported else free
    values: dict[str, Any] = {"problem_type": task.outputs} if task.outputs else {}
    if theirs and heads:
        values["architectures"] = [theirs.class_of(head) for head in heads]
    return values


def _named_tensors(
    file: Path, names: FormatNames, options: dict[str, Any], config: Any
) -> Iterator[tuple[str, Stored]]:
    """Returns the file's tensors by the tables' names, and zeros for missing ones of the class."""
    positions = names.weights.get("position_embedding/embeddings")
    tensors = []
    for name, tensor in stored(file):
        path = table_name(name, options.get("num_inner_repetitions"))
        tensors.append((path, _padded(tensor, names.offset) if path == positions else tensor))
    yield from _joined(tensors, names.joined, config) if names.joined else tensors
    for path, fields in names.absent.items():
        shape = tuple(getattr(config, field) for field in fields)
        yield path, Stored(file, path, shape, "F32", functools.partial(np.zeros, shape, "float32"))


def _joined(
    separate: list[tuple[str, Stored]], joined: Mapping[str, tuple[str, ...]], config: Any
) -> Iterator[tuple[str, Stored]]:
    """Concatenates the tensors of several layers along their last axis."""
    Tensors(separate)  # raises an error for two of the same name
    tensors = dict(separate)
    for whole, layers in joined.items():
        for path in [path for path in tensors if f"/{layers[0]}/" in path]:
            parts = [path.replace(f"/{layers[0]}/", f"/{layer}/") for layer in layers]
            if not tensors.keys() >= set(parts):
                continue  # those that are missing are reported later
            yield (
                path.replace(f"/{layers[0]}/", f"/{whole}/"),
                _one_after_another([tensors.pop(part) for part in parts], config.num_heads),
            )
    yield from tensors.items()


def _one_after_another(parts: list[Stored], heads: int) -> Stored:
    """Concatenates tensors (…, heads, size) to the shape (…, parts * heads * size)."""
    first = parts[0]
    for part in parts:
        if part.shape != first.shape or len(part.shape) < 2 or part.shape[-2] != heads:
            raise CheckpointError(
                f"{part.file}: {part.name} {part.shape} does not have the {heads} heads of the "
                f"config, or another shape than {first.name} {first.shape}."
            )
    flat = (*first.shape[:-2], first.shape[-2] * first.shape[-1])
    read = [part.read for part in parts]
    return Stored(
        first.file,
        first.name,
        (*flat[:-1], len(parts) * flat[-1]),
        first.dtype,
        lambda: np.concatenate([part().reshape(flat) for part in read], axis=-1),
    )


FORMAT = Format(f"{huggingface.CONFIG} with {WEIGHTS} (KerasHub)", matches, read)


def _weight_files(directory: Path) -> list[Path]:
    """Returns the weight files of a directory; exactly one is expected."""
    single = directory / WEIGHTS
    if single.is_file():
        return [single]
    weight_files = [
        file for file in directory.glob("*.weights.h5") if file.name != keras_hub_head.WEIGHTS
    ]
    return sorted(file for file in weight_files if file.is_file())


def _fields(file: Path, options: dict[str, Any], names: FormatNames) -> dict[str, Any]:
    unknown = sorted(options.keys() - names.config.keys() - _IGNORED)
    if unknown:
        raise CheckpointError(f"{file} has options that are not supported: {join_names(unknown)}.")
    missing = sorted(names.config.keys() - _OPTIONAL - options.keys())
    if missing:
        raise CheckpointError(f"{file} lacks {join_names(missing)}.")
    for key in sorted(names.config.keys() & options.keys() - {"dropout"}):
        if type(options[key]) is not int or options[key] < 1:
            raise CheckpointError(
                f"{file}: {key} must be a positive integer, got {truncated_repr(options[key])}."
            )
    ours = {
        field: options[key]
        for key, fields in names.config.items()
        if key in options
        for field in fields
    }
    return {**ours, **names.fixed}


def _padded(table: Stored, rows: int) -> Stored:
    """Prepends rows of zeros to an embedding table."""
    if not rows or len(table.shape) != 2:
        return table
    return table.reshaped(
        (table.shape[0] + rows, table.shape[1]), lambda array: np.pad(array, ((rows, 0), (0, 0)))
    )
