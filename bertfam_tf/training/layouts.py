"""Tensor parallelism as in Megatron-LM, for ``keras.distribution``.

Shoeybi et al. 2019, arXiv 1909.08053, section 3: attention is split by heads and feed-forward by
hidden units, so a block needs two all-reduces, of the products with both output kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from bertfam_tf import layers
from bertfam_tf.layers.attention import Attention
from bertfam_tf.names import unknown

# A weight, its axis that is split, and the number of heads or units along it.
Split = tuple[keras.Variable, int, int]


def layout_map(
    model: keras.layers.Layer, device_mesh: Any, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Returns the layout of a model's weights, for ``keras.distribution.ModelParallel``.

    Queries, keys, values and other weights of a head are split by heads, the first layer of
    feed-forward by hidden units, the output kernels of both by their inputs, and token embeddings
    by tokens, if their number is divisible. All other weights are replicated: norms, output biases,
    positions, heads of the model, recurrent layers.

    A fused kernel of queries, keys and values (GPT's) is split by columns, which do not correspond
    to heads: results are the same, with more communication.

    Args:
        model: a backbone, a ``Learner``, or another model with such layers, built outside of the
            distribution. The layout is by path, so it fits every model with the same config.
        device_mesh: a ``keras.distribution.DeviceMesh``.
        axis: the name of the mesh's axis over which weights are split.

    Raises:
        ValueError: if the mesh has no such axis, or its devices do not divide the heads or hidden
            units of a weight.
    """
    if axis not in device_mesh.axis_names:
        raise ValueError(unknown("axis of the mesh", axis, device_mesh.axis_names))
    devices = device_mesh.shape[list(device_mesh.axis_names).index(axis)]
    layouts: dict[str, tuple[str | None, ...]] = {}
    for layer in model._flatten_layers():
        for weight, dimension, parts in splits(layer):
            if parts % devices:
                if layer.name == _TOKENS:
                    continue
                raise ValueError(
                    f"{weight.path} must be split into {devices} equal parts (mesh axis {axis!r}), "
                    f"got {parts} {'heads' if isinstance(layer, Attention) else 'hidden units'}."
                )
            layout = (axis if i == dimension else None for i in range(len(weight.shape)))
            layouts[weight.path] = tuple(layout)
    result = keras.distribution.LayoutMap(device_mesh)
    for path, axes in layouts.items():
        result[path] = axes
    return result


# The name of the token embedding in every family with a vocabulary.
_TOKENS = "token_embedding"


def splits(layer: keras.layers.Layer) -> Iterator[Split]:
    """Yields the weights of a layer that can be split by heads, hidden units or tokens.

    They include weights of its inner layers that this layer splits.
    """
    if isinstance(layer, layers.FeedForward):
        units = layer.intermediate_size
        yield from _columns(layer.intermediate, units)
        if isinstance(layer, layers.GatedFeedForward):
            yield from _columns(layer.gate, units)
        yield layer.output_dense._kernel, 0, units
    elif isinstance(layer, Attention):
        heads = layer.num_heads
        if isinstance(layer, layers.RelativeAttention):
            for part in (layer.query, layer.key, layer.value, layer.position, layer.output_dense):
                yield part.kernel, 1, heads  # (width, heads, head size)
            for bias in (layer.content_bias, layer.position_bias):
                yield bias.bias, 0, heads
            if layer.segments is not None:
                yield layer.segments.embeddings, 1, heads
                yield layer.segments.bias.bias, 0, heads
        else:
            fused = isinstance(layer, layers.CachedSelfAttention)
            names = ("query_key_value",) if fused else ("query", "key", "value")
            for name in names:
                yield from _columns(getattr(layer, name), heads)
            yield layer.output_dense._kernel, 0, heads
        if isinstance(layer.gate, layers.HeadGate):
            yield layer.gate.gate, 0, heads
    elif layer.name == _TOKENS:
        tables = getattr(layer, "tables", None) or [layer._embeddings]
        yield from ((table, 0, table.shape[0]) for table in tables)


def _columns(dense: keras.layers.Dense, parts: int) -> Iterator[Split]:
    yield dense._kernel, 1, parts
    if dense.bias is not None:
        yield dense.bias, 0, parts
