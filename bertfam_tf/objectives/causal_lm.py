"""Causal language modeling: predicts the next token (Radford et al. 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from bertfam_tf.heads import Head
from bertfam_tf.models.base import leaving_padding_out
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.objectives.predictions import counted, in_batch, vectors


class NextTokens:
    """Cross-entropy of the token after each: the loss ``causal_lm``.

    Without targets, they are the batch's own tokens (see ``next_tokens``): the last token of an
    example predicts nothing, and nothing is predicted at padding. With targets, such as from
    ``data.segments``, whose last target is the first token of the next segment, they are int32
    (batch, length), and weights are float (batch, length), or None for 1. The loss is the mean over
    the sum of the weights. Logits of weight 0 are not computed where shapes may depend on values
    (see ``Learner.unpadded``). The metric is ``causal_lm_perplexity``.

    Args:
        head: the head over the vocabulary, such as ``heads.build(backbone, "causal_lm")``.
        weight: the weight of the loss in the total.

    Raises:
        ValueError: if the head does not read ``sequence_output``; in training, if there are sample
            weights without targets.
    """

    def __init__(self, head: Head, weight: float = 1.0):
        if head.reads != "sequence_output":
            raise ValueError(
                f"head must read sequence_output to predict the next token, got {head.name}, "
                f"which reads {head.reads}."
            )
        self.heads: Mapping[str, Head] = {"causal_lm": head}
        self.weights: Mapping[str, float] = {"causal_lm": weight}
        self.metrics: Mapping[str, Any] = {"causal_lm_perplexity": ops.exp}

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        head, tokens, weights = heads["causal_lm"], batch.targets, batch.weights
        if tokens is None:
            if weights is not None:
                raise ValueError("weights must be None without targets, got a tensor.")
            tokens, weights = next_tokens(batch.inputs["token_ids"], batch.inputs["padding_mask"])
        elif weights is None:
            weights = ops.ones_like(tokens)
        x = head.select(outputs)  # (batch, length, width)
        if leaving_padding_out():
            positions = ops.cumsum(ops.ones_like(tokens), axis=1) - 1
            weights, index, tokens = counted(weights, in_batch(positions, ops.shape(x)[1]), tokens)
            x = vectors(x, index)
        losses = -ops.cast(head.logits(x, tokens), "float32")
        weights = ops.cast(weights, "float32")
        sum_and_count = ops.sum(losses * weights), ops.sum(weights)
        return {"causal_lm": sum_and_count, "causal_lm_perplexity": sum_and_count}


def next_tokens(token_ids: Any, padding_mask: Any) -> tuple[Any, Any]:
    """Returns the token after each, and where there is one.

    Args:
        token_ids, padding_mask: int (batch, length); padding may be on either side.

    Returns:
        Targets, as ``token_ids``, and float32 weights (batch, length): 1 where a token and the one
        after it are real, 0 elsewhere.
    """
    mask = ops.cast(padding_mask, "float32")
    after = ops.concatenate([mask[:, 1:], ops.zeros_like(mask[:, :1])], axis=1)
    return ops.roll(token_ids, -1, axis=1), mask * after
