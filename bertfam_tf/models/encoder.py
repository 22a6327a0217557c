"""The wiring that encoders share: functions of a config that has BERT's fields.

A card puts them together, and puts its own parts between or in their place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers

# Of inputs, where that is not (length,).
_SHAPES = {"perm_mask": (None, None), "target_mapping": (None, None)}


def inputs(config: Any, *more: str) -> dict:
    """``token_ids``, ``padding_mask``, ``segment_ids`` where there are segments to choose from.

    Args:
        config: the card's config.
        *more: names of further inputs.
    """
    names = ["token_ids", "padding_mask", *more]
    if getattr(config, "num_segments", 0) > 1:
        names.append("segment_ids")
    return {
        name: keras.Input(_SHAPES.get(name, (None,)), dtype="int32", name=name) for name in names
    }


def table(config: Any, rows: int, width: int, name: str) -> keras.layers.Embedding:
    """A look-up table with the config's initial weights."""
    initializer = layers.normal(config.initializer_range)
    return keras.layers.Embedding(rows, width, embeddings_initializer=initializer, name=name)


def norm(config: Any, name: str) -> keras.layers.Layer:
    """A layer norm with the config's epsilon."""
    return keras.layers.LayerNormalization(epsilon=config.norm_epsilon, name=name)


def embed(
    config: Any,
    given: dict,
    *,
    width: int | None = None,
    positions: Callable[..., keras.layers.Layer] = layers.PositionEmbedding,
    position_ids: Any = None,
    offset: int = 0,
    more: Sequence[Any] = (),
) -> Any:
    """Token + segment + position embeddings, norm, dropout.

    Args:
        config: the card's config.
        given: from ``inputs``.
        width: of the embeddings; None for that of the blocks.
        positions: class of the table of positions; ``position_ids`` and ``offset`` as it takes
            them.
        more: further embeddings (batch, length, width) to add.

    Returns:
        (batch, length, width).
    """
    tokens, width = given["token_ids"], width or config.hidden_size
    x = table(config, config.vocab_size, width, "token_embedding")(tokens)
    if config.num_segments:
        segments = given.get("segment_ids", ops.zeros_like(tokens))
        x = x + table(config, config.num_segments, width, "segment_embedding")(segments)
    rows = positions(
        config.max_positions, config.initializer_range, offset, name="position_embedding"
    )
    x = x + rows(x, position_ids)
    for embedding in more:
        x = x + embedding
    x = norm(config, "embedding_norm")(x)
    return keras.layers.Dropout(config.dropout, name="embedding_dropout")(x)


def project(config: Any, x: Any) -> Any:
    """Embeddings to the width of the blocks (ALBERT, arXiv 1909.11942, section 3.1)."""
    initializer = layers.normal(config.initializer_range)
    return keras.layers.Dense(
        config.hidden_size, kernel_initializer=initializer, name="embedding_projection"
    )(x)


def attention(config: Any, name: str = "attention") -> keras.layers.Layer:
    """One layer's attention."""
    return layers.SelfAttention(
        config.hidden_size,
        config.num_heads,
        config.attention_dropout,
        config.initializer_range,
        name=name,
    )


def feed_forward(
    config: Any, name: str = "feed_forward", dropout: float = 0.0
) -> keras.layers.Layer:
    """One layer's feed-forward part, with ``dropout`` in the middle."""
    activation = layers.activation(config.activation)
    return layers.FeedForward(
        config.intermediate_size, activation, config.initializer_range, dropout, name=name
    )


def block(config: Any, name: str, **parts: keras.layers.Layer) -> layers.TransformerBlock:
    """One layer: attention and feed-forward of its own, or those in ``parts``."""
    parts = {"attention": attention(config), "feed_forward": feed_forward(config)} | parts
    return layers.TransformerBlock(
        **parts, epsilon=config.norm_epsilon, dropout=config.dropout, name=name
    )


def encode(
    config: Any,
    x: Any,
    padding_mask: Any,
    *,
    blocks: Sequence[layers.TransformerBlock] | None = None,
    after: Callable[[Any], Any] = lambda x: x,
) -> dict:
    """A stack of blocks, and the pooler where the config has one.

    Args:
        config: the card's config.
        x: (batch, length, hidden).
        padding_mask: (batch, length).
        blocks: the blocks; None for ``num_layers`` with parts of their own.
        after: applied to each block's output.

    Returns:
        The dict that ``Backbone`` returns; hidden states and scores have an entry for each block.
    """
    if blocks is None:
        blocks = [block(config, f"layer_{i}") for i in range(config.num_layers)]
    attention_mask = layers.keys_from_padding(padding_mask)
    hidden_states, attention_scores = [x], []
    for each in blocks:
        x, scores = each(x, attention_mask=attention_mask)
        x = after(x)
        hidden_states.append(x)
        attention_scores.append(scores)
    outputs = {
        "sequence_output": x,
        "hidden_states": hidden_states,
        "attention_scores": attention_scores,
    }
    if config.pooler:
        pooler = layers.FirstTokenPooler(config.initializer_range, name="pooler")
        outputs["pooled_output"] = pooler(x)
    return outputs
