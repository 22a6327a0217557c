"""The wiring of families with relative positions and a memory of earlier segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from bertfam_tf import layers
from bertfam_tf.models import encoder
from bertfam_tf.models.base import Config


@dataclass(frozen=True)
class RelativeConfig(Config):
    """What such families have in common.

    ``mem_len`` is how many positions of each layer are remembered, None for all. ``clamp_len`` is
    the largest distance that is told from larger ones, 0 or less for no limit. With
    ``same_length`` each position sees as many earlier ones as any other. ``untie_r`` is whether
    each layer has biases of its own for the scores.
    """

    vocab_size: int = 32000
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    mem_len: int | None = None
    clamp_len: int = -1
    same_length: bool = False
    untie_r: bool = True


def inputs(config: Any, *more: str) -> dict:
    """``token_ids``, ``padding_mask``, what ``more`` names, and ``memory``."""
    given = encoder.inputs(config, *more)
    shape, dtype = (None, config.hidden_size), keras.config.dtype_policy().compute_dtype
    given["memory"] = tuple(
        keras.Input(shape, dtype=dtype, name=f"memory_{i}") for i in range(config.num_layers)
    )
    return given


def blocks(config: Any, head_size: int, segments: bool = False) -> list[layers.TransformerBlock]:
    """Layers of relative attention and feed-forward.

    Args:
        config: the card's config.
        head_size: width of a head.
        segments: whether there are scores by segment.
    """
    shape, stddev = (config.num_heads, head_size), config.initializer_range
    names = ["content_bias", "position_bias", *["segment_bias"] * segments]

    def biases():
        return [layers.QueryBias(*shape, stddev, name=name) for name in names]

    shared = None if config.untie_r else biases()
    for bias in shared or ():
        bias.build()  # named after itself, and not after the first layer that has it
    made = []
    for i in range(config.num_layers):
        content, position, *rest = shared or biases()
        attention = layers.RelativeAttention(
            config.hidden_size,
            *shape,
            content,
            position,
            layers.SegmentScores(rest[0], stddev, name="segments") if rest else None,
            dropout=config.attention_dropout,
            stddev=stddev,
            name="attention",
        )
        feed_forward = encoder.feed_forward(config, dropout=config.dropout)
        made.append(
            encoder.block(config, f"layer_{i}", attention=attention, feed_forward=feed_forward)
        )
    return made


def dropout(config: Any, x: Any, name: str) -> Any:
    """Dropout at the config's rate, on what ``name`` says."""
    return keras.layers.Dropout(config.dropout, name=f"{name}_dropout")(x)


def encode(
    config: Any,
    x: Any,
    given: dict,
    stack: Sequence[layers.TransformerBlock],
    attention_mask: Any,
    *,
    reuse_len: int | None = None,
    **more: Any,
) -> tuple[dict, list]:
    """Blocks whose keys are the memory and the positions of this segment.

    Args:
        config: the card's config.
        x: embeddings (batch, length, hidden).
        given: from ``inputs``.
        stack: from ``blocks``.
        attention_mask: as the attention takes it, and so ``more``.
        reuse_len: how many positions of a segment are remembered; None for all.

    Returns:
        The dict that ``Backbone`` returns, and what each block's keys came from.
    """
    x = dropout(config, x, "embedding")
    hidden_states, attention_scores, memory, contexts = [], [], [], []
    for block, old in zip(stack, given["memory"], strict=True):
        hidden_states.append(x)
        memory.append(layers.remembered(old, x, config.mem_len, reuse_len))
        contexts.append(layers.with_memory(old, x))
        x, scores = block(x, context=contexts[-1], attention_mask=attention_mask, **more)
        attention_scores.append(scores)
    x = dropout(config, x, "output")
    outputs = {
        "sequence_output": x,
        "hidden_states": [*hidden_states, x],
        "attention_scores": attention_scores,
        "memory": tuple(memory),
        "last_token": layers.LastTokenPooling(name="last_token")(x, given["padding_mask"]),
    }
    return outputs, contexts
