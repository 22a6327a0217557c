"""The interface between the readers of checkpoint formats and the loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfam_tf import registry
from bertfam_tf.checkpoints.tensors import Tensors
from bertfam_tf.registry import Family
from bertfam_tf.sources import CheckpointError


@dataclass(frozen=True)
class Source:
    """An opened checkpoint: the model that it describes, and where its weights are.

    Attributes:
        family, config: family and config of the model.
        tensors: the tensors by their names in the format.
        weights: variable path -> name in ``tensors``, as in the tables of ``registry``, for the
            backbone and heads. Without an entry for the backbone, or None: its tensors are named
            by variable path.
        ignored: regular expressions of tensor names that may remain unused.
        copies: the name of a tensor that duplicates another -> name of the other.
        values: entries of Hugging Face's ``config.json`` for labels, languages, task and tokenizer.
        options: stored options of tasks, by our names; a task uses those that it has.
        task: the name of the task's class that has these options; None for options of any task.
        outputs: ``problem_type`` of the only tasks with the output of the checkpoint's head.
        unsupported: head -> why the stored one cannot be computed; the error if it is requested.
    """

    family: Family
    config: Any
    tensors: Tensors
    weights: Mapping[str, str] | None = None
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None
    outputs: str | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A checkpoint format.

    Attributes:
        files: the files that a checkpoint consists of, for error messages.
        matches: returns whether a directory contains such a checkpoint.
        read: ``read(directory, family)`` opens it; ``family`` is the name of the family that the
            user requests, None for the one that the checkpoint names. Raises ``CheckpointError``
            for files that are missing, damaged or not supported.
    """

    files: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, str | None], Source]


def requested_family(requested: str | None, stored: Family, format: str, file: Path) -> Family:
    """Returns the requested family, or the one that the file names.

    Raises:
        CheckpointError: if the two have different names in the format.
    """
    record = registry.get(requested) if requested else stored
    if format not in record.formats or record.formats[format] != stored.formats.get(format):
        raise CheckpointError(f"{file} is for {stored.name}, which {record.name} cannot read.")
    return record
