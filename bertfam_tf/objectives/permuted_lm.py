"""The loss of permutation language modeling (XLNet, arXiv 1906.08237)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from bertfam_tf.heads import Head
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.objectives.predictions import token_loss, token_metrics


class PermutedTokens:
    """Cross-entropy of the predicted tokens: the loss ``permutation_lm``.

    The network's inputs are the backbone's, with ``perm_mask`` and ``target_mapping``; the target
    is ``token_ids``, int32 (batch, predictions), and the weights are the field of ``Permuted``.
    Metrics are ``permutation_lm_accuracy`` and ``permutation_lm_perplexity``.

    Args:
        head: the head over the vocabulary, such as ``heads.build(backbone, "permutation_lm")``.
        weight: the weight of the loss in the total.
    """

    def __init__(self, head: Head, weight: float = 1.0):
        self.heads: Mapping[str, Head] = {"permutation_lm": head}
        self.weights: Mapping[str, float] = {"permutation_lm": weight}
        self.metrics = token_metrics("permutation_lm")

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        logits, tokens = heads["permutation_lm"](outputs), batch.targets["token_ids"]
        return token_loss("permutation_lm", logits, tokens, ops.cast(batch.weights, "float32"))
