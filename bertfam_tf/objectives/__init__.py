"""Pretraining objectives for ``bertfam_tf.training.Learner``.

They only use Keras operations; ``bertfam_tf.corpora`` builds their examples with ``tf.data``.
"""

from bertfam_tf.lazy import lazy

_HOME = {
    "Batch": "objective",
    "BidirectionalTokens": "bidirectional_lm",
    "Boundaries": "span_boundary",
    "MaskedTokens": "masked_lm",
    "NextTokens": "causal_lm",
    "Objective": "objective",
    "PairLabels": "pairs",
    "PermutedTokens": "permuted_lm",
    "ReplacedTokens": "replaced",
    "SpanBoundary": "span_boundary",
    "SpanBoundaryHead": "span_boundary",
    "SumAndCount": "objective",
    "Supervised": "objective",
    "TranslatedTokens": "masked_lm",
    "bidirectional_head": "bidirectional_lm",
    "mean": "objective",
    "next_tokens": "causal_lm",
    "replaced_tokens_network": "replaced",
    "span_boundaries": "span_boundary",
    "span_boundary_head": "span_boundary",
}

__all__ = list(_HOME)

_MOVED = {
    "bertfam_tf.corpora": """
        Corpus Format Masked Masking Permutation Permuted Segments SentenceWords Shards
        TranslationPairs doc_sentences full_sentences geometric ngrams segment_pairs
        sentence_pairs spans_at
    """
}
__getattr__, __dir__ = lazy(__name__, _HOME, __all__, _MOVED)
