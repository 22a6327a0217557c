"""Back to Hugging Face's format, by the cards' tables turned round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import files, registry
from bertfam_tf.checkpoints import huggingface, safetensors, tokenizer_files
from bertfam_tf.checkpoints.fill import stored
from bertfam_tf.checkpoints.loader import Checkpoint
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.models.base import Backbone, plain_weights
from bertfam_tf.names import listed, unknown
from bertfam_tf.sources import CheckpointError, refuse_links_out

FORMATS = ("hf",)


def save_pretrained(
    backbone: Backbone,
    directory: str | Path,
    format: str = "hf",
    *,
    heads: Mapping[str, keras.layers.Layer] | None = None,
    labels: Sequence[str] | None = None,
) -> None:
    """Writes ``model.safetensors`` and ``config.json``, as transformers loads them.

    Args:
        backbone: what is written.
        directory: made if need be, whole or not at all; where it holds other files, the two are
            replaced one after the other, each whole.
        format: ``"hf"``, Hugging Face's.
        heads: built heads that go with it, by the names of the card's table.
        labels: names of the classes, for a head that has them.

    Raises:
        ValueError: for a format or head that is not known.
        CheckpointError: for config fields that the format cannot say, or weights that are not
            finite; the text names them. Nothing is written then.
    """
    _check_format(format)
    target = Path(directory)
    with files.scratch(target) as temporary:
        made = temporary / "checkpoint"
        made.mkdir()
        write(backbone, made, heads=heads, labels=labels)
        if target.is_dir() and any(target.iterdir()):
            for name in (SINGLE, huggingface.CONFIG):
                files.put(made / name, target / name)
        else:
            files.put(made, target)


def write(
    backbone: Backbone,
    directory: Path,
    *,
    heads: Mapping[str, keras.layers.Layer] | None = None,
    labels: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Writes the two files into a directory that is there; as ``save_pretrained``.

    Args:
        values: further entries of ``config.json``.
    """
    card = registry.get(backbone.family)
    described = huggingface.describe(card, backbone.config)
    tensors = _tensors(card, card.huggingface.weights, backbone)
    extra: dict[str, np.ndarray] = {}
    for name, layer in (heads or {}).items():
        if name not in card.heads:
            raise ValueError(unknown(f"head of {card.name}", name, card.heads))
        extra |= _tensors(card, card.heads[name].weights(name), layer, backbone.config)
        labels = labels or _unnamed(card.heads[name], layer)
    described |= _label_values(labels) | _classes(card, list(heads or {})) | dict(values or {})
    # Their classes for other heads have no pooler, and would report it as left over.
    if heads and not any(_needs_pooler(card.heads[name]) for name in heads):
        for path, source in card.huggingface.weights.items():
            if path.startswith("pooler/"):
                tensors.pop(source.partition("|")[0], None)
    _write(directory, described, tensors, extra, card.huggingface.prefix if heads else "")


def convert(source: str | Path, target: str | Path, to: str = "hf", **options: Any) -> Path:
    """Any checkpoint that ``load_backbone`` reads, in Hugging Face's format.

    Heads that the family's card knows come along, and so do the tokenizer's files and the labels.
    Files that are links out of the directory are refused, for what they lead to would come along.

    Args:
        source: a directory, ``package:NAME``, or a hub id.
        target: the directory to make; the whole of it appears at once.
        to: ``"hf"``.
        **options: as for ``load_backbone``.

    Returns:
        ``target``.

    Raises:
        FileExistsError: when ``target`` exists and is not an empty directory.
        CheckpointError: as ``load_backbone`` and ``save_pretrained`` raise it.
        OSError: when writing fails, on a full disk say.
    """
    _check_format(to)
    target = Path(target)
    _check_new(target)
    checkpoint = Checkpoint(source, **options)
    refuse_links_out(source, checkpoint.directory)
    backbone = checkpoint.backbone()
    card = checkpoint.family
    found = checkpoint.head_tensors()
    values = huggingface.describe(card, backbone.config) | _label_values(checkpoint.labels)
    known = checkpoint.heads()
    # A class that is not known for certain is not named: transformers would start its head anew.
    if checkpoint.languages:
        values["lang2id"] = checkpoint.languages
    if checkpoint.classes:
        values["architectures"] = checkpoint.classes
    elif known or not found:
        values |= _classes(card, known)
    values |= checkpoint.kept
    tensors = _tensors(card, card.huggingface.weights, backbone)
    with new_directory(target) as temporary:
        above = found or any(checkpoint.has_head(name) for name in card.heads)
        _write(temporary, values, tensors, found, card.huggingface.prefix if above else "")
        tokenizer_files.copy(checkpoint.directory, temporary)
    return target


@contextmanager
def new_directory(target: str | Path) -> Iterator[Path]:
    """A directory to write into, which becomes ``target`` at the end, or goes if that fails.

    Raises:
        FileExistsError: when ``target`` exists and is not an empty directory.
    """
    _check_new(target)
    with files.whole(target) as temporary:
        temporary.mkdir()
        yield temporary


def _check_new(target: str | Path) -> None:
    files.settle(target)
    target = Path(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} exists; it is not overwritten.")


def _check_format(name: str) -> None:
    if name not in FORMATS:
        raise ValueError(f"{unknown('format', name, FORMATS)} Known: {', '.join(FORMATS)}.")


def _tensors(
    card: registry.Family,
    table: Mapping[str, str],
    layer: Any,
    config: Any = None,
) -> dict[str, np.ndarray]:
    names = card.huggingface.expand(table, config or layer.config)
    found: dict[str, dict[str, np.ndarray]] = {}
    for path, value in plain_weights(layer).items():
        if path not in names:
            raise CheckpointError(f"The card of {card.name} has no name for {path}.")
        name, _, transform = names[path].partition("|")
        found.setdefault(name, {})[transform] = stored(value, transform)
    # What is stored as one tensor has its parts' numbers in front.
    joined = {n: np.concatenate([parts[k] for k in sorted(parts)]) for n, parts in found.items()}
    copies = card.huggingface.expand(card.huggingface.copies, config or layer.config)
    joined |= {copy: joined[name] for copy, name in copies.items() if name in joined}
    return {name: np.ascontiguousarray(array) for name, array in joined.items()}


def _label_values(labels: Sequence[str] | None) -> dict[str, Any]:
    if not labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def _needs_pooler(head: registry.HeadSpec) -> bool:
    """Whether a model with that head has a pooler: to read it, or to be trained on."""
    return head.reads == "pooled_output" or head.tied_output is not None


def _unnamed(head: registry.HeadSpec, layer: Any) -> list[str] | None:
    """Names for the scores of a head whose width is free, as transformers names them."""
    return [f"LABEL_{i}" for i in range(layer.parts[-1].units)] if head.has_labels else None


def _classes(card: registry.Family, heads: Sequence[str]) -> dict[str, list[str]]:
    return {"architectures": [card.huggingface.class_of(head) for head in heads or (None,)]}


def _write(
    directory: Path,
    values: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    prefix: str,
) -> None:
    # As transformers does: the encoder alone has plain names, below a head it has its prefix.
    named = {prefix + name: array for name, array in tensors.items()} | dict(heads)
    bad = sorted(_not_finite(named.items()))
    if bad:
        raise CheckpointError(f"Not written, because of NaN or infinity in {listed(bad)}.")
    text = json.dumps(dict(values), indent=2, sort_keys=True) + "\n"
    (directory / huggingface.CONFIG).write_text(text, "utf-8")
    safetensors.write(named, directory / SINGLE, metadata={"format": "pt"})
    # safetensors lets nobody but the owner read its files.
    shutil.copymode(directory / huggingface.CONFIG, directory / SINGLE)


def _not_finite(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[str]:
    for name, array in tensors:
        if not np.isfinite(array.astype("float32", copy=False)).all():
            yield name
