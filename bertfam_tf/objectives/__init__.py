"""Objectives of pretraining, as ``bertfam_tf.learner.Learner`` takes them."""

from bertfam_tf.objectives.formats import (
    Segments,
    doc_sentences,
    full_sentences,
    segment_pairs,
    sentence_pairs,
)
from bertfam_tf.objectives.masked_lm import MaskedTokens
from bertfam_tf.objectives.masking import Masked, Masking, geometric, ngrams
from bertfam_tf.objectives.pairs import PairLabels
from bertfam_tf.objectives.permutation import Permutation, Permuted, PermutedTokens
from bertfam_tf.objectives.replaced import ReplacedTokens, replaced_tokens_network

__all__ = [
    "Masked",
    "MaskedTokens",
    "Masking",
    "PairLabels",
    "Permutation",
    "Permuted",
    "PermutedTokens",
    "ReplacedTokens",
    "Segments",
    "doc_sentences",
    "full_sentences",
    "geometric",
    "ngrams",
    "replaced_tokens_network",
    "segment_pairs",
    "sentence_pairs",
]
