"""Weights as an export stores them, and dense layers as it computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf.export.bfloat16 import Bfloat16Layers
from bertfam_tf.export.int8 import Int8Layers
from bertfam_tf.export.merged_projections import (
    SMALL_TABLE,
    MergedProjections,
    dense_in_blocks,
    mergeable_projections,
    merged_weights,
    small_tables,
)
from bertfam_tf.export.stacked_weights import GraphCache, StackedWeights
from bertfam_tf.export.stored_tables import StoredWeight
from bertfam_tf.export.substitution import substituted_calls
from bertfam_tf.export.text_model import TextModel
from bertfam_tf.heads.head import TiedOutput
from bertfam_tf.layers.attention import merged_projections
from bertfam_tf.models import single_example_branch
from bertfam_tf.tasks import MultiTask, Task
from bertfam_tf.validation import one_of

Precision = Literal["float32", "bfloat16", "bfloat16-weights", "int8-weights", "int8"]
# Scales for a shorter axis would take nearly as much space as its weights.
_SHORTEST = 16


class StoredWeights:
    """Copies of a task's weights in the precision in which an export stores them.

    ``"bfloat16-weights"`` rounds matrices to 8 significant bits. ``"int8-weights"`` is weight-only
    symmetric quantization (arXiv 1806.08342, section 3.1) with one float32 scale for each output
    channel of a kernel (its last axis) and for each row of an embedding table. Vectors, such as
    biases, stay in float32, and the task's own weights do not change.

    The graph converts matrices to float32 where it uses them, and only the looked-up rows of
    embedding tables; all computation is in float32. The export is smaller on disk and in memory.
    Each call takes one additional pass over the matrices, which is noticeable for small batches.

    ``"bfloat16"`` computes dense layers in bfloat16 (see ``bfloat16.Bfloat16Layers``), and stores
    their weights and large embedding tables in it, also a table that is an output layer's too.
    Other matrices stay in float32.

    ``"int8"`` stores large embedding tables as ``"int8-weights"`` does. Dense layers, and output
    layers that are tied to such a table, compute in int8 if they keep their accuracy (see
    ``int8.Int8Layers``); other dense layers, and other matrices, stay in float32.

    For small batches, the time to start an operation counts. So weights of equal width are rows of
    one variable, and in ``"float32"`` and ``"int8"`` the kernels of an attention's queries, keys
    and values are one matrix, for one product.

    Args:
        task: the task to export, or several.
        precision: the dtype of stored matrices.
        layers: the dense layers that compute in int8, for ``"int8"``.

    Raises:
        ValueError: as ``check_precision``.
    """

    def __init__(
        self,
        task: Task | MultiTask | TextModel,
        precision: Precision = "float32",
        layers: Int8Layers | None = None,
    ):
        check_precision(task, precision)
        self._task = task
        task_layers = list({id(layer): layer for layer in task._flatten_layers()}.values())
        self._merged: dict[int, MergedProjections] = {}
        if precision in ("float32", "bfloat16"):
            self._merged = mergeable_projections(task_layers, precision)
        self._layers: Int8Layers | Bfloat16Layers | None = layers
        if precision == "bfloat16":
            self._layers = Bfloat16Layers(task_layers, self._merged)
        self._stacks = self._stacked(task_layers, precision)
        # Exported graphs drop no values.
        self._unread = {
            id(layer.seed_generator.state)
            for layer in task_layers
            if isinstance(layer, keras.layers.Dropout) and hasattr(layer, "seed_generator")
        }
        self._stored = {} if self._layers is None else dict(self._layers.tables())
        left_out = set(self._stored)
        if precision == "bfloat16":
            left_out |= {
                id(x.table()) for x in task_layers if isinstance(x, TiedOutput) and x.built
            }
        store = _to_int8 if precision.startswith("int8") else _to_bfloat16
        for variable in task.weights if precision != "float32" else ():
            is_matrix = len(variable.shape) > 1 and variable.dtype == "float32"
            # In the others, dense layers have weights of their own.
            is_large_table = _is_table(variable) and variable.shape[0] > SMALL_TABLE
            is_converted = precision.endswith("-weights") or is_large_table
            if is_matrix and is_converted and id(variable) not in left_out:
                stored = store(variable)
                if stored is not None:
                    self._stored[id(variable)] = stored

    def _stacked(self, task_layers: list[Any], precision: Precision) -> StackedWeights:
        """Returns the weights that share variables, for the task and for ``layers``."""
        weights: dict[Hashable, np.ndarray] = {
            id(variable): variable.numpy()
            for variable in self._task.weights
            if len(variable.shape) == 1 and variable.dtype == "float32"
        }
        if self._merged:
            weights |= merged_weights(task_layers, self._merged)
        if precision == "float32":
            dense = dense_in_blocks(task_layers, self._merged)
            weights |= {id(layer._kernel): layer.kernel.numpy() for layer in dense}
        if precision in ("float32", "bfloat16", "int8"):
            weights |= small_tables(task_layers)
        if self._layers is not None:
            weights |= self._layers.weights()
        stacks = StackedWeights(weights)
        if self._layers is not None:
            self._layers.stacks = stacks
        for merged in self._merged.values():
            if merged.key in stacks:
                merged.stored = merged.key
        return stacks

    @contextlib.contextmanager
    def substituted(self) -> Iterator[None]:
        """Returns a context in which graphs read the stored copies of the task's weights."""
        tables = {
            layer: self._look_up
            for layer in self._task._flatten_layers()
            if isinstance(layer, keras.layers.Embedding)
            and id(layer._embeddings) in self._stored
            and not getattr(layer, "lora_enabled", False)
        }
        scope = _SubstituteScope(self._stored, self._stacks, self._merged, self._unread)
        with contextlib.ExitStack() as stack:
            stack.enter_context(single_example_branch())
            stack.enter_context(scope)
            stack.enter_context(substituted_calls(tables))
            if self._merged:
                stack.enter_context(merged_projections(scope.merged))
            if self._layers is not None:
                stack.enter_context(self._layers.substituted())
            yield

    def describe_bfloat16(self) -> dict[str, Any] | None:
        """Describes the layers in bfloat16 for the model card; None if there are none."""
        return self._layers.describe() if isinstance(self._layers, Bfloat16Layers) else None

    def _look_up(self, layer: keras.layers.Embedding, inputs: Any) -> Any:
        stored = self._stored[id(layer._embeddings)]
        rows = stored.dequantize(lambda table: tf.gather(table, ops.cast(inputs, "int32")))
        return ops.cast(rows, dtype=layer.compute_dtype)


def check_precision(task: Task | MultiTask | TextModel, precision: str) -> None:
    """Raises ValueError unless it is a ``Precision`` in which the task's weights can be stored."""
    one_of("dtype", precision, get_args(Precision))
    # Layers in another precision, such as Keras' mixed_bfloat16, would stay as they are.
    for member in task.served_tasks().values() if precision != "float32" else ():
        backbone = getattr(member, "backbone", None)
        if backbone is None:  # a model of Keras
            continue
        own = backbone.variable_dtype if precision.endswith("-weights") else backbone.compute_dtype
        if own != "float32":
            raise ValueError(
                f"dtype={precision!r} is for tasks in float32, this one is in {own}: save it, and "
                "load it with Keras' dtype policy float32."
            )


def _to_bfloat16(variable: Any) -> StoredWeight:
    return StoredWeight(tf.Variable(tf.cast(variable.value, tf.bfloat16), trainable=False), None)


def _is_table(variable: Any) -> bool:
    return variable.name.startswith("embedding")


def _to_int8(variable: Any) -> StoredWeight | None:
    weights = variable.numpy()
    axis = weights.ndim - 1 if _is_table(variable) else 0
    if weights.shape[axis] < _SHORTEST:
        return None
    scales = np.max(np.abs(weights), axis=axis, keepdims=True) / 127
    values = np.rint(weights / np.where(scales > 0, scales, 1)).astype(np.int8)
    return StoredWeight(tf.Variable(values, trainable=False), tf.Variable(scales, trainable=False))


class _SubstituteScope(keras.StatelessScope):
    """A scope in which Keras variables have substituted values, computed once for each graph."""

    def __init__(
        self,
        stored: dict[int, StoredWeight],
        stacks: StackedWeights,
        merged: dict[int, MergedProjections],
        unread: set[int],
    ):
        super().__init__()
        self._stored = stored
        self._stacks = stacks
        self._merged = merged
        self._unread = unread
        self._graph = tf.compat.v1.get_default_graph()
        self._cache = GraphCache()
        self._replaced: dict[int, MergedProjections] = {}
        for projections in merged.values():
            if projections.dtype == np.float32 and projections.stored is not None:
                self._replaced |= dict.fromkeys(projections.replaced, projections)

    def get_current_value(self, variable: Any) -> Any:
        key = id(variable)
        if key in self._stored:
            # In the outer graph: the body of a loop would dequantize in every iteration.
            with self._graph.as_default():
                return self._cache.get((key,), self._stored[key].dequantize)
        if key in self._replaced:
            merged = self._replaced[key]
            kernel = self._kernel(merged)
            kernels = self._cache.get((id(merged),), lambda: merged.separate(kernel))
            return kernels[key]
        if key in self._stacks:
            return self._stacks.read(key)
        if key in self._unread:
            zeros = lambda: tf.zeros(variable.shape, variable.dtype)  # noqa: E731
            return self._cache.get((key,), zeros)
        return super().get_current_value(variable)

    def merged(self, attention: Any, has_query: bool) -> Callable | None:
        """Returns the argument ``merged`` of an attention; None for separate products."""
        merged = self._merged.get(id(attention))
        if merged is None:
            return None
        if merged.stored is None:
            with tf.init_scope():
                kernel = merged.kernel(has_query)
                merged.stored = tf.Variable(kernel, trainable=False, name="query_key_value")
            merged.has_query = has_query
            if merged.dtype == np.float32:
                self._replaced |= dict.fromkeys(merged.replaced, merged)

        def product() -> Callable:
            bias = None
            if merged.has_bias and merged.bias_key in self._stacks:
                bias = self._stacks.read(merged.bias_key)
            elif merged.has_bias:
                bias = merged.bias_of_parts()
            return merged.product(self._kernel(merged), bias, has_query)

        return self._cache.get((id(merged), has_query), product)

    def _kernel(self, merged: MergedProjections) -> tf.Tensor:
        if isinstance(merged.stored, tf.Variable):
            variable = merged.stored
            return self._cache.get((id(variable),), lambda: tf.convert_to_tensor(variable))
        return self._stacks.read(merged.stored)
