"""Readers of published checkpoints, a loader for all formats, and a writer."""

from bertfam_tf.checkpoints.fill import fill
from bertfam_tf.checkpoints.loader import Checkpoint, load_backbone
from bertfam_tf.checkpoints.save import convert, save_pretrained
from bertfam_tf.checkpoints.source import Format, Source
from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.sources import CheckpointError

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Format",
    "Source",
    "Stored",
    "Tensors",
    "convert",
    "fill",
    "load_backbone",
    "save_pretrained",
]
