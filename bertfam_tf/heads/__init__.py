"""Heads: from a backbone's outputs to logits. Keras operations alone."""

from bertfam_tf.heads.sequence import SequenceHead

__all__ = ["SequenceHead"]
