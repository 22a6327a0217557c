"""The terms of the distillation loss by name.

Each term is a mean over real tokens, pairs of real tokens or examples, and over the layers of its
map. Published code divides by other numbers, which changes the relative weight of a term;
``scaling`` selects them. No term reads outputs at padding.
"""

from __future__ import annotations

from bertfam_tf.distill.layer_terms import (
    AttentionProbabilities,
    AttentionScores,
    Embeddings,
    FirstTokens,
    HiddenCosine,
    HiddenStates,
    Relations,
)
from bertfam_tf.distill.logit_terms import LogitsError, SoftTargets
from bertfam_tf.distill.term import Term, snake_case

TERMS: dict[str, type[Term]] = {
    snake_case(term.__name__): term
    for term in (
        AttentionProbabilities,
        AttentionScores,
        Embeddings,
        FirstTokens,
        HiddenCosine,
        HiddenStates,
        LogitsError,
        Relations,
        SoftTargets,
    )
}
