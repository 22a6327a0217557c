"""Products of an attention's queries, keys and values as one, with weights side by side."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf.export.substitution import with_rows_of
from bertfam_tf.layers import Embedding, PositionEmbedding, SelfAttention, TransformerBlock
from bertfam_tf.layers.fused import Product
from bertfam_tf.models import Backbone

# Rows; larger tables are read by heads, too.
SMALL_TABLE = 1024


def half_product(x: Any, kernel: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Multiplies (…, width) in any dtype by a bfloat16 kernel, to bfloat16 (…, units).

    The kernel is (width, units), or (units, width) if ``transposed``.
    """
    half = tf.cast(x, tf.bfloat16)
    # TensorFlow fuses products of matrices with bias and activation.
    rows = half if x.shape.rank == 2 else tf.reshape(half, [-1, x.shape[-1]])
    y = tf.matmul(rows, kernel, transpose_b=transposed)
    return with_rows_of(x, y if bias is None else tf.nn.bias_add(y, bias))


def mergeable_projections(task_layers: list[Any], dtype: str) -> dict[int, MergedProjections]:
    """Returns the projections of attention layers among ``task_layers``, by the layer's identity.

    Args:
        task_layers: layers.
        dtype: the dtype in which the weights are stored, float32 or bfloat16.
    """
    return {
        id(attention): MergedProjections(attention, dtype)
        for attention in task_layers
        if isinstance(attention, SelfAttention) and _can_merge(attention)
    }


def small_tables(task_layers: list[Any]) -> dict[Hashable, np.ndarray]:
    """Returns tables of positions, segments, …, which no head reads, by the variable's identity."""
    tables: dict[Hashable, np.ndarray] = {}
    for layer in task_layers:
        if isinstance(layer, Embedding | PositionEmbedding):
            table = getattr(layer, "_embeddings", None)
            table = layer.embeddings if table is None else table
            if table.shape[0] <= SMALL_TABLE and table.dtype == "float32":
                tables[id(table)] = table.numpy()
    return tables


def dense_in_blocks(
    task_layers: list[Any], merged: dict[int, MergedProjections]
) -> list[keras.layers.Dense]:
    """Returns dense layers that blocks read, as a task of a backbone reads all of its blocks.

    Args:
        task_layers: the layers of a task.
        merged: projections whose layers are left out.
    """
    projections = {id(layer) for projection in merged.values() for layer in projection.dense}
    dense = [
        layer
        for block in task_layers
        if isinstance(block, TransformerBlock)
        for layer in block._flatten_layers()
        if isinstance(layer, keras.layers.Dense) and id(layer) not in projections
    ]
    return [layer for layer in {id(x): x for x in dense}.values() if is_plain(layer)]


def merged_weights(
    task_layers: list[Any], merged: dict[int, MergedProjections]
) -> dict[Hashable, np.ndarray]:
    """Returns kernels and biases side by side, by key in ``StackedWeights``."""
    weights: dict[Hashable, np.ndarray] = {}
    for backbone in task_layers:
        if not isinstance(backbone, Backbone):
            continue
        blocks = [x for x in backbone.parts.values() if isinstance(x, TransformerBlock)]
        attentions = [merged[id(x.attention)] for x in blocks if id(x.attention) in merged]
        # Which form the last one has depends on the outputs that are read.
        weights |= {attention.key: attention.kernel(False) for attention in attentions[:-1]}
        weights |= {
            attention.bias_key: attention.bias() for attention in attentions if attention.has_bias
        }
    return weights


def is_plain(layer: keras.layers.Dense) -> bool:
    """Returns whether a layer computes with its own weights, in float32."""
    return (
        layer.built
        and layer.quantization_mode is None
        and not getattr(layer, "lora_enabled", False)
        and layer.compute_dtype == layer.variable_dtype == "float32"
    )


def _can_merge(attention: SelfAttention) -> bool:
    dense = (attention.query, attention.key, attention.value)
    return all(map(is_plain, dense)) and all(
        layer.kernel.shape == attention.query.kernel.shape for layer in dense
    )


class MergedProjections:
    """The kernels of an attention's queries, keys and values as one matrix.

    Blocks of which only the first token is read compute a query for each example, but keys and
    values of all tokens, so their query has a matrix of its own.

    Args:
        attention: the attention.
        dtype: the dtype of the weights, float32 or bfloat16.

    Attributes:
        dense: the layers of queries, keys and values.
        key, bias_key: the keys of the matrix and of its bias in ``StackedWeights``.
        stored: ``key`` if the matrix is there, or its variable; None as long as there is none.
        has_query: whether the matrix is without queries.
    """

    def __init__(self, attention: SelfAttention, dtype: str = "float32"):
        self.dense = (attention.query, attention.key, attention.value)
        scale = attention.scale if attention.positions is None else 1.0
        self._scales = np.array([scale, 1.0, 1.0], "float32")
        self._width = attention.query.units
        self.dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
        self._stays_half = attention.positions is None and attention.gate is None
        self.key, self.bias_key = ("kernel", id(attention)), ("bias", id(attention))
        self.stored: tuple | tf.Variable | None = None
        self.has_query = False
        self.has_bias = attention.use_bias

    def kernel(self, has_query: bool) -> np.ndarray:
        """Returns the matrix of keys and values, and of queries unless ``has_query``."""
        pairs = zip(self.dense, self._scales, strict=True)
        kernels = [layer.kernel.numpy() * scale for layer, scale in pairs]
        return np.concatenate(kernels[has_query:], axis=1).astype(self.dtype)

    def bias(self) -> np.ndarray:
        """Returns the biases side by side."""
        pairs = zip(self.dense, self._scales, strict=True)
        biases = [layer.bias.numpy() * scale for layer, scale in pairs]
        return np.concatenate(biases).astype(self.dtype)

    def bias_of_parts(self) -> tf.Tensor:
        """Returns the biases side by side, in the current graph."""
        pairs = zip(self.dense, self._scales, strict=True)
        biases = [ops.convert_to_tensor(x.bias) * scale for x, scale in pairs]
        return tf.cast(tf.concat(biases, axis=0), self.dtype)

    def product(self, kernel: tf.Tensor, bias: tf.Tensor | None, has_query: bool) -> Any:
        """Returns the product of keys and values, and of queries unless ``has_query``.

        Args:
            kernel: the stored matrix.
            bias: the vector of ``bias``, if any.
            has_query: whether the block gets a query for each example.
        """
        if has_query and not self.has_query:
            kernel = kernel[:, self._width :]
        elif self.has_query and not has_query:
            query = ops.convert_to_tensor(self.dense[0].kernel) * self._scales[0]
            kernel = tf.concat([tf.cast(query, self.dtype), kernel], axis=1)
        if bias is not None and has_query:
            bias = bias[self._width :]
        if self.dtype == np.float32:
            return Product(kernel, bias)
        return lambda x: self._half_product(x, kernel, bias)

    def _half_product(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
        y = half_product(x, kernel, bias)
        return y if self._stays_half else tf.cast(y, tf.float32)

    def separate(self, kernel: tf.Tensor) -> dict[int, tf.Tensor]:
        """Returns the kernels that the stored matrix replaces, by their variables' identities."""
        first = int(self.has_query)
        count = len(self.dense) - first
        parts = tf.split(kernel, count, axis=1)
        pairs = zip(parts, self._scales[first:], strict=True)
        values = [part if scale == 1 else part / scale for part, scale in pairs]
        kernels = [id(layer._kernel) for layer in self.dense[first:]]
        return dict(zip(kernels, values, strict=True))

    @property
    def replaced(self) -> list[int]:
        """The identities of the variables in ``separate``."""
        return [id(layer._kernel) for layer in self.dense[int(self.has_query) :]]
