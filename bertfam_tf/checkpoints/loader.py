"""Loads checkpoints of all formats; every variable and every tensor has to be accounted for."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import models  # noqa: F401  (fills the registry)
from bertfam_tf.checkpoints import formats, huggingface
from bertfam_tf.checkpoints.fill import compare, fill, heads_axis, loaded_shape, oriented
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.layers import filled_later
from bertfam_tf.models.base import Backbone
from bertfam_tf.names import truncated_repr, unknown
from bertfam_tf.sources import CheckpointError, opened, resolve
from bertfam_tf.user_warnings import UntrainedWarning, warn

_POOLER = "pooler/"
_KEPT = (
    "problem_type",
    "tokenizer_class",
    "bos_token_id",
    "eos_token_id",
    # The activation of a cross-encoder.
    "sentence_transformers",
    "sbert_ce_default_activation_function",
)


class Checkpoint:
    """An opened checkpoint directory: the model that it describes, and its tensors.

    Args:
        path: the same as for ``sources.resolve``.
        family: the family to read it as; None for the one that its config names.
        **overrides: config fields that replace the checkpoint's.

    Attributes:
        directory: the checkpoint's directory.
        family: the family that reads it.
        config: the config, an instance of the family's dataclass.
        labels: label names stored with it, or None.
        languages: language ids by language code, empty in most families.
        language_id: the language id of the texts, if the config names one.
        classes: the Hugging Face classes named in its config.
        kept: config entries about the task and the tokenizer, which do not affect the model.
        options: stored options of tasks, by our names.
        task: the name of the task's class that has these options; None for options of any task.
        outputs: ``problem_type`` of the only tasks with the stored head's output, or None.

    Raises:
        CheckpointError: if files are missing, damaged or not supported; the message names them.
    """

    def __init__(self, path: str | Path, family: str | None = None, **overrides: Any):
        self.directory = resolve(path)
        source = formats.read(self.directory, family)
        self.family = source.family
        values = source.values
        self.labels = huggingface.labels(values)
        self.languages = huggingface.languages(values)
        self.language_id = huggingface.language_id(values)
        self.classes = huggingface.classes(values)
        self.kept = {key: values[key] for key in _KEPT if key in values}
        self.options = dict(source.options)
        self.task = source.task
        self.outputs = source.outputs
        self._source = source
        self._tensors = source.tensors
        fields = source.config.to_dict()
        self.config: Any = source.config.from_dict({**fields, **overrides})
        if "pooler" not in overrides and self.lacks_pooler and self._has_head_without_pooler():
            self.without_missing_pooler()

    @property
    def task_options(self) -> dict[str, Any]:
        """The options that Hugging Face's format does not store."""
        return {name: value for name, value in self.options.items() if name != "max_length"}

    def backbone(self, *, new_pooler: bool = False, **kwargs: Any) -> Backbone:
        """Returns a new backbone with the checkpoint's weights.

        Args:
            new_pooler: adds a pooler with random weights, for a checkpoint without one.
            **kwargs: arguments of ``Backbone``.
        """
        what = f"The config of {self.directory}"
        config = self.config
        if new_pooler:
            config = config.from_dict({**config.to_dict(), "pooler": True})
        shapes = declared(self.family, config, len(self._tensors), what)
        sources = self.variable_sources("") or {path: path for path in shapes}
        if new_pooler:
            shapes = {path: x for path, x in shapes.items() if not path.startswith(_POOLER)}
            sources = {path: x for path, x in sources.items() if not path.startswith(_POOLER)}
        self._check_heads(sources)
        heads = {name for head in self.family.heads for name in self._names(head)}
        ignored = (*self._source.ignored, *map(re.escape, heads))
        description = self._description("backbone")
        compare(shapes, self._tensors, sources, ignored, description)
        try:
            with filled_later():
                backbone = Backbone(self.family.name, config, **kwargs)
        except ValueError as error:
            raise CheckpointError(f"{what}: {error}") from error
        stored = [w for w in backbone.weights if not (new_pooler and w.path.startswith(_POOLER))]
        fill(stored, self._tensors, sources, ignored, description)
        if new_pooler:
            _initialize_pooler(backbone)
        return backbone

    def has_head(self, head: str) -> bool:
        """Returns whether the checkpoint has that head: any of its tensors, or else its class.

        Tensors of several heads may have the same names. Then ``architectures`` in the config
        decides; without it, the checkpoint is assumed to have each of these heads.

        Raises:
            CheckpointError: if a stored head cannot be computed.
        """
        if head in self._source.unsupported:
            raise CheckpointError(self._source.unsupported[head])
        stored = self._stored_of(head)
        named_heads = self._named_heads()
        if not self._names(head):
            return head in named_heads
        other = {name for stored_head in named_heads for name in self._names(stored_head)}
        return bool(stored) and (head in named_heads or not stored & other)

    def head_labels(self, head: str) -> list[str] | None:
        """Returns the labels of a stored head, or None if there is no such head.

        They are ``LABEL_0``, … unless the config has a name for each.
        """
        if not self.has_head(head):
            return None
        path = f"{head}_head/{getattr(self.family.heads[head].parts[-1], 'name', '')}/kernel"
        kernel, _, transform = self.variable_sources(head)[path].partition("|")
        if kernel not in self._tensors:
            raise CheckpointError(f"{self.directory} has a {head} head without {kernel}.")
        shape = self._tensors.shape(kernel)
        if not math.prod(shape) or len(shape) != 2:
            raise CheckpointError(
                f"{self.directory}: {kernel} has the shape {shape}, expected (labels, width)."
            )
        count = loaded_shape(shape, transform)[-1]
        if self.labels is not None and len(self.labels) == count:
            return self.labels
        return huggingface.default_labels(count)

    def fill_head(self, layer: keras.layers.Layer, head: str) -> None:
        """Loads the weights of a head built by ``heads.build``.

        Raises:
            ValueError: if the family lacks the head.
            CheckpointError: if tensors are missing or have wrong shapes, the config describes
                another head, or an output projection is not tied to the token embedding.
        """
        if head not in self.family.heads:
            raise ValueError(unknown(f"head of {self.family.name}", head, self.family.heads))
        values = self._source.values
        for key, supported in self.family.heads[head].required.items():
            if key in values and values[key] not in supported:
                raise CheckpointError(
                    f"{huggingface.CONFIG} has {key} = {truncated_repr(values[key])}, which the "
                    f"{head} head of {self.family.name} does not support; "
                    f"supported: {', '.join(map(repr, supported))}."
                )
        self._check_tied(head)
        description = self._description(f"{head} head")
        fill(layer.weights, self._tensors, self.variable_sources(head), (".*",), description)

    def fill_by_path(self, variables: Sequence[keras.Variable]) -> bool:
        """Loads variables that this package's own format stores by their paths.

        Returns:
            Whether it stores all of them, in their shapes; otherwise none has changed.
        """
        paths = {variable.path: variable.path for variable in variables}
        for variable in variables:
            stored = self._tensors.shape(variable.path) if variable.path in self._tensors else None
            if stored != tuple(variable.shape):
                return False
        fill(variables, self._tensors, paths, (".*",), self._description("task"))
        return True

    def heads(self) -> list[str]:
        """Returns the heads that are certainly stored, which share no tensor names with others."""
        stored_heads = [head for head in self.family.heads if self.has_head(head)]
        names = {head: self._stored_of(head) for head in stored_heads}
        return [
            a for a in stored_heads if not any(names[a] & names[b] for b in stored_heads if b != a)
        ]

    def head_tensors(self) -> dict[str, np.ndarray]:
        """Returns the stored weights of the family's heads, by variable path."""
        tensors = {}
        for head in self.family.heads:
            self._check_tied(head)
            for path, source in self.variable_sources(head).items():
                name, _, transform = source.partition("|")
                if name in self._tensors:
                    array = self._tensors[name]
                    tensors[path] = oriented(array, transform, array.shape)
        return tensors

    def variable_sources(self, head: str = "") -> dict[str, str]:
        """Returns the tensor name and storage transform of each variable, by its path.

        Args:
            head: the name of a head; ``""`` for the backbone.
        """
        table = self._source.weights or {}
        starts = self._starts_of_heads(*([head] if head else []))
        chosen = {p: n for p, n in table.items() if p.startswith(starts) == bool(head)}
        return self.family.expand(chosen, self.config)

    def _starts_of_heads(self, *heads: str) -> tuple[str, ...]:
        """Returns the starts of the variable paths of heads, by default of all."""
        return tuple(f"{name}_head/" for name in heads or self.family.heads)

    def stored_name(self, name: str) -> str:
        """Returns a tensor's name in its file, by its name in the family's table."""
        return self._tensors.stored_name(name)

    def _names(self, head: str) -> set[str]:
        """Returns the tensor names of a head."""
        return {source.partition("|")[0] for source in self.variable_sources(head).values()}

    def _stored_of(self, head: str) -> set[str]:
        return {name for name in self._names(head) if name in self._tensors}

    def _named_heads(self) -> set[str]:
        """Returns heads of the family whose classes the config names."""
        theirs = self.family.huggingface
        if theirs is None:
            return set()
        ends = {head: theirs.class_of(head)[len(theirs.model) :] for head in self.family.heads}
        return {head for head, end in ends.items() if any(n.endswith(end) for n in self.classes)}

    @property
    def lacks_pooler(self) -> bool:
        """Whether the family's models may have a pooler, and the checkpoint has none."""
        # Not ``variable_sources``, which has a name for each layer that the config declares.
        table, heads = self._source.weights or {}, self._starts_of_heads()
        if all(path.startswith(heads) for path in table):  # variables are stored by their paths
            has_field = hasattr(self.config, "pooler")
            return has_field and not any(name.startswith(_POOLER) for name in self._tensors)
        pooler = [name.partition("|")[0] for p, name in table.items() if p.startswith(_POOLER)]
        return bool(pooler) and not any(name in self._tensors for name in pooler)

    def without_missing_pooler(self) -> None:
        """Changes the config to one without a pooler, if the checkpoint has none."""
        if self.lacks_pooler and getattr(self.config, "pooler", False):
            self.config = self.config.from_dict({**self.config.to_dict(), "pooler": False})

    def _has_head_without_pooler(self) -> bool:
        """Whether the checkpoint has a head that does not use the pooler."""
        return any(
            self._stored_of(name) and self.has_head(name) and head.reads != "pooled_output"
            for name, head in self.family.heads.items()
        )

    def _check_tied(self, head: str) -> None:
        """Raises an error if the stored output projection differs from the token embedding."""
        if self.family.heads[head].tied_output is None:
            return
        for copy, original in self._source.copies.items():
            if copy == original or not {copy, original} <= self._tensors.keys():
                continue
            if not np.array_equal(self._tensors[copy], self._tensors[original]):
                raise CheckpointError(
                    f"{self.directory}: {copy} differs from {original}; an output projection that "
                    "is not tied to the token embedding is not supported."
                )

    def _check_heads(self, sources: dict[str, str]) -> None:
        """Raises an error if tensors do not have the number of attention heads in the config."""
        for source in sources.values():
            name, _, transform = source.partition("|")
            axis = heads_axis(transform)
            if axis is None or name not in self._tensors:
                continue
            shape = self._tensors.shape(name)
            if len(shape) > axis + 1 and shape[axis] != self.config.num_heads:
                raise CheckpointError(
                    f"{self.directory}: {self._tensors.stored_name(name)} {shape} does not have "
                    f"the {self.config.num_heads} heads of the config."
                )

    def _description(self, part: str) -> str:
        """Returns the checkpoint and the part of the model, for error messages."""
        return f"The checkpoint {self.directory} and the {self.family.name} {part}"


def _initialize_pooler(backbone: Backbone) -> None:
    """Draws the weights of a pooler from the distribution of a new backbone."""
    for layer in backbone._flatten_layers(recursive=True):
        kernel = getattr(layer, "kernel", None)
        if kernel is not None and kernel.path.startswith(_POOLER):
            kernel.assign(layer.kernel_initializer(kernel.shape, kernel.dtype))


def load_backbone(
    path: Any, family: str | None = None, *, dtype: Any = None, **overrides: Any
) -> Backbone:
    """Returns the backbone of a checkpoint, with its weights.

    Args:
        path: a directory, ``package:NAME``, a hub id, the name or handle of a KerasHub preset; or a
            model of KerasHub or an encoder of TF Model Garden.
        family: the family to read it as, if its config does not name one or several families have
            the same config: ``load_backbone(path, "spanbert")``. None for the one in the config.
        dtype: the dtype policy, such as ``"mixed_bfloat16"``; None for Keras' global one.
        **overrides: config fields that replace the checkpoint's, such as ``dropout=0.0`` or
            ``pooler=False``. With ``pooler=True``, a checkpoint without a pooler gets a new one,
            with a warning.

    Raises:
        CheckpointError: if a file is missing or damaged, an option is not supported, or tensors are
            missing, unexpected or of a wrong shape.
        ValueError: if an override is not a config field, or is out of range.
    """
    with opened(path) as source:
        checkpoint = Checkpoint(source, family, **overrides)
        new_pooler = overrides.get("pooler") is True and checkpoint.lacks_pooler
        backbone = checkpoint.backbone(new_pooler=new_pooler, dtype=dtype)
    if new_pooler:
        warn(UntrainedWarning("pooler", "is", path, "backbone"))
    return backbone
