"""Bidirectional language modeling: predicts the next and the previous word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.causal_lm import next_tokens
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.objectives.predictions import counted, in_batch, token_loss, token_metrics, vectors


def bidirectional_head(backbone: Backbone, vocab_size: int) -> keras.layers.Layer:
    """Returns a new output layer over a vocabulary, which both directions share; it is built.

    Its dtype policy is the backbone's, except that logits are float32 if that computes in half
    precision.

    Args:
        backbone: a backbone whose hidden states are the concatenated states of two directions.
        vocab_size: the number of words.

    Raises:
        ValueError: if there is less than one word.
    """
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}.")
    policy = backbone.dtype_policy
    head = layers.Dense(
        vocab_size,
        kernel_initializer=layers.normal(backbone.config.initializer_range),
        name="bidirectional_lm_head",
        dtype="float32" if policy.compute_dtype in ("float16", "bfloat16") else policy,
    )
    head.build((None, backbone.config.hidden_size // 2))
    return head


class BidirectionalTokens:
    """Cross-entropy of the words after and before each: the loss ``bidirectional_lm``.

    ELMo's objective (arXiv 1802.05365, section 3.1). The first half of the last of the network's
    ``hidden_states`` predicts the word after each, the second half the word before each. Targets
    are the words' ids, int32 (batch, length), at the positions of the tokens. The loss is the mean
    over the predictions of both directions, and the metrics are ``bidirectional_lm_accuracy`` and
    ``bidirectional_lm_perplexity``. The published models estimate the softmax from 8,192 sampled
    words; here it is over the whole vocabulary.

    Args:
        head: ``bidirectional_head(backbone, vocab_size)``.
        weight: the weight of the loss in the total.

    Raises:
        ValueError: in training, for a batch without targets.
    """

    def __init__(self, head: keras.layers.Layer, weight: float = 1.0):
        self.heads: Mapping[str, keras.layers.Layer] = {"bidirectional_lm": head}
        self.weights: Mapping[str, float] = {"bidirectional_lm": weight}
        self.metrics = token_metrics("bidirectional_lm")

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        if batch.targets is None:
            raise ValueError("targets must be the ids of words, got none.")
        states, mask = outputs["hidden_states"][-1], batch.inputs["padding_mask"]
        halves = ops.split(states, 2, axis=-1)
        # Backwards, the word before is the next one.
        forward, backward = (
            self._direction(
                heads["bidirectional_lm"], *(turn(x) for x in (half, batch.targets, mask))
            )
            for half, turn in zip(halves, (lambda x: x, lambda x: ops.flip(x, axis=1)), strict=True)
        )
        return {
            name: (total + backward[name][0], count + backward[name][1])
            for name, (total, count) in forward.items()
        }

    def _direction(self, head: Any, x: Any, words: Any, mask: Any) -> dict[str, SumAndCount]:
        words, weights = next_tokens(words, mask)
        positions = ops.cumsum(ops.ones_like(words), axis=1) - 1
        weights, index, words = counted(weights, in_batch(positions, ops.shape(x)[1]), words)
        return token_loss("bidirectional_lm", head(vectors(x, index)), words, weights)
