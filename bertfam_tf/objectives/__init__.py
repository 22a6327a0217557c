"""Objectives of pretraining, as ``bertfam_tf.learner.Learner`` takes them.

Losses use Keras operations alone; examples, masks and orders are made in TensorFlow's input
pipeline.
"""

from bertfam_tf.lazy import lazy

# Imported on first use, because some need TensorFlow and Keras may run on another backend.
_HOME = {
    "BidirectionalTokens": "bidirectional_lm",
    "Boundaries": "span_boundary",
    "Corpus": "corpus",
    "Format": "examples",
    "Masked": "masking",
    "MaskedTokens": "masked_lm",
    "Masking": "masking",
    "NextTokens": "causal_lm",
    "PairLabels": "pairs",
    "Permutation": "permutation",
    "Permuted": "permutation",
    "PermutedTokens": "permuted_lm",
    "ReplacedTokens": "replaced",
    "Segments": "formats",
    "SentenceWords": "words",
    "Shards": "shards",
    "SpanBoundary": "span_boundary",
    "SpanBoundaryHead": "span_boundary",
    "TranslatedTokens": "masked_lm",
    "TranslationPairs": "translation",
    "bidirectional_head": "bidirectional_lm",
    "doc_sentences": "formats",
    "full_sentences": "formats",
    "geometric": "masking",
    "next_tokens": "causal_lm",
    "ngrams": "masking",
    "replaced_tokens_network": "replaced",
    "segment_pairs": "formats",
    "sentence_pairs": "formats",
    "span_boundaries": "span_boundary",
    "span_boundary_head": "span_boundary",
    "spans_at": "masking",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)
