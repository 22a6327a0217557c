"""Which of a backbone's weights learn, and how fast."""

from __future__ import annotations

import keras

from bertfam_tf.layers import TransformerBlock
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import dense_layers

# Where LoRA goes unless told otherwise: queries and values (arXiv 2106.09685, section 7.1), by
# the names of their dense layers.
_LORA = ("query", "value", "query_key_value")


def freeze(backbone: Backbone, blocks: int | None = None) -> None:
    """Keeps weights as they are, and turns off the dropout among them.

    What is frozen gives the same features for the same text each time, as feature-based use of a
    model does (Peters, Ruder and Smith 2019, arXiv 1903.05987). To be called before ``compile``.

    Args:
        backbone: a task's ``backbone``.
        blocks: freezes the embeddings and so many blocks, from the first; None everything.

    Raises:
        ValueError: for more blocks than there are.
    """
    depths = _depths(backbone)
    count = len(_blocks(backbone))
    if blocks is not None and not 0 <= blocks <= count:
        raise ValueError(f"{blocks} blocks cannot be frozen; the backbone has {count} of its own.")
    for layer, depth in depths.items():
        if blocks is None or depth <= blocks:
            layer.trainable = False
            for part in layer._flatten_layers():
                if isinstance(part, keras.layers.Dropout):
                    part.rate = 0.0


def layer_factors(backbone: Backbone, decay: float) -> dict[str, float]:
    """What rates are multiplied with, by the path of a variable, for ``optimizers.adamw``.

    1 for a head and what stands behind the last block, ``decay`` for the last block, and so on
    down to the embeddings. Weights that several blocks share count as the last one's.
    """
    top = len(_blocks(backbone)) + 1
    return {
        variable.path: decay ** (top - depth)
        for layer, depth in _depths(backbone).items()
        for variable in layer.weights
        if depth < top
    }


def add_lora(
    backbone: Backbone, rank: int, alpha: float | None = None, names: tuple[str, ...] = _LORA
) -> None:
    """Freezes all weights, and adds products of two narrow matrices that learn (LoRA).

    arXiv 2106.09685. To be called before ``compile``; what a task saves or exports afterwards has
    the products added to its weights, and is a plain model.

    Args:
        backbone: a task's ``backbone``.
        rank: width of the matrices.
        alpha: the products are multiplied by ``alpha / rank``; None for 1.
        names: dense layers that get one.

    Raises:
        ValueError: for a rank below 1, or a backbone without such layers.
    """
    if rank < 1:
        raise ValueError(f"The rank of LoRA is 1 or more, not {rank}.")
    found = [layer for layer in dense_layers(backbone) if layer.name in names]
    if not found:
        raise ValueError(f"This {backbone.family} backbone has no dense layers {', '.join(names)}.")
    # Of the weights, and not of the layers: a layer that is frozen hides what is new inside.
    for variable in backbone.trainable_variables:
        variable.trainable = False
    for layer in found:
        layer.enable_lora(rank, alpha)


def _depths(backbone: Backbone) -> dict[keras.layers.Layer, int]:
    """0 for embeddings, then 1, 2, … for the blocks, one more for what stands behind them."""
    layers, blocks = backbone.layers, _blocks(backbone)
    last = layers.index(blocks[-1])
    depths = {block: number for number, block in enumerate(blocks, 1)}
    return {
        layer: depths.get(layer, 0 if place < last else len(blocks) + 1)
        for place, layer in enumerate(layers)
    }


def _blocks(backbone: Backbone) -> list[TransformerBlock]:
    return [layer for layer in backbone.layers if isinstance(layer, TransformerBlock)]
