"""The terms of a distillation's loss: what a student imitates.

Each is the mean over real tokens, pairs of real tokens or examples, and over the layers of its map.
Published code divides by other numbers, which changes the weight of a term relative to others;
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
    snake_case(each.__name__): each
    for each in (
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
