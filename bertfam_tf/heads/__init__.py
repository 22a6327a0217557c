"""Heads: from a backbone's outputs to logits. Keras operations alone."""

from bertfam_tf.heads.head import Head, build

__all__ = ["Head", "build"]
