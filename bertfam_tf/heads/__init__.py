"""Heads, which map a backbone's outputs to logits. They use only Keras operations."""

from bertfam_tf.heads.head import Head, build

__all__ = ["Head", "build"]
