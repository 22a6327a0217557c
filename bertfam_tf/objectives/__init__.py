"""Objectives of pretraining, as ``bertfam_tf.learner.Learner`` takes them."""

from bertfam_tf.objectives.masked_lm import MaskedTokens

__all__ = ["MaskedTokens"]
