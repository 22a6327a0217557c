"""What a reader of a checkpoint format hands to the loader."""

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
        family, config: of the model.
        tensors: by the format's names.
        weights: our variable path -> name in ``tensors``, as the tables of ``registry``, of the
            backbone and of heads; None for a backbone whose tensors have our paths as names.
        ignored: regular expressions of tensor names that may be left over.
        copies: name of a tensor that duplicates another -> name of the other.
        values: entries of Hugging Face's ``config.json`` on labels, languages, task and tokenizer.
    """

    family: Family
    config: Any
    tensors: Tensors
    weights: Mapping[str, str] | None = None
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A checkpoint format.

    Attributes:
        files: the files that make a checkpoint, for error messages.
        is_in: whether a directory holds such a checkpoint.
        read: ``read(directory, family)`` opens it; ``family`` is the name of the family that the
            user asks for, None for the one that the checkpoint names. Raises ``CheckpointError``
            for files that are missing, damaged or not supported.
    """

    files: str
    is_in: Callable[[Path], bool]
    read: Callable[[Path, str | None], Source]


def asked_for(asked: str | None, found: Family, format: str, file: Path) -> Family:
    """The family that a user asks for, else the one that the file names.

    Raises:
        CheckpointError: where the two differ in their names in the format.
    """
    card = registry.get(asked) if asked else found
    if format not in card.formats or card.formats[format] != found.formats.get(format):
        raise CheckpointError(f"{file} is for {found.name}, which {card.name} cannot read.")
    return card
