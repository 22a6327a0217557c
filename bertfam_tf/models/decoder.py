"""The wiring that decoders share: functions of a config that has GPT's fields."""

from typing import Any, Literal

import keras

from bertfam_tf import layers
from bertfam_tf.models import encoder
from bertfam_tf.models.parts import Parts


def inputs(config: Any, parts: Parts) -> dict:
    """Returns the inputs ``token_ids``, ``padding_mask`` and the ``cache`` of earlier tokens.

    If the cache is written in place, ``cache_length`` is one too.
    """
    tensors = encoder.inputs(config)
    shape = (config.num_heads, None, encoder.head_size(config))
    dtype = parts.dtype_policy.compute_dtype
    tensors["cache"] = tuple(
        tuple(keras.Input(shape, dtype=dtype, name=f"cached_{x}_{i}") for x in ("keys", "values"))
        for i in range(config.num_layers)
    )
    if parts.cache_in_place:
        tensors["cache_length"] = keras.Input(batch_shape=(), dtype="int32", name="cache_length")
    return tensors


def embed(config: Any, parts: Parts, tokens: Any, position_ids: Any) -> Any:
    """Computes token + position embeddings and dropout; (batch, length, hidden)."""
    x = parts("token_embedding", encoder.table, config, config.vocab_size)(tokens)
    embedding = parts(
        "position_embedding",
        layers.PositionEmbedding,
        config.max_positions,
        config.initializer_range,
    )
    x = x + embedding(x, position_ids)  # (batch, length, hidden)
    return parts("embedding_dropout", layers.Dropout, config.embedding_dropout)(x)


def block(
    config: Any,
    norm: Literal["post", "pre"],
    scale: float | None = None,
    output_stddev: float | None = None,
    *,
    name: str,
    dtype: Any = None,
) -> layers.TransformerBlock:
    """Creates one block; for ``scale`` and ``output_stddev`` see ``CachedSelfAttention``."""
    attention = layers.CachedSelfAttention(
        config.num_heads,
        encoder.head_size(config),
        config.attention_dropout,
        config.initializer_range,
        scale=scale,
        output_stddev=output_stddev,
        name="attention",
        dtype=dtype,
    )
    return layers.TransformerBlock(
        attention,
        encoder.feed_forward(config, output_stddev=output_stddev, dtype=dtype),
        norm,
        epsilon=config.norm_epsilon,
        dropout=config.dropout,
        name=name,
        dtype=dtype,
    )


def decode(
    config: Any,
    parts: Parts,
    given: dict,
    blocks: list[layers.TransformerBlock],
    final_norm: keras.layers.Layer | None = None,
) -> dict:
    """Embeddings, blocks, and optionally a final norm.

    Returns:
        The dict that ``Backbone`` returns; the last of the hidden states is the sequence output.
    """
    written = {"cache_length": given["cache_length"]} if parts.cache_in_place else {}
    positions, mask, token_mask = parts("mask", layers.DecoderMask)(
        given["token_ids"], given["padding_mask"], **written
    )
    x = embed(config, parts, given["token_ids"], positions)
    hidden_states, attention_scores, cache = [x], [], []
    for block, before in zip(blocks, given["cache"], strict=True):
        x, scores, now = block(x, attention_mask=mask, cache=before, **written)
        hidden_states.append(x)
        attention_scores.append(scores)
        cache.append(now)
    if final_norm is not None:
        x = hidden_states[-1] = final_norm(x)
    return {
        "sequence_output": x,
        "last_token": parts("last_token", layers.LastTokenPooling)(x, token_mask),
        "hidden_states": hidden_states,
        "attention_scores": attention_scores,
        **encoder.probabilities(parts, attention_scores, [mask] * len(blocks)),
        "cache": tuple(cache),
    }
