"""How one token is chosen from logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.generation.options import Options


def filtered(logits: tf.Tensor, options: Options) -> tf.Tensor:
    """Logits of the distribution that is sampled: temperature, then top-k, then top-p.

    Tokens as likely as the last that is kept are kept too.

    Args:
        logits: float (rows, vocabulary).
        options: what is asked.

    Returns:
        The same shape, -inf at tokens that are left out.
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
    """The next token of each row, int32 (rows,).

    Args:
        logits: float (rows, vocabulary).
        options: what is asked.
        seed: int32 (2,); read where tokens are drawn.
        index: how many tokens were drawn before, so that each has a seed of its own.
    """
    if not options.samples:
        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    seed = tf.stack([seed[0], seed[1] + index])
    drawn = tf.random.stateless_categorical(filtered(logits, options), 1, seed, tf.int32)
    return drawn[:, 0]
