"""Chooses a token from logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.generation.options import Options


def filter_logits(logits: tf.Tensor, options: Options) -> tf.Tensor:
    """Applies temperature, then top-k, then top-p to the logits of a distribution to sample from.

    Tokens with the same logit as the last one that is kept are also kept.

    Args:
        logits: float (batch, vocabulary).
        options: generation options.

    Returns:
        The same shape, -inf at excluded tokens.
    """
    if options.temperature is not None:
        logits = logits / options.temperature
    size = logits.shape[-1]
    if options.top_k is not None and options.top_k < size:
        size = options.top_k
        least = tf.math.top_k(logits, size).values[:, -1:]
        logits = tf.where(logits < least, -float("inf"), logits)
    if options.top_p is not None and options.top_p < 1:
        best = tf.math.top_k(logits, size).values
        probabilities = tf.nn.softmax(best)
        before = tf.cumsum(probabilities, axis=-1, exclusive=True)
        count = tf.reduce_sum(tf.cast(before < options.top_p, tf.int32), -1, keepdims=True)
        least = tf.gather(best, tf.maximum(count, 1) - 1, batch_dims=1)
        logits = tf.where(logits < least, -float("inf"), logits)
    return logits


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
