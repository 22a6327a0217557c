"""Dense layers that compute in bfloat16, for CPUs with instructions for its products.

Weights are stored in bfloat16 and never converted. Inputs of a layer are rounded to bfloat16,
products are summed in float32 and rounded again. An embedding that is an output layer's matrix too
is stored once, without the mean of its rows, so that the digits of logits are not spent on a number
that all tokens share. Between the two layers of a feed-forward, and in attention, activations stay
in bfloat16; residual sums, norms, softmax and answers are float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from bertfam_tf import layers
from bertfam_tf.export.merged_projections import (
    MergedProjections,
    dense_in_blocks,
    half_product,
    is_plain,
)
from bertfam_tf.export.stacked_weights import StackedWeights
from bertfam_tf.export.stored_tables import StoredWeight, is_plain_output, mean_row
from bertfam_tf.export.substitution import substituted_calls
from bertfam_tf.heads.head import TiedOutput

# Smaller layers take little time, and heads for few labels are among them.
_SMALLEST = 16
_CPUS = (
    "AVX512-BF16 (AMD Zen 4, Intel Cooper Lake and later) or AMX; on other CPUs, the answers are "
    "the same up to rounding, and take longer than in float32"
)


class Bfloat16Layers:
    """The dense layers of a task in bfloat16, except those with few units.

    Args:
        found: the layers of the task, each once.
        merged: projections that are stored and computed together, by the attention's identity.

    Attributes:
        stacks: where an export stores weights; it is set before ``substituted``.
    """

    def __init__(self, task_layers: list[Any], merged: dict[int, MergedProjections]):
        self.stacks: StackedWeights | None = None
        dense = [layer for layer in task_layers if isinstance(layer, keras.layers.Dense)]
        self._dense = [x for x in dense if is_plain(x) and min(x.kernel.shape) >= _SMALLEST]
        self._in_float = [x for x in dense if x not in self._dense]
        self._outputs = [layer for layer in task_layers if is_plain_output(layer)]
        # Several output layers may share one.
        tables = {id(layer.table()): layer.table() for layer in self._outputs}
        self._tables = {key: _stored_table(table) for key, table in tables.items()}
        # Their outputs are inputs of other layers in bfloat16.
        self._half = set()
        for layer in task_layers:
            if isinstance(layer, layers.FeedForward):
                self._half |= {id(layer.intermediate), id(getattr(layer, "gate", None))}
        self._arrays = {
            (id(layer), name): array
            for layer in self._dense
            for name, array in _arrays(layer).items()
        }
        self._in_blocks = {id(layer) for layer in dense_in_blocks(task_layers, merged)}
        self._variables: dict[tuple[int, str], tf.Variable] = {}

    def weights(self) -> dict[Hashable, np.ndarray]:
        """Returns the arrays of layers in blocks, by key in ``StackedWeights``."""
        return {key: array for key, array in self._arrays.items() if key[0] in self._in_blocks}

    @contextlib.contextmanager
    def substituted(self) -> Iterator[None]:
        """Returns a context in which the layers compute in bfloat16."""
        calls = dict.fromkeys(self._dense, partial(_compute, self))
        for layer in self._outputs:
            calls[layer] = partial(_logits, self._tables[id(layer.table())])
        with substituted_calls(calls):
            yield

    def tables(self) -> dict[int, StoredWeight]:
        """Returns the embeddings that output layers share, by the variable's identity."""
        return self._tables

    def describe(self) -> dict[str, Any]:
        """Describes the layers for the model card."""
        return {
            "bfloat16": sorted(layer.path for layer in (*self._dense, *self._outputs)),
            "float32": sorted(layer.path for layer in self._in_float),
            "faster_on": _CPUS,
        }

    def read(self, layer: keras.layers.Dense, name: str) -> tf.Tensor:
        """Returns the kernel or the bias of a layer in the current graph."""
        key = (id(layer), name)
        if self.stacks is not None and key in self.stacks:
            return self.stacks.read(key)
        if key not in self._variables:
            with tf.init_scope():
                self._variables[key] = tf.Variable(self._arrays[key], trainable=False, name=name)
        return tf.convert_to_tensor(self._variables[key])

    def returns_bfloat16(self, layer: keras.layers.Dense) -> bool:
        """Returns whether the output of a layer stays in bfloat16."""
        return id(layer) in self._half


def _arrays(layer: keras.layers.Dense) -> dict[str, np.ndarray]:
    weights = {"kernel": layer._kernel} | ({} if layer.bias is None else {"bias": layer.bias})
    return {name: x.numpy().astype(ml_dtypes.bfloat16) for name, x in weights.items()}


def _compute(layers_in_half: Bfloat16Layers, layer: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    bias = None if layer.bias is None else layers_in_half.read(layer, "bias")
    y = half_product(x, layers_in_half.read(layer, "kernel"), bias)
    y = y if layer.activation is None else layer.activation(y)
    return y if layers_in_half.returns_bfloat16(layer) else tf.cast(y, tf.float32)


def _stored_table(table: Any) -> StoredWeight:
    rows = table.numpy()
    mean = mean_row(rows)
    values = tf.Variable((rows - mean).astype(ml_dtypes.bfloat16), trainable=False)
    return StoredWeight(values, None, offset=mean)


def _logits(table: StoredWeight, layer: TiedOutput, x: tf.Tensor, **options: Any) -> tf.Tensor:
    if options.get("targets") is not None:
        return type(layer).call(layer, x, **options)
    logits = half_product(x, tf.convert_to_tensor(table.values), transposed=True)
    logits = tf.cast(logits, tf.float32) + tf.linalg.matvec(x, table.offset)[..., tf.newaxis]
    return logits + tf.convert_to_tensor(layer.bias) if layer.use_bias else logits
