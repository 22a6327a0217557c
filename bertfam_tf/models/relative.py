"""The wiring of families with relative positions and a memory of earlier segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from bertfam_tf import layers
from bertfam_tf.models import encoder
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts


@dataclass(frozen=True)
class RelativeConfig(Config):
    """Fields of families with relative attention and a memory.

    ``mem_len`` is the maximum length of each layer's memory, None for no maximum. Distances are
    clipped to ``clamp_len``; 0 or less for no limit. With ``same_length`` all queries attend to
    equally many keys. ``untie_r`` is false for layers that share their biases u and v.
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


# Other names of config keys in Hugging Face's format.
SYNONYMS = {
    "n_token": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}


def inputs(config: Any, parts: Parts, *more: str) -> dict:
    """Returns ``token_ids``, ``padding_mask``, ``memory``, and further inputs by name."""
    tensors = encoder.inputs(config, *more)
    shape, dtype = (None, config.hidden_size), parts.dtype_policy.compute_dtype
    tensors["memory"] = tuple(
        keras.Input(shape, dtype=dtype, name=f"memory_{i}") for i in range(config.num_layers)
    )
    return tensors


def blocks(
    config: Any, parts: Parts, head_size: int, segments: bool = False
) -> list[layers.TransformerBlock]:
    """Creates layers of relative attention and feed-forward.

    Args:
        config: the family's config.
        parts: the layers.
        head_size: the width of a head.
        segments: whether attention has scores by segment.
    """
    names = ["content_bias", "position_bias", *["segment_bias"] * segments]
    shared = None
    if not config.untie_r:
        shared = [parts(name, _bias, config, head_size) for name in names]
        for bias in shared:
            if not bias.built:
                bias.build()  # here, so that its path does not start with the first layer's name
    return [
        parts(f"layer_{i}", _block, config, head_size, names, shared)
        for i in range(config.num_layers)
    ]


def _bias(config: Any, head_size: int, *, name: str, dtype: Any) -> layers.QueryBias:
    return layers.QueryBias(
        config.num_heads, head_size, config.initializer_range, name=name, dtype=dtype
    )


def _block(
    config: Any,
    head_size: int,
    names: Sequence[str],
    shared: Sequence[layers.QueryBias] | None,
    *,
    name: str,
    dtype: Any,
) -> layers.TransformerBlock:
    stddev = config.initializer_range
    content, position, *rest = shared or [
        _bias(config, head_size, name=bias_name, dtype=dtype) for bias_name in names
    ]
    segments = None
    if rest:
        segments = layers.SegmentScores(rest[0], stddev, name="segments", dtype=dtype)
    attention = layers.RelativeAttention(
        config.hidden_size,
        config.num_heads,
        head_size,
        content,
        position,
        segments,
        dropout=config.attention_dropout,
        stddev=stddev,
        name="attention",
        dtype=dtype,
    )
    feed_forward = encoder.feed_forward(config, dropout=config.dropout, dtype=dtype)
    return encoder.block(
        config, attention=attention, feed_forward=feed_forward, name=name, dtype=dtype
    )


def dropout(config: Any, parts: Parts, x: Any, name: str) -> Any:
    """Returns a dropout layer called ``{name}_dropout``, at the config's rate."""
    return parts(f"{name}_dropout", layers.Dropout, config.dropout)(x)


def encode(
    config: Any,
    parts: Parts,
    x: Any,
    given: dict,
    stack: Sequence[layers.TransformerBlock],
    attention_mask: Any,
    *,
    reuse_len: int | None = None,
    **more: Any,
) -> tuple[dict, list]:
    """Computes blocks that attend to the memory and to this segment.

    Args:
        config: the family's config.
        parts: the layers.
        x: the embeddings (batch, length, hidden).
        given: the inputs, from ``inputs``.
        stack: the blocks, from ``blocks``.
        attention_mask, **more: arguments of ``RelativeAttention``.
        reuse_len: the same as for ``updated_memory``.

    Returns:
        The dict that ``Backbone`` returns, and the ``context`` of each block.
    """
    x = dropout(config, parts, x, "embedding")
    hidden_states, attention_scores, memory, contexts = [], [], [], []
    for block, old in zip(stack, given["memory"], strict=True):
        hidden_states.append(x)
        memory.append(layers.updated_memory(old, x, config.mem_len, reuse_len))
        contexts.append(layers.prepend_memory(old, x))
        x, scores = block(x, context=contexts[-1], attention_mask=attention_mask, **more)
        attention_scores.append(scores)
    x = dropout(config, parts, x, "output")
    pooling = parts("last_token", layers.LastTokenPooling)
    outputs = {
        "sequence_output": x,
        "hidden_states": [*hidden_states, x],
        "attention_scores": attention_scores,
        **encoder.probabilities(parts, attention_scores, [attention_mask] * len(stack)),
        "memory": tuple(memory),
        "last_token": pooling(x, given["padding_mask"]),
    }
    return outputs, contexts
