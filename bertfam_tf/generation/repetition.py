"""Changes logits so that tokens and n-grams of a text do not repeat."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.generation.models import Step, reserve
from bertfam_tf.generation.options import Options


class WithoutRepetition:
    """A ``Step`` with the ``repetition_penalty`` and ``no_repeat_ngram_size`` of options.

    Both count the prompt, without padding. The state is the step's, and the tokens so far, int32
    (batch, tokens).

    Args:
        step: computes the logits, or in beam search the log-probabilities.
        options: generation options.
    """

    def __init__(self, step: Step, options: Options) -> None:
        self.step = step
        self.options = options

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        inner, before = (None, token_ids[:, :0]) if state is None else state
        tokens = tf.concat([before, token_ids], axis=1)
        scores, inner = self.step(token_ids, padding_mask, inner)
        if self.options.repetition_penalty != 1:
            scores = _penalized(scores, tokens, padding_mask, self.options.repetition_penalty)
        if self.options.no_repeat_ngram_size:
            scores = _excluded(scores, tokens, padding_mask, self.options.no_repeat_ngram_size)
        return scores, (inner, tokens)

    def reserve(self, state: Any, tokens: Any) -> Any:
        inner, before = state
        return reserve(self.step, inner, tokens), before


def without_repetition(step: Step, options: Options) -> Step:
    """Returns ``WithoutRepetition``, or the step itself if the options allow repetition."""
    return WithoutRepetition(step, options) if options.restricts_repetition else step


def _penalized(
    scores: tf.Tensor, tokens: tf.Tensor, padding_mask: tf.Tensor, penalty: float
) -> tf.Tensor:
    # Padding would count as an occurrence of its id; the last token is never padding.
    tokens = tf.where(padding_mask > 0, tokens, tokens[:, -1, tf.newaxis])
    token_scores = tf.gather(scores, tokens, batch_dims=1)
    token_scores = tf.where(token_scores < 0, token_scores * penalty, token_scores / penalty)
    return tf.tensor_scatter_nd_update(scores, _indices(tokens), token_scores)


def _excluded(
    scores: tf.Tensor, tokens: tf.Tensor, padding_mask: tf.Tensor, size: int
) -> tf.Tensor:
    """Sets the score of tokens that would complete an n-gram of the text again to -inf."""
    first = tf.shape(tokens)[1] - size + 1  # the position of the last n - 1 tokens
    count = tf.maximum(first, 0)
    # Padding is on the left, so that an n-gram is free of it if its first token is.
    repeated = padding_mask[:, :count] > 0  # (batch, n-grams)
    for i in range(size - 1):
        own = tf.gather(tokens, [tf.maximum(first + i, 0)], axis=1)
        repeated &= tokens[:, i : i + count] == own
    ends = tokens[:, size - 1 :]
    end_scores = tf.where(repeated, -float("inf"), tf.gather(scores, ends, batch_dims=1))
    # The minimum, because another n-gram that is not repeated may end with the same token.
    return tf.tensor_scatter_nd_min(scores, _indices(ends), end_scores)


def _indices(tokens: tf.Tensor) -> tf.Tensor:
    """Returns the indices of tokens (batch, length) in scores, int32 (batch, length, 2)."""
    rows = tf.zeros_like(tokens) + tf.range(tf.shape(tokens)[0])[:, tf.newaxis]
    return tf.stack([rows, tokens], axis=-1)
