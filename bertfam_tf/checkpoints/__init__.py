"""Readers of published checkpoints, and the one loader that applies a card's tables."""

from bertfam_tf.checkpoints.fill import fill
from bertfam_tf.checkpoints.loader import Checkpoint, load_backbone
from bertfam_tf.checkpoints.safetensors import Tensors
from bertfam_tf.sources import CheckpointError

__all__ = ["Checkpoint", "CheckpointError", "Tensors", "fill", "load_backbone"]
