"""Masked language modeling (arXiv 1810.04805, section 3.1), also of translation pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from bertfam_tf.heads import Head
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.objectives.predictions import counted, in_batch, token_loss, token_metrics, vectors


class MaskedTokens:
    """Cross-entropy of the tokens at some positions: the loss ``masked_lm``.

    Logits over the vocabulary, the widest product of a model, are only computed at these positions,
    and not at positions of weight 0 where shapes may depend on values (see ``Learner.unpadded``).

    A batch has as targets ``positions`` and ``token_ids``, int32 (batch, predictions): positions in
    the row of each example, and the tokens that stood there before they were masked; as weights
    float (batch, predictions), 0 where an example has fewer predictions, or None for 1. The loss is
    the mean over the sum of the weights. Metrics are ``masked_lm_accuracy``, the proportion of
    tokens whose logit is the highest, and ``masked_lm_perplexity``.

    Args:
        head: the head over the vocabulary, such as ``heads.build(backbone, "masked_lm")``.
        weight: the weight of the loss in the total.
    """

    def __init__(self, head: Head, weight: float = 1.0):
        self.heads: Mapping[str, Head] = {"masked_lm": head}
        self.weights: Mapping[str, float] = {"masked_lm": weight}
        self.metrics = token_metrics("masked_lm")

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        head = heads["masked_lm"]
        x = head.select(outputs)  # (batch, length, width)
        positions, tokens = batch.targets["positions"], batch.targets["token_ids"]
        weights = ops.ones_like(positions) if batch.weights is None else batch.weights
        weights, index, tokens = counted(weights, in_batch(positions, ops.shape(x)[1]), tokens)
        return token_loss("masked_lm", head.logits(vectors(x, index)), tokens, weights)


class TranslatedTokens:
    """Cross-entropy of masked tokens: ``tlm`` of translation pairs, ``masked_lm`` of texts.

    Translation language modeling is XLM's objective (arXiv 1901.07291, section 3.3).

    A batch has the targets and weights of ``MaskedTokens``, and ``translated``, int32 (batch,): 1
    for all of its examples, which are translation pairs, or 0 for all, which are texts. Metrics are
    the same as for ``MaskedTokens``, for each loss, such as ``tlm_accuracy``.

    Args:
        head: the head over the vocabulary, such as ``heads.build(backbone, "masked_lm")``.
        weights: the weights of the losses, ``tlm`` and ``masked_lm``; if one is left out, no batch
            may be of its kind.
    """

    def __init__(self, head: Head, weights: Mapping[str, float]):
        self._tokens = MaskedTokens(head)
        self.heads: Mapping[str, Head] = self._tokens.heads
        self.weights: Mapping[str, float] = dict(weights)
        self.metrics = {k: v for name in weights for k, v in token_metrics(name).items()}

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        sums = self._tokens.loss(outputs, heads, batch)
        translated = ops.cast(ops.any(batch.targets["translated"] > 0), "float32")
        factors = {"tlm": translated, "masked_lm": 1.0 - translated}
        return {
            name.replace("masked_lm", loss): (total * factors[loss], count * factors[loss])
            for loss in self.weights
            for name, (total, count) in sums.items()
        }
