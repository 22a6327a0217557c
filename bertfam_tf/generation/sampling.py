"""Chooses a token from logits."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from bertfam_tf.generation.options import Options

# Sorting a vocabulary takes milliseconds, and these tokens have nearly all of the probability.
_LIKELY_TOKENS = 1024


def filter_logits(logits: tf.Tensor, options: Options) -> tf.Tensor:
    """Applies temperature, top-k, top-p and min-p, in order, to logits to sample from.

    Tokens with the same logit as the last one that is kept are also kept.

    Args:
        logits: float (batch, vocabulary).
        options: generation options.

    Returns:
        The same shape, -inf at excluded tokens.
    """
    if options.temperature is not None:
        logits = logits / options.temperature
    best = None
    if options.top_k is not None and options.top_k < logits.shape[-1]:
        best = tf.math.top_k(logits, options.top_k).values
        logits = tf.where(logits < best[:, -1:], -float("inf"), logits)
    if options.top_p is not None and options.top_p < 1:
        least = _least_of_nucleus(logits if best is None else best, options.top_p)
        logits = tf.where(logits < least, -float("inf"), logits)
    if options.min_p is not None:
        least = tf.reduce_max(logits, axis=-1, keepdims=True) + math.log(options.min_p)
        logits = tf.where(logits < least, -float("inf"), logits)
    return logits


def _least_of_nucleus(logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns the smallest logit of the most likely tokens that sum up to ``top_p``, (batch, 1)."""
    size = logits.shape[-1]
    total = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)

    def cumulated(best: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(tf.exp(best - total), axis=-1)

    def least(best: tf.Tensor) -> tf.Tensor:
        # The first token is always kept, and then all whose predecessors do not reach the sum.
        more = tf.cast(cumulated(best)[:, :-1] < top_p, tf.int32)
        return tf.gather(best, tf.reduce_sum(more, axis=-1, keepdims=True), batch_dims=1)

    def of_all() -> tf.Tensor:
        return least(tf.math.top_k(logits, size).values)

    if size <= _LIKELY_TOKENS:
        return of_all()
    likely = tf.math.top_k(logits, _LIKELY_TOKENS).values
    enough = tf.reduce_all(cumulated(likely)[:, -1] >= top_p)
    return tf.cond(enough, lambda: least(likely), of_all)


def sample(logits: tf.Tensor, options: Options, seed: Any, index: Any) -> tf.Tensor:
    """Returns the next token of each prompt, int32 (batch,).

    Args:
        logits: float (batch, vocabulary).
        options: generation options.
        seed: int32 (2,), for sampling; not used by greedy search.
        index: the number of tokens generated before, so that each token has a different seed.
    """
    if not options.samples:
        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    seed = tf.stack([seed[0], seed[1] + index])
    drawn = tf.random.stateless_categorical(filter_logits(logits, options), 1, seed, tf.int32)
    return drawn[:, 0]
