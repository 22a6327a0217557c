"""A signature of an export that returns attention instead of answers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.tasks.components import Signature, Tensors
from bertfam_tf.validation import in_range


def attention_signature(task: Any, max_tokens: int) -> Signature:
    """The attention of a task's backbone on texts.

    It answers ``tokens``, string (batch, ``max_tokens``); ``count``, int32 (batch,), how many of
    them are used; and ``attention``, float32 (batch, layers, heads, ``max_tokens``,
    ``max_tokens``), the probabilities that each token (the fourth dimension) gives to each (the
    fifth), 0 beyond ``count`` and for heads that a layer does not have. Of longer examples these
    are the first tokens.

    Args:
        task: a task whose examples are one row of tokens.
        max_tokens: the number of tokens.

    Raises:
        ValueError: for a task whose examples are several rows, a backbone without attention, or a
            number below 1.
    """
    preprocessor, backbone = task.components.preprocessor, task.backbone
    if preprocessor.rows_per_example != 1:
        raise ValueError(f"Examples of {type(task).__name__} are several rows of tokens, not one.")
    if "attention_scores" not in backbone.output:
        raise ValueError(f"The {backbone.family} backbone has no attention.")
    in_range("attention", max_tokens, at_least=1, integer=True)
    tokenizer, output = task.tokenizer, "attention_probabilities"
    names = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]

    def answer(features: Tensors) -> Tensors:
        inputs = preprocessor.inputs(task.encode(features))
        model_inputs = {name: x for name, x in inputs.items() if name in backbone.token_inputs}
        layers = backbone(model_inputs, training=False, outputs=output)[output]
        heads = max(int(layer.shape[1]) for layer in layers)
        mask = inputs["padding_mask"]
        # Some families pad on the left: the first token is the first that is real.
        order = tf.argsort(1 - mask, axis=1, stable=True)[:, :max_tokens]
        missing = max_tokens - tf.shape(order)[1]
        real = tf.gather(mask, order, batch_dims=1) > 0
        pieces = tf.gather(tf.constant(names), tf.gather(inputs["token_ids"], order, batch_dims=1))
        pair = tf.cast(real[:, :, tf.newaxis] & real[:, tf.newaxis], tf.float32)
        maps = []
        for layer in layers:
            rows = tf.gather(tf.cast(layer, tf.float32), order, axis=2, batch_dims=1)
            chosen = tf.gather(rows, order, axis=3, batch_dims=1) * pair[:, tf.newaxis]
            more = [[0, 0], [0, heads - int(layer.shape[1])], [0, missing], [0, missing]]
            maps.append(tf.pad(chosen, more))
        tokens = tf.pad(tf.where(real, pieces, ""), [[0, 0], [0, missing]], constant_values="")
        square = [None, len(layers), heads, max_tokens, max_tokens]
        return {
            "tokens": tf.ensure_shape(tokens, [None, max_tokens]),
            "count": tf.reduce_sum(tf.cast(real, tf.int32), axis=1),
            "attention": tf.ensure_shape(tf.stack(maps, axis=1), square),
        }

    return Signature(answer)
