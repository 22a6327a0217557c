"""The loader: it fills every variable, and accounts for every tensor."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import models  # noqa: F401  (fills the registry)
from bertfam_tf.checkpoints import formats, huggingface
from bertfam_tf.checkpoints.fill import compare, fill
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.models.base import Backbone
from bertfam_tf.names import shown, unknown
from bertfam_tf.sources import CheckpointError, resolve

# TensorFlow's names for a norm's weights, as in checkpoints that were converted early on.
_OLD_NORM_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_KEPT = ("problem_type", "tokenizer_class", "bos_token_id", "eos_token_id")


class Checkpoint:
    """An opened checkpoint directory: what it is, and its tensors under canonical names.

    Args:
        path: as ``resolve`` takes it.
        family: the family that it is read as; None takes the one that its config names.
        **overrides: config fields to set otherwise than the checkpoint does.

    Attributes:
        directory: where it lies.
        family: the card that reads it.
        config: that family's config.
        labels: label names stored with it, or None.
        languages: numbers of the languages that its config names, none in most families.
        classes: Hugging Face's classes that its config names.
        kept: what its config says of the task and the tokenizer, which no model reads.

    Raises:
        CheckpointError: missing, damaged or unsupported; the text names what and where.
    """

    def __init__(self, path: str | Path, family: str | None = None, **overrides: Any):
        self.directory = resolve(path)
        source = formats.read(self.directory)
        fields = {**source.fields, **overrides}
        self.family, self.config = huggingface.translate(source.values, family, **fields)
        self.labels = huggingface.labels(source.values)
        self.languages = huggingface.languages(source.values)
        self.classes = huggingface.classes(source.values)
        self.kept = {key: source.values[key] for key in _KEPT if key in source.values}
        self._values = source.values
        self._tensors = source.tensors.renamed(
            lambda name: _canonical(name, self.family.huggingface.prefix)
        )
        self._name_tied()
        if self._has_no_pooler() and "pooler" not in overrides:
            self.config = dataclasses.replace(self.config, pooler=False)

    def backbone(self, **kwargs: Any) -> Backbone:
        """A new backbone with the checkpoint's weights; ``kwargs`` go to ``Backbone``."""
        names = self.family.huggingface
        what = f"The config of {self.directory}"
        shapes = declared(self.family, self.config, len(self._tensors), what)
        sources, pair = self._sources(names.weights, "backbone")
        compare(shapes, self._tensors, sources, names.ignored, pair)
        try:
            backbone = Backbone(self.family.name, self.config, **kwargs)
        except ValueError as error:
            raise CheckpointError(f"{what}: {error}") from error
        fill(backbone.weights, self._tensors, sources, names.ignored, pair)
        return backbone

    def has_head(self, head: str) -> bool:
        """Whether any tensor of that head is stored; one without any of its own if it is named.

        Several heads may have the same names; which one they are is said by ``architectures`` in
        the config. Without it they are taken for each of them.
        """
        stored = self._stored_of(head)
        said = self._said_heads()
        if not self._head_tensors(head):
            return head in said
        other = {name for each in said for name in self._head_tensors(each)}
        return bool(stored) and (head in said or not stored & other)

    def head_labels(self, head: str) -> list[str] | None:
        """The labels that a stored head was trained for, None without such a head.

        Named as ``LABEL_0``, … where the config does not name each.
        """
        if not self.has_head(head):
            return None
        kernel = self._head_tensors(head)[0]
        if kernel not in self._tensors:
            raise CheckpointError(f"{self.directory} has a {head} head without {kernel}.")
        shape = self._tensors.shape(kernel)
        if not math.prod(shape) or len(shape) != 2:
            raise CheckpointError(
                f"{self.directory}: {kernel} has the shape {shape}, expected (labels, width)."
            )
        count = shape[0]
        if self.labels is not None and len(self.labels) == count:
            return self.labels
        return [f"LABEL_{i}" for i in range(count)]

    def fill_head(self, layer: keras.layers.Layer, head: str) -> None:
        """Fills a head that ``heads.build`` made from the checkpoint.

        Raises:
            ValueError: for a head that the family does not have.
            CheckpointError: for tensors that are missing or do not fit, a config that describes
                another head, or a decoder that is not the token embedding.
        """
        if head not in self.family.heads:
            raise ValueError(unknown(f"head of {self.family.name}", head, self.family.heads))
        what = self.family.heads[head]
        for key, supported in what.required.items():
            if key in self._values and self._values[key] not in supported:
                raise CheckpointError(
                    f"{huggingface.CONFIG} has {key} = {shown(self._values[key])}, which the "
                    f"{head} head of {self.family.name} does not support; "
                    f"supported: {', '.join(map(repr, supported))}."
                )
        self._check_tied(head)
        sources, pair = self._sources(what.weights(head), f"{head} head")
        fill(layer.weights, self._tensors, sources, (".*",), pair)

    def heads(self) -> list[str]:
        """Heads that are stored for certain: none of those that several have the names of."""
        found = [head for head in self.family.heads if self.has_head(head)]
        names = {head: self._stored_of(head) for head in found}
        return [a for a in found if not any(names[a] & names[b] for b in found if b != a)]

    def head_tensors(self) -> dict[str, np.ndarray]:
        """What is stored of the heads that the card knows, under Hugging Face's names."""
        for head in self.family.heads:
            self._check_tied(head)
        known = (name for head in self.family.heads for name in self._head_tensors(head))
        return {name: self._tensors[name] for name in known if name in self._tensors}

    def _head_tensors(self, head: str) -> list[str]:
        what = self.family.heads.get(head)
        table = what.weights(head) if what else {}
        table = self.family.huggingface.expand(table, self.config)
        return [source.partition("|")[0] for source in table.values()]

    def _stored_of(self, head: str) -> set[str]:
        return {name for name in self._head_tensors(head) if name in self._tensors}

    def _said_heads(self) -> set[str]:
        """Heads of the family that the config says the checkpoint has."""
        names = self.classes
        theirs = self.family.huggingface
        ends = {head: theirs.class_of(head)[len(theirs.model) :] for head in self.family.heads}
        return {head for head, end in ends.items() if any(name.endswith(end) for name in names)}

    def _has_no_pooler(self) -> bool:
        """Whether the pooler was left out for a head that does without."""
        names = self.family.huggingface.weights.items()
        pooler = [name.partition("|")[0] for path, name in names if path.startswith("pooler/")]
        if not getattr(self.config, "pooler", False) or any(n in self._tensors for n in pooler):
            return False
        heads = self.family.heads.items()
        return any(
            self._stored_of(name) and self.has_head(name) and head.reads != "pooled_output"
            for name, head in heads
        )

    def _name_tied(self) -> None:
        """Of a tied table a file may hold the decoder's name alone."""
        table = self.family.huggingface.weights.get("token_embedding/embeddings")
        decoders = [head.tied_output for head in self.family.heads.values()]
        copies = {f"{decoder.theirs}.weight" for decoder in decoders if decoder}
        found = copies & self._tensors.keys()
        if table and table not in self._tensors and found:
            copy = found.pop()
            self._tensors = self._tensors.renamed(lambda name: table if name == copy else name)

    def _check_tied(self, head: str) -> None:
        """Raises where the stored decoder is another than the token embedding."""
        decoder = self.family.heads[head].tied_output
        if decoder is None:
            return
        embedding = self.family.huggingface.weights["token_embedding/embeddings"]
        for copy, original in (
            (f"{decoder.theirs}.weight", embedding),
            (f"{decoder.theirs}.bias", decoder.bias),
        ):
            if original is None or copy == original or not {copy, original} <= self._tensors.keys():
                continue
            if not np.array_equal(self._tensors[copy], self._tensors[original]):
                raise CheckpointError(
                    f"{self.directory}: {copy} differs from {original}; a decoder of its own is "
                    "not supported."
                )

    def _sources(self, table: Mapping[str, str], part: str) -> tuple[dict[str, str], str]:
        """Where each variable of a part comes from, and how errors call both."""
        sources = self.family.huggingface.expand(table, self.config)
        return sources, f"The checkpoint {self.directory} and the {self.family.name} {part}"


def _canonical(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    for old, new in _OLD_NORM_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def load_backbone(
    path: str | Path, family: str | None = None, *, dtype: Any = None, **overrides: Any
) -> Backbone:
    """The backbone of a checkpoint, with its weights.

    Args:
        path: a directory, ``package:NAME``, or a hub id.
        family: the family that it is read as, where its config names none or one that several
            share; ``load_backbone(path, "spanbert")``. None takes the one that the config names.
        dtype: dtype policy, such as ``"mixed_bfloat16"``; None for Keras' global one.
        **overrides: config fields to set otherwise than the checkpoint does, such as
            ``dropout=0.0`` or ``pooler=False``.

    Raises:
        CheckpointError: a missing or damaged file, an unsupported option, tensors missing, left
            over or of a wrong shape. Nothing is loaded then.
    """
    return Checkpoint(path, family, **overrides).backbone(dtype=dtype)
