"""Objectives of pretraining, as ``bertfam_tf.learner.Learner`` takes them."""

from bertfam_tf.objectives.masked_lm import MaskedTokens
from bertfam_tf.objectives.masking import Masked, Masking, geometric, ngrams

__all__ = ["Masked", "MaskedTokens", "Masking", "geometric", "ngrams"]
