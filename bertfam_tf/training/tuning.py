"""Parameter-efficient tuning: frozen blocks, learning rates by layer, LoRA."""

from __future__ import annotations

import re

import keras

from bertfam_tf.models import Backbone
from bertfam_tf.models.base import dense_layers, disable_dropout
from bertfam_tf.validation import in_range

# The dense layers that LoRA adapts by default: queries and values (arXiv 2106.09685, section 7.1).
_LORA = ("query", "value", "query_key_value")


def freeze(backbone: Backbone, blocks: int | None = None) -> None:
    """Freezes layers, and disables their dropout.

    Frozen layers then compute the same features of a text in every epoch, as in feature-based
    transfer (Peters, Ruder and Smith 2019, arXiv 1903.05987). Call it before ``compile``. It cannot
    be undone; for layers that are trained later, set ``backbone.trainable``, which keeps dropout.

    Args:
        backbone: a task's ``backbone``.
        blocks: the number of blocks to freeze, from the first one, and the embeddings; None freezes
            the whole backbone.

    Raises:
        ValueError: if ``blocks`` is negative or above the backbone's number of blocks.
    """
    depths = _depths(backbone)
    count = len(blocks_of(backbone))
    if blocks is not None and not 0 <= blocks <= count:
        raise ValueError(f"{blocks} blocks cannot be frozen; the backbone has {count}.")
    for layer, depth in depths.items():
        if blocks is None or depth <= blocks:
            layer.trainable = False
            disable_dropout(layer)


def layer_factors(backbone: Backbone, decay: float) -> dict[str, float]:
    """Returns learning rate factors by variable path, for ``optimizers.adamw`` (layer-wise decay).

    The factor is ``decay`` for the last block, ``decay`` squared for the previous one, and so on
    down to the embeddings; heads and layers after the last block are omitted. (ELECTRA's code has
    one more factor between heads and the last block.) Weights that several blocks share have the
    factor of the last of these blocks.
    """
    top = len(blocks_of(backbone)) + 1
    return {
        variable.path: decay ** (top - depth)
        for layer, depth in _depths(backbone).items()
        for variable in layer.weights
        if depth < top
    }


def add_lora(
    backbone: Backbone, rank: int, alpha: float | None = None, names: tuple[str, ...] = _LORA
) -> None:
    """Freezes all weights, and adds trainable low-rank updates (LoRA, arXiv 2106.09685).

    Call it before ``compile``. A task is saved and exported with the updates merged into its
    weights, as a model without LoRA.

    Args:
        backbone: a task's ``backbone``.
        rank: the rank of the updates.
        alpha: the updates are scaled by ``alpha / rank``; None for a scale of 1.
        names: the dense layers to adapt.

    Raises:
        ValueError: if ``rank`` is below 1, or the backbone has no such layers.
    """
    in_range("rank", rank, at_least=1)
    adapted = [layer for layer in dense_layers(backbone) if layer.name in names]
    if not adapted:
        raise ValueError(f"This {backbone.family} backbone has no dense layers {', '.join(names)}.")
    # Freezing a layer instead of its variables would also freeze its update.
    for variable in backbone.trainable_variables:
        variable.trainable = False
    for layer in adapted:
        layer.enable_lora(rank, alpha)


def _depths(backbone: Backbone) -> dict[keras.layers.Layer, int]:
    """Returns the depth of layers: 0 for embeddings, 1, 2, … for blocks, then one more."""
    layers, blocks = backbone.layers, blocks_of(backbone)
    last = layers.index(blocks[-1])
    depths = {block: number for number, block in enumerate(blocks, 1)}
    return {
        layer: depths.get(layer, 0 if index < last else len(blocks) + 1)
        for index, layer in enumerate(layers)
    }


def blocks_of(backbone: Backbone) -> list[keras.layers.Layer]:
    """Returns the blocks, from first to last; a layer may consist of several."""
    return [layer for layer in backbone.layers if re.fullmatch(r"layer_[\d_]+", layer.name)]
