"""The wiring that encoders share, as functions of a config with BERT's fields.

A family calls them one after the other, with its own functions between them or instead. Functions
with ``name`` and ``dtype`` make a layer, and are arguments of ``parts``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers
from bertfam_tf.models.parts import Parts

_PROJECTED = ("queries", "keys", "values")
# Shapes of inputs other than (length,).
_SHAPES = {"perm_mask": (None, None), "target_mapping": (None, None)}


def inputs(config: Any, *more: str) -> dict:
    """Returns ``token_ids``, ``padding_mask``, and ``segment_ids`` if there are several segments.

    Args:
        config: the family's config.
        *more: the names of further inputs.
    """
    names = ["token_ids", "padding_mask", *more]
    if getattr(config, "num_segments", 0) > 1:
        names.append("segment_ids")
    return {
        name: keras.Input(_SHAPES.get(name, (None,)), dtype="int32", name=name) for name in names
    }


def table(
    config: Any, count: int, width: int | None = None, *, name: str, dtype: Any = None
) -> keras.layers.Embedding:
    """Creates an embedding of ``count`` ids; ``width`` None for the blocks' width."""
    return layers.Embedding(
        count,
        width or config.hidden_size,
        embeddings_initializer=layers.normal(config.initializer_range),
        name=name,
        dtype=dtype,
    )


def norm(config: Any, *, name: str, dtype: Any = None) -> keras.layers.Layer:
    """Creates a layer norm with the config's epsilon, without a bias if ``norm_bias`` is false."""
    center = getattr(config, "norm_bias", True)
    return layers.LayerNormalization(
        epsilon=config.norm_epsilon, center=center, name=name, dtype=dtype
    )


def embed(
    config: Any,
    parts: Parts,
    tensors: dict,
    *,
    width: int | None = None,
    positions: Callable[..., keras.layers.Layer] | None = layers.PositionEmbedding,
    position_ids: Any = None,
    offset: int = 0,
    tokens: Any = None,
    more: Sequence[Any] = (),
) -> Any:
    """Computes token + segment + position embeddings, norm, dropout.

    Args:
        config: the family's config.
        parts: the layers.
        tensors: the inputs, from ``inputs``.
        width: the width of the embeddings; None for the blocks' width.
        positions: the class of the position embedding; None for a model without.
        position_ids, offset: the same as for ``PositionEmbedding``.
        tokens: the embeddings of the tokens (batch, length, width); None for a table's.
        more: further embeddings (batch, length, width) to add.

    Returns:
        (batch, length, width), or (tokens, width) where the wiring is unpadded.
    """
    layout = parts.layout(tensors["padding_mask"])
    # Up to the norm, a single example is embedded as a batch without padding.
    single = layout if isinstance(layout, layers.SingleExample) else None
    layout = None if single is not None else layout
    if layout is not None and positions is not None and position_ids is None:
        position_ids = ops.cumsum(ops.ones_like(tensors["token_ids"]), axis=1) - 1
    if tokens is None:
        ids = layers.unpad(tensors["token_ids"], layout)
        x = parts("token_embedding", table, config, config.vocab_size, width)(ids)
    else:
        x = layers.unpad(tokens, layout)
    if getattr(config, "num_segments", 0):
        segments = tensors.get("segment_ids", ops.zeros_like(tensors["token_ids"]))
        segments = layers.unpad(segments, layout)
        x = x + parts("segment_embedding", table, config, config.num_segments, width)(segments)
    if positions is not None:
        embedding = parts(
            "position_embedding",
            positions,
            config.max_positions,
            config.initializer_range,
            offset,
        )
        x = x + embedding(x, None if position_ids is None else layers.unpad(position_ids, layout))
    for summand in more:
        x = x + layers.unpad(summand, layout)
    x = layers.unpad(x, single)
    x = parts("embedding_norm", norm, config)(x)
    return parts("embedding_dropout", layers.Dropout, config.dropout)(x)


def project(config: Any, parts: Parts, x: Any) -> Any:
    """Projects embeddings to the width of the blocks (ALBERT, arXiv 1909.11942, section 3.1)."""
    initializer = layers.normal(config.initializer_range)
    return parts(
        "embedding_projection",
        layers.Dense,
        config.hidden_size,
        kernel_initializer=initializer,
    )(x)


def head_size(config: Any) -> int:
    """Returns the width of an attention head: ``hidden_size`` divided by ``num_heads``.

    Raises:
        ValueError: where that is not an integer.
    """
    if config.hidden_size % config.num_heads:
        raise ValueError(
            f"hidden_size {config.hidden_size} is not a multiple of num_heads {config.num_heads}."
        )
    return config.hidden_size // config.num_heads


def attention(
    config: Any,
    num_heads: int | None = None,
    *,
    name: str = "attention",
    dtype: Any = None,
    **parts: Any,
) -> keras.layers.Layer:
    """Creates one layer's attention.

    Args:
        num_heads: the number of heads of a layer with pruned heads; None for the config's.
        **parts: the same as for ``SelfAttention``.
    """
    return layers.SelfAttention(
        num_heads or config.num_heads,
        head_size(config),
        config.attention_dropout,
        config.initializer_range,
        name=name,
        dtype=dtype,
        **parts,
    )


def feed_forward(
    config: Any, *, name: str = "feed_forward", dtype: Any = None, **options: Any
) -> keras.layers.Layer:
    """Creates one layer's feed-forward sublayer; ``options`` are arguments of ``FeedForward``."""
    return layers.FeedForward(
        config.intermediate_size,
        layers.activation(config.activation),
        config.initializer_range,
        name=name,
        dtype=dtype,
        **options,
    )


def block(
    config: Any,
    num_heads: int | None = None,
    *,
    name: str,
    dtype: Any = None,
    **parts: keras.layers.Layer,
) -> layers.TransformerBlock:
    """Creates one block, with new layers for those that are missing in ``parts``."""
    if "attention" not in parts:
        parts["attention"] = attention(config, num_heads, dtype=dtype)
    if "feed_forward" not in parts:
        parts["feed_forward"] = feed_forward(config, dtype=dtype)
    return layers.TransformerBlock(
        **parts,
        epsilon=config.norm_epsilon,
        dropout=config.dropout,
        name=name,
        dtype=dtype,
    )


def heads_per_layer(config: Any) -> tuple[int, ...]:
    """Returns the number of heads of each layer.

    Raises:
        ValueError: if the list's length is not the number of layers, or a number is not from 1 to
            ``num_heads``.
    """
    counts = getattr(config, "heads_per_layer", ()) or (config.num_heads,) * config.num_layers
    if len(counts) != config.num_layers or not all(1 <= n <= config.num_heads for n in counts):
        raise ValueError(
            f"heads_per_layer must be {config.num_layers} numbers from 1 to num_heads, "
            f"{config.num_heads}, got {list(counts)}."
        )
    return counts


def probabilities(parts: Parts, scores: Sequence[Any], masks: Sequence[Any]) -> dict[str, list]:
    """Returns the output ``attention_probabilities`` of models that name it.

    Args:
        parts: the layers.
        scores: each layer's scores (batch, heads, length, keys), before the mask.
        masks: each layer's mask, see ``layers.attention_probabilities``.
    """
    name = "attention_probabilities"
    if not parts.names(name):
        return {}
    pairs = zip(scores, masks, strict=True)
    return {name: [layers.attention_probabilities(x, mask) for x, mask in pairs]}


def encode(
    config: Any,
    parts: Parts,
    x: Any,
    padding_mask: Any,
    *,
    blocks: Sequence[layers.TransformerBlock] | None = None,
    make_block: Callable[..., layers.TransformerBlock] = block,
    call_with: Callable[[int], dict] | None = None,
    after: Callable[[Any, Any], Any] = lambda x, padding_mask: x,
    final_norm: keras.layers.Layer | None = None,
) -> dict:
    """Computes a stack of blocks, and the pooler where the config has one.

    Args:
        config: the family's config.
        parts: the layers.
        x: the result of ``embed``.
        padding_mask: (batch, length).
        blocks: the blocks; None for ``num_layers`` new ones.
        make_block: creates a new block, as ``block`` does.
        call_with: keyword arguments of a block, such as its mask, by its index; None for the
            attention mask from padding.
        after: a function of each block's output, as ``x`` is, and of the padding mask of its
            tokens.
        final_norm: the norm of the last block's output; None for none.

    Returns:
        The dict that ``Backbone`` returns; hidden states and scores have an entry for each block.
        ``first_token`` comes from a last block that computes nothing else, so that a graph in
        which only that output is read leaves the rest of the last block out; but not in models that
        name an output of the whole last block, such as for MLM and NSP together.
    """
    if blocks is None:
        counts = heads_per_layer(config)
        blocks = [parts(f"layer_{i}", make_block, config, n) for i, n in enumerate(counts)]
    elif getattr(config, "heads_per_layer", ()):
        raise ValueError("heads_per_layer must be empty: all layers have the same number of heads.")
    plain = call_with is None
    if call_with is None:
        everywhere = {"attention_mask": layers.attention_mask_from_padding(padding_mask)}
        call_with = lambda index: everywhere  # noqa: E731
    layout = parts.layout(padding_mask)
    single = isinstance(layout, layers.SingleExample)
    if plain and single:
        everywhere = {"attention_mask": None}
    mask = layers.unpad(padding_mask, layout)
    groups: dict[int, Any] = {}

    def arguments(index: int) -> dict:
        options = dict(call_with(index))
        if layout is not None:
            options["layout"] = layout
        if layout is not None and plain and not single:
            heads = blocks[index].attention.num_heads
            if heads not in groups:
                name = f"attention_groups_{heads}"
                groups[heads] = layers.AttentionGroups(heads, name=name)(layout)
            options["groups"] = groups[heads]
        if not (parts.has_output("attention_scores") or parts.names("attention_probabilities")):
            options["return_scores"] = False
        return options

    hidden_states, attention_scores, masks = [x], [], []
    for i, layer in enumerate(blocks):
        options = arguments(i)
        x, *scores = layer(x, **options)
        x = after(x, mask)
        hidden_states.append(x)
        attention_scores += scores
        masks += [options["attention_mask"]] if scores else []
    if plain and blocks and not parts.names("sequence_output", "hidden_states"):
        before = hidden_states[-2]
        first = layers.first_tokens(before, layout)  # (batch, hidden)
        first, *_ = blocks[-1](before, query=first, **arguments(len(blocks) - 1))
        first = after(first, padding_mask[:, 0])
    else:
        first = layers.first_tokens(x, layout)
    if final_norm is not None:
        hidden_states[-1], first = final_norm(x), final_norm(first)
    # Only in models that name them, because their products are computed once more.
    projected = {}
    if parts.names(*_PROJECTED):
        projections = [
            parts(f"{block.name}_projections", block.projections)(x, layout=layout)
            for block, x in zip(blocks, hidden_states, strict=False)
        ]
        projected = dict(zip(_PROJECTED, map(list, zip(*projections, strict=True)), strict=True))
    hidden_states = [layers.pad(state, layout) for state in hidden_states]
    outputs = {
        **projected,
        **probabilities(parts, attention_scores, masks),
        "sequence_output": hidden_states[-1],  # (batch, length, hidden)
        "first_token": first,
        "hidden_states": hidden_states,
        "attention_scores": attention_scores,
    }
    if getattr(config, "pooler", False):
        pooler = parts("pooler", layers.FirstTokenPooler, config.initializer_range)
        outputs["pooled_output"] = pooler(first)
    return outputs
