"""This package's own format: weights by variable path, a description and a tokenizer.

``Task.save`` writes it, and pretraining writes models in it that Hugging Face's format cannot
represent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam_tf import parsing, registry
from bertfam_tf.checkpoints import safetensors
from bertfam_tf.checkpoints.huggingface import config_from, problem_type
from bertfam_tf.checkpoints.source import Format, Source
from bertfam_tf.names import truncated_repr
from bertfam_tf.sources import DESCRIPTION, CheckpointError, sha256


def matches(directory: Path) -> bool:
    """Returns whether the directory has a description of this format."""
    return (directory / DESCRIPTION).is_file()


def check_digests(directory: Path, digests: Mapping[str, str]) -> None:
    """Checks that the files are the ones that were saved.

    Raises:
        CheckpointError: if a file is missing, outside of the directory, or differs.
    """
    for name, digest in digests.items():
        file = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(
                f"{directory / DESCRIPTION} lists {truncated_repr(name)}, outside of it."
            )
        if not file.is_file():
            raise CheckpointError(f"{file} is missing.")
        if sha256(file) != digest:
            raise CheckpointError(f"{file} is not the file that was saved; its sha256 differs.")


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a checkpoint; arguments and errors as for ``Format.read``."""
    file = directory / DESCRIPTION
    values = parsing.read_object(file, CheckpointError)
    for name, kind in (("family", str), ("config", dict), ("sha256", dict)):
        if not isinstance(values.get(name), kind):
            raise CheckpointError(f"{file} is not the description of a model: it has no {name}.")
    if family not in (None, values["family"]):
        raise CheckpointError(f"{file} is for {truncated_repr(values['family'])}, not {family}.")
    try:
        record = registry.get(values["family"])
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    config = config_from(record, values["config"], file)
    check_digests(directory, values["sha256"])
    tensors = safetensors.read(directory)
    options, task = values.get("options"), values.get("task")
    options = options if isinstance(options, dict) else {}
    described: dict[str, Any] = {"lang2id": values.get("languages")}
    if isinstance(values.get("labels"), list):
        described["id2label"] = dict(enumerate(values["labels"]))
    others = values.get("other_weights", [])
    if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
        raise CheckpointError(f"{file}: other_weights must be a list of names.")
    # A backbone may be loaded without its pooler.
    ignored = (r"pooler/.*", *map(re.escape, others))
    heads = {path: path for name, spec in record.heads.items() for path in spec.weights(name)}
    return Source(
        record,
        config,
        tensors,
        heads,
        ignored,
        values=described,
        options=options,
        task=task if isinstance(task, str) else None,
        outputs=problem_type(values),
    )


FORMAT = Format(
    f"{DESCRIPTION} with {safetensors.SINGLE} and a tokenizer (written by this package)",
    matches,
    read,
)
