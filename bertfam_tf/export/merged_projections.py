"""Products of an attention's queries, keys and values as one, with weights side by side."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf.layers import Embedding, PositionEmbedding, SelfAttention, TransformerBlock
from bertfam_tf.layers.fused import Product
from bertfam_tf.models import Backbone

# Rows; larger tables are read by heads, too.
SMALL_TABLE = 1024


def mergeable_projections(found: list[Any]) -> dict[int, MergedProjections]:
    """Returns the projections of attention layers among ``found``, by the layer's identity."""
    return {
        id(attention): MergedProjections(attention)
        for attention in found
        if isinstance(attention, SelfAttention) and _can_merge(attention)
    }


def small_tables(found: list[Any]) -> dict[Hashable, np.ndarray]:
    """Returns tables of positions, segments, …, which no head reads, by the variable's identity."""
    tables: dict[Hashable, np.ndarray] = {}
    for layer in found:
        if isinstance(layer, Embedding | PositionEmbedding):
            table = getattr(layer, "_embeddings", None)
            table = layer.embeddings if table is None else table
            if table.shape[0] <= SMALL_TABLE and table.dtype == "float32":
                tables[id(table)] = table.numpy()
    return tables


def kernels_in_blocks(
    found: list[Any], merged: dict[int, MergedProjections]
) -> dict[Hashable, np.ndarray]:
    """Returns kernels and biases that blocks read, as a task of a backbone reads all blocks."""
    weights: dict[Hashable, np.ndarray] = {}
    replaced = {key for each in merged.values() for key in each.replaced}
    for layer in found:
        if not isinstance(layer, TransformerBlock):
            continue
        for dense in layer._flatten_layers():
            if (
                isinstance(dense, keras.layers.Dense)
                and _is_plain(dense)
                and id(dense._kernel) not in replaced
            ):
                weights[id(dense._kernel)] = dense.kernel.numpy()
    for backbone in found:
        if not isinstance(backbone, Backbone):
            continue
        blocks = [x for x in backbone.parts.values() if isinstance(x, TransformerBlock)]
        attentions = [merged[id(x.attention)] for x in blocks if id(x.attention) in merged]
        # Which form the last one has depends on the outputs that are read.
        weights |= {each.key: each.kernel(False) for each in attentions[:-1]}
        weights |= {each.bias_key: each.bias() for each in attentions if each.has_bias}
    return weights


def _is_plain(layer: keras.layers.Dense) -> bool:
    return (
        layer.built
        and layer.quantization_mode is None
        and not getattr(layer, "lora_enabled", False)
        and layer.compute_dtype == layer.variable_dtype == "float32"
    )


def _can_merge(attention: SelfAttention) -> bool:
    dense = (attention.query, attention.key, attention.value)
    return all(map(_is_plain, dense)) and all(
        layer.kernel.shape == attention.query.kernel.shape for layer in dense
    )


class MergedProjections:
    """The kernels of an attention's queries, keys and values as one matrix.

    Blocks of which only the first token is read compute a query for each example, but keys and
    values of all tokens, so their query has a matrix of its own.

    Args:
        attention: the attention.

    Attributes:
        key, bias_key: the keys of the matrix and of its bias in ``StackedWeights``.
        stored: ``key`` if the matrix is there, or its variable; None as long as there is none.
        has_query: whether the matrix is without queries.
    """

    def __init__(self, attention: SelfAttention):
        self._dense = (attention.query, attention.key, attention.value)
        scale = attention.scale if attention.positions is None else 1.0
        self._scales = np.array([scale, 1.0, 1.0], "float32")
        self._width = attention.query.units
        self.key, self.bias_key = ("kernel", id(attention)), ("bias", id(attention))
        self.stored: tuple | tf.Variable | None = None
        self.has_query = False
        self.has_bias = attention.use_bias

    def kernel(self, has_query: bool) -> np.ndarray:
        """Returns the matrix of keys and values, and of queries unless ``has_query``."""
        pairs = zip(self._dense, self._scales, strict=True)
        kernels = [layer.kernel.numpy() * scale for layer, scale in pairs]
        return np.concatenate(kernels[has_query:], axis=1)

    def bias(self) -> np.ndarray:
        """Returns the biases side by side."""
        pairs = zip(self._dense, self._scales, strict=True)
        return np.concatenate([layer.bias.numpy() * scale for layer, scale in pairs])

    def bias_of_parts(self) -> tf.Tensor:
        """Returns the biases side by side, in the current graph."""
        pairs = zip(self._dense, self._scales, strict=True)
        return tf.concat([ops.convert_to_tensor(x.bias) * scale for x, scale in pairs], axis=0)

    def product(self, kernel: tf.Tensor, bias: tf.Tensor | None, has_query: bool) -> Product:
        """Returns the product of keys and values, and of queries unless ``has_query``.

        Args:
            kernel: the stored matrix.
            bias: the vector of ``bias``, if any.
            has_query: whether the block gets a query for each example.
        """
        if has_query and not self.has_query:
            kernel = kernel[:, self._width :]
        elif self.has_query and not has_query:
            query = ops.convert_to_tensor(self._dense[0].kernel) * self._scales[0]
            kernel = tf.concat([query, kernel], axis=1)
        if bias is not None and has_query:
            bias = bias[self._width :]
        return Product(kernel, bias)

    def separate(self, kernel: tf.Tensor) -> dict[int, tf.Tensor]:
        """Returns the kernels that the stored matrix replaces, by their variables' identities."""
        first = int(self.has_query)
        count = len(self._dense) - first
        parts = tf.split(kernel, count, axis=1)
        pairs = zip(parts, self._scales[first:], strict=True)
        values = [part if scale == 1 else part / scale for part, scale in pairs]
        kernels = [id(layer._kernel) for layer in self._dense[first:]]
        return dict(zip(kernels, values, strict=True))

    @property
    def replaced(self) -> list[int]:
        """The identities of the variables in ``separate``."""
        return [id(layer._kernel) for layer in self._dense[int(self.has_query) :]]
