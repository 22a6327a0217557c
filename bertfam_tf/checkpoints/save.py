"""Writes Hugging Face's format, with the inverse of the families' tables."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import files, parsing, registry
from bertfam_tf.checkpoints import huggingface, own, safetensors, tokenizer_files
from bertfam_tf.checkpoints.fill import stored
from bertfam_tf.checkpoints.loader import Checkpoint
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.models.base import Backbone, plain_weights
from bertfam_tf.names import join_names, unknown
from bertfam_tf.sources import (
    GENERATOR,
    PRETRAINING_HEADS,
    CheckpointError,
    module_files,
    reject_external_links,
)


def save_pretrained(
    backbone: Backbone,
    directory: str | Path,
    *,
    heads: Mapping[str, keras.layers.Layer] | None = None,
    labels: Sequence[str] | None = None,
) -> None:
    """Writes ``model.safetensors`` and ``config.json``, which transformers can load.

    Args:
        backbone: the model to write.
        directory: the output directory; written atomically if it is missing or empty. In a
            directory with other files, the two files of a checkpoint are replaced atomically, one
            after the other.
        heads: built heads to save with the backbone, by name.
        labels: the names of the classes, for a head with labels.

    Raises:
        ValueError: if a head is unknown.
        FileExistsError: if the directory has a ``config.json`` that is not a model's, or weights
            without one.
        CheckpointError: if the format cannot represent the family or config fields, two heads have
            tensors of the same names, or weights are not finite; the message names them. Nothing
            is written.
    """
    target = Path(directory)
    _check_replaceable(target)
    with files.scratch(target) as temporary:
        checkpoint_directory = temporary / "checkpoint"
        checkpoint_directory.mkdir()
        write(backbone, checkpoint_directory, heads=heads, labels=labels)
        if target.is_dir() and any(target.iterdir()):
            for name in (SINGLE, huggingface.CONFIG):
                files.move_into_place(checkpoint_directory / name, target / name)
        else:
            files.move_into_place(checkpoint_directory, target)


def _check_replaceable(directory: Path) -> None:
    """Checks that the files which will be replaced are a checkpoint's."""
    config = directory / huggingface.CONFIG
    described: Any = None
    if config.is_file():
        with contextlib.suppress(ValueError):
            described = parsing.read_json(config)
    if isinstance(described, dict) and not {"model_type", "architectures"}.isdisjoint(described):
        return
    for file in (config, directory / SINGLE):
        if os.path.lexists(file):
            raise FileExistsError(
                f"{file} exists, and {config.name} does not describe a model; not overwritten."
            )


def write(
    backbone: Backbone,
    directory: Path,
    *,
    heads: Mapping[str, keras.layers.Layer] | None = None,
    labels: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Writes the two files into an existing directory, otherwise like ``save_pretrained``.

    Args:
        values: additional entries of ``config.json``.
    """
    record = registry.get(backbone.family)
    names = huggingface.names_of(record)
    described = huggingface.describe(record, backbone.config)
    tensors = _tensors(record, names.weights, plain_weights(backbone), backbone.config)
    extra: dict[str, np.ndarray] = {}
    for name, layer in (heads or {}).items():
        if name not in record.heads:
            raise ValueError(unknown(f"head of {record.name}", name, record.heads))
        table = record.heads[name].weights(name)
        weights = _tensors(record, table, plain_weights(layer), backbone.config)
        if both := sorted(weights.keys() & extra.keys()):
            raise CheckpointError(
                f"Hugging Face's format has the same names for the {name} head and another one: "
                f"{join_names(both)}. Save them in different directories."
            )
        extra |= weights
        if not labels and record.heads[name].has_labels:
            labels = huggingface.default_labels(layer.parts[-1].units)
    described |= _label_values(labels) | _classes(names, list(heads or {})) | dict(values or {})
    specs = [record.heads[name] for name in heads or ()]
    # transformers' classes for other heads have no pooler, and would report it as unexpected.
    if specs and not any(head.reads == "pooled_output" or head.tied_output for head in specs):
        for path, source in names.weights.items():
            if path.startswith("pooler/"):
                tensors.pop(source.partition("|")[0], None)
    _write(directory, described, tensors, extra, names.prefix if heads else "")


def convert(source: str | Path, target: str | Path, **options: Any) -> Path:
    """Converts any checkpoint that ``load_backbone`` reads to Hugging Face's format.

    The family's heads, the tokenizer's files, the labels, sentence-transformers' modules, and what
    pretraining wrote to go on (ELECTRA's generator, the head for span boundaries) are converted
    too. Links to files outside of the directory are rejected, because these files would be copied.

    Args:
        source: a directory, ``package:NAME``, or a hub id.
        target: the directory to create; it is written atomically.
        **options: the same as for ``load_backbone``.

    Returns:
        ``target``.

    Raises:
        FileExistsError: if ``target`` exists and is not an empty directory.
        CheckpointError: as ``load_backbone`` and ``save_pretrained``, or if the checkpoint stores
            options of a task that Hugging Face's format lacks.
        OSError: if writing fails, for example because the disk is full.
    """
    target = Path(target)
    files.check_new(target)
    checkpoint = Checkpoint(source, **options)
    reject_external_links(source, checkpoint.directory)
    if own.matches(checkpoint.directory):
        # The logged reason, if the config decided the format.
        huggingface.describe(checkpoint.family, checkpoint.config)
        raise CheckpointError(
            f"{source} is in this package's own format, whose tokenizer is not copied: load a task "
            "from it, and write that with save_pretrained."
        )
    if lost := checkpoint.task_options:
        raise CheckpointError(
            f"{source} has {join_names([f'{name} = {value!r}' for name, value in lost.items()])}, "
            "which Hugging Face's format does not store: load a task from it, and write that with "
            "save_pretrained."
        )
    backbone = checkpoint.backbone()
    record = checkpoint.family
    names = huggingface.names_of(record)
    table = {p: n for head, spec in record.heads.items() for p, n in spec.weights(head).items()}
    head_tensors = _tensors(record, table, checkpoint.head_tensors(), checkpoint.config)
    labels = checkpoint.labels or _unnamed_labels(checkpoint)
    values = huggingface.describe(record, backbone.config) | _label_values(labels)
    known = checkpoint.heads()
    # An uncertain class is not written: transformers would initialize its head randomly.
    if checkpoint.languages:
        values["lang2id"] = checkpoint.languages
    if checkpoint.language_id is not None:
        values["lang_id"] = checkpoint.language_id
    if checkpoint.classes:
        values["architectures"] = checkpoint.classes
    elif known or not head_tensors:
        values |= _classes(names, known)
    values |= checkpoint.kept
    tensors = _tensors(record, names.weights, plain_weights(backbone), backbone.config)
    with new_directory(target) as temporary:
        with_head = head_tensors or any(checkpoint.has_head(name) for name in record.heads)
        _write(temporary, values, tensors, head_tensors, names.prefix if with_head else "")
        max_length = checkpoint.options.get("max_length")
        tokenizer_files.copy(checkpoint.directory, temporary, max_length)
        for file in module_files(checkpoint.directory):
            (temporary / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint.directory / file, temporary / file)
        if (checkpoint.directory / PRETRAINING_HEADS).is_file():
            shutil.copyfile(checkpoint.directory / PRETRAINING_HEADS, temporary / PRETRAINING_HEADS)
        if (checkpoint.directory / GENERATOR / huggingface.CONFIG).is_file():
            convert(checkpoint.directory / GENERATOR, temporary / GENERATOR)
    return target


def _unnamed_labels(checkpoint: Checkpoint) -> list[str] | None:
    """Returns transformers' default label names of a stored head, unless it has two labels.

    Two is transformers' default number, so a config can omit it.
    """
    for name, spec in checkpoint.family.heads.items():
        labels = checkpoint.head_labels(name) if spec.has_labels else None
        if labels is not None and len(labels) != 2:
            return labels
    return None


@contextlib.contextmanager
def new_directory(target: str | Path) -> Iterator[Path]:
    """Yields a directory to write into, which is renamed to ``target``, or removed after an error.

    Raises:
        FileExistsError: if ``target`` exists and is not an empty directory.
    """
    files.check_new(target)
    with files.atomic(target, replace=False) as temporary:
        temporary.mkdir()
        yield temporary


def _tensors(
    record: registry.Family,
    table: Mapping[str, str],
    weights: Mapping[str, np.ndarray],
    config: Any,
) -> dict[str, np.ndarray]:
    """Converts weights by variable path to Hugging Face's tensors."""
    names = record.expand(table, config)
    parts_by_name: dict[str, dict[str, np.ndarray]] = {}
    for path, value in weights.items():
        if path not in names:
            raise CheckpointError(f"The family {record.name} defines no name for {path}.")
        name, _, transform = names[path].partition("|")
        parts_by_name.setdefault(name, {})[transform] = stored(value, transform)
    # The transforms of the parts of a tensor start with the number of the part.
    joined = {
        n: np.concatenate([parts[k] for k in sorted(parts)]) for n, parts in parts_by_name.items()
    }
    copies = record.expand(huggingface.names_of(record).copies, config)
    joined |= {copy: joined[name] for copy, name in copies.items() if name in joined}
    return {name: np.ascontiguousarray(array) for name, array in joined.items()}


def _label_values(labels: Sequence[str] | None) -> dict[str, Any]:
    if not labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def _classes(names: registry.HuggingFaceNames, heads: Sequence[str]) -> dict[str, list[str]]:
    return {"architectures": [names.class_of(head) for head in heads or (None,)]}


def _write(
    directory: Path,
    values: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    prefix: str,
) -> None:
    # As in transformers, the encoder's names have a prefix only if the model has a head.
    by_name = {prefix + name: array for name, array in tensors.items()} | dict(heads)
    bad = sorted(_not_finite(by_name.items()))
    if bad:
        raise CheckpointError(f"Not written, because of NaN or infinity in {join_names(bad)}.")
    text = json.dumps(dict(values), indent=2, sort_keys=True) + "\n"
    (directory / huggingface.CONFIG).write_text(text, "utf-8")
    safetensors.write(by_name, directory / SINGLE, metadata={"format": "pt"})
    # safetensors writes files that only their owner can read.
    shutil.copymode(directory / huggingface.CONFIG, directory / SINGLE)


def _not_finite(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[str]:
    for name, array in tensors:
        if not np.isfinite(array.astype("float32", copy=False)).all():
            yield name
