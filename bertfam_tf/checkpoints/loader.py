"""The loader: it fills every variable, and accounts for every tensor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from bertfam_tf import models  # noqa: F401  (fills the registry)
from bertfam_tf.checkpoints import huggingface
from bertfam_tf.checkpoints.fill import fill
from bertfam_tf.checkpoints.safetensors import Tensors
from bertfam_tf.models.base import Backbone
from bertfam_tf.sources import CheckpointError, resolve

# TensorFlow's names for a norm's weights, as in checkpoints that were converted early on.
_OLD_NORM_NAMES = {".gamma": ".weight", ".beta": ".bias"}


class Checkpoint:
    """An opened checkpoint directory: what it is, and its tensors under canonical names.

    Args:
        path: as ``resolve`` takes it.
        **overrides: config fields to set otherwise than the checkpoint does.

    Attributes:
        directory: where it lies.
        family: the card that reads it.
        config: that family's config.
        labels: label names stored with it, or None.

    Raises:
        CheckpointError: missing, damaged or unsupported; the text names what and where.
    """

    def __init__(self, path: str | Path, **overrides: Any):
        self.directory = resolve(path)
        values = huggingface.read_config(self.directory)
        self.family, self.config = huggingface.translate(values, **overrides)
        self.labels = huggingface.labels(values)
        self._tensors = Tensors(self.directory).renamed(
            lambda name: _canonical(name, self.family.huggingface.prefix)
        )

    def backbone(self, **kwargs: Any) -> Backbone:
        """A new backbone with the checkpoint's weights; ``kwargs`` go to ``Backbone``."""
        try:
            backbone = Backbone(self.family.name, self.config, **kwargs)
        except ValueError as error:
            raise CheckpointError(f"The config of {self.directory}: {error}") from error
        names = self.family.huggingface
        self._fill(backbone, names.weights, names.ignored, "backbone")
        return backbone

    def has_head(self, head: str) -> bool:
        """Whether any tensor of that head is stored."""
        return any(name in self._tensors for name in self._head_tensors(head))

    def head_labels(self, head: str) -> list[str] | None:
        """The labels that a stored head was trained for, None without such a head.

        Named as ``LABEL_0``, … where the config does not name each.
        """
        if not self.has_head(head):
            return None
        kernel = self._head_tensors(head)[0]
        if kernel not in self._tensors:
            raise CheckpointError(f"{self.directory} has a {head} head without {kernel}.")
        count = self._tensors.shape(kernel)[0]
        if self.labels is not None and len(self.labels) == count:
            return self.labels
        return [f"LABEL_{i}" for i in range(count)]

    def fill_head(self, layer: keras.layers.Layer, head: str) -> None:
        """Fills a built head's variables from the checkpoint."""
        self._fill(layer, self.family.huggingface.heads[head], (".*",), f"{head} head")

    def _head_tensors(self, head: str) -> list[str]:
        table = self.family.huggingface.heads.get(head, {})
        return [source.partition("|")[0] for source in table.values()]

    def _fill(
        self,
        target: keras.layers.Layer,
        table: Mapping[str, str],
        ignored: tuple[str, ...],
        part: str,
    ) -> None:
        sources = {
            path.format(i=i): name.format(i=i)
            for path, name in table.items()
            for i in (range(self.config.num_layers) if "{i}" in path else (0,))
        }
        what = f"The checkpoint {self.directory} and the {self.family.name} {part}"
        fill(target.weights, self._tensors, sources, ignored, what)


def _canonical(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    for old, new in _OLD_NORM_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def load_backbone(path: str | Path, **overrides: Any) -> Backbone:
    """The backbone of a checkpoint, with its weights.

    Args:
        path: a directory, ``package:NAME``, or a hub id.
        **overrides: config fields to set otherwise than the checkpoint does, such as
            ``dropout=0.0`` or ``pooler=False``.

    Raises:
        CheckpointError: a missing or damaged file, an unsupported option, tensors missing, left
            over or of a wrong shape. Nothing is loaded then.
    """
    return Checkpoint(path, **overrides).backbone()
