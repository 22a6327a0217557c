"""The head of a KerasHub preset: ``task.json``, ``task.weights.h5`` and ``preprocessor.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.checkpoints import hub_presets
from bertfam_tf.checkpoints.keras_weights import stored, table_name
from bertfam_tf.checkpoints.tensors import Stored
from bertfam_tf.names import truncated_repr
from bertfam_tf.registry import Family, FormatNames, TaskNames
from bertfam_tf.sources import CheckpointError

WEIGHTS = "task.weights.h5"
_TASK, _PREPROCESSOR = "task.json", "preprocessor.json"
# Before the names of the tensors in the second file. Its optimizer's state is not used.
_TASK_PREFIX, _TASK_IGNORED = "task/", (r"task/optimizer/.*",)
# The activation of a classifier's last layer -> ``problem_type`` of the task that computes it.
_OUTPUTS = {
    "linear": None,
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
}
# Options of all classes of models with a head: these are read from other files, or not used.
_TASK_KEYS = {"name", "backbone", "preprocessor", "dtype", "trainable", "num_classes", "activation"}


@dataclass(frozen=True)
class Task:
    """The head of a preset.

    Attributes:
        head: its name; None for a preset without one.
        fields: fields of the backbone's config that it determines.
        tensors: its tensors, by the names in the tables.
        ignored, options, outputs, unsupported: the same as in ``Source``.
    """

    head: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: tuple[tuple[str, Stored], ...] = ()
    ignored: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: str | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)


def read(directory: Path, record: Family, fields: Mapping[str, Any]) -> Task:
    """Reads ``task.json``, ``task.weights.h5`` and the length of texts.

    Args:
        directory: the directory of the preset.
        record: the family of its backbone.
        fields: the fields of the backbone's config.
    """
    file, weights = directory / _TASK, directory / WEIGHTS
    options = _length(directory)
    if not file.is_file():
        if weights.is_file():
            raise CheckpointError(f"{weights} is there, but {file.name}, which describes it, not.")
        return Task(options=options)
    said = parsing.read_object(file, CheckpointError)
    config = said.get("config")
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} has no 'config' of a model with a head.")
    names = record.formats[hub_presets.FORMAT]
    classes = {
        kind + end: task_names for kind in names.kinds for end, task_names in names.tasks.items()
    }
    name = hub_presets.class_name(said)
    if name not in classes:
        known = ", ".join(sorted(classes)) or "none of this family"
        reason = f"{file} is for KerasHub's {truncated_repr(name)}. Known: {known}."
        return Task(
            ignored=(f"{_TASK_PREFIX}.*",),
            unsupported=dict.fromkeys(record.heads, reason),
        )
    described = classes[name]
    head = described.head
    has_weights = any(path.startswith(f"{head}_head/") for path in names.weights)
    if has_weights != weights.is_file():
        raise CheckpointError(
            f"{directory} has {file.name} of a {name}, {'but no' if has_weights else 'and a'} "
            f"{weights.name}{'' if has_weights else ', which that class does not have'}."
        )
    activation = config.get("activation", "linear")
    reason = _unsupported(config, described, fields)
    if reason and head is None:
        raise CheckpointError(f"{file} has {reason}.")
    options |= _options(file, config, described)
    read = stored(weights) if has_weights else ()
    tensors = tuple((_TASK_PREFIX + table_name(path), tensor) for path, tensor in read)
    _check_classes(file, config, names, head, dict(tensors))
    of_config = {
        field: config[key]
        for key, ours in described.config.items()
        for field in ours
        if key in config
    }
    return Task(
        head,
        {**described.fixed, **of_config},
        tensors,
        _TASK_IGNORED,
        options,
        None if reason else _OUTPUTS[activation],
        {head: f"{file} has {reason}; this {head} head is not supported."}
        if reason and head
        else {},
    )


def _unsupported(options: dict[str, Any], described: TaskNames, fields: Mapping[str, Any]) -> str:
    """Explains why a head with these options cannot be computed; returns ``""`` if it can."""
    known = _TASK_KEYS | described.config.keys() | described.same.keys() | described.options.keys()
    for key in sorted(options.keys() - known):
        return f"the option {truncated_repr(key)}, which is not known"
    for key, field_name in described.same.items():
        if options.get(key) not in (None, fields[field_name]):
            return f"{key} = {truncated_repr(options[key])}, expected {fields[field_name]}"
    activation = options.get("activation", "linear")
    if not isinstance(activation, str) or activation not in _OUTPUTS:
        return f"activation = {truncated_repr(activation)}, expected {', '.join(_OUTPUTS)}"
    return ""


def _options(file: Path, config: dict[str, Any], described: TaskNames) -> dict[str, Any]:
    """Returns options of tasks that the class has, by our names."""
    options: dict[str, Any] = {}
    for key, (ours, values) in described.options.items():
        value = config.get(key)
        if key in config and (not isinstance(value, str | bool) or value not in values):
            raise CheckpointError(
                f"{file} has {key} = {truncated_repr(value)}, expected one of "
                f"{', '.join(map(repr, values))}."
            )
        options |= {ours: values[value]} if key in config else {}
    return options


def _check_classes(
    file: Path, options: dict, names: FormatNames, head: str | None, tensors: dict[str, Stored]
) -> None:
    """Raises an error if a classifier's tensors have another number of classes than it says."""
    kernel = names.weights.get(f"{head}_head/classifier/kernel")
    if kernel is None or kernel not in tensors or "num_classes" not in options:
        return
    shape = tensors[kernel].shape
    if not shape or shape[-1] != options["num_classes"]:
        raise CheckpointError(
            f"{file} has num_classes = {truncated_repr(options['num_classes'])}, but "
            f"{tensors[kernel].name} has the shape {shape}."
        )


def _length(directory: Path) -> dict[str, Any]:
    """Returns the length that a preset's preprocessor cuts texts to."""
    file = directory / _PREPROCESSOR
    if not file.is_file():
        return {}
    said = parsing.read_json(file, CheckpointError)
    config = said.get("config") if isinstance(said, dict) else None
    length = config.get("sequence_length") if isinstance(config, dict) else None
    if length is None:
        return {}
    if type(length) is not int or length < 1:
        raise CheckpointError(
            f"{file}: sequence_length must be a positive integer, got {truncated_repr(length)}."
        )
    return {"max_length": length}
