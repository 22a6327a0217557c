"""How an export stores weights: whole, in half the bytes, or in a quarter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf.tasks import Task

Precision = Literal["float32", "bfloat16", "int8"]
# An axis that is shorter would have nearly as many scales as weights.
_SHORTEST = 16


class Weights:
    """A task's weights as an export stores them; the task keeps its own.

    ``"bfloat16"`` rounds matrices to 8 bits of precision. ``"int8"`` rounds them to 255 steps
    between plus and minus the largest weight of each output channel of a kernel (its last axis)
    and of each row of an embedding, whose float32 scales are stored too: dynamic quantization, as
    weights alone are rounded (arXiv 1806.08342, section 3.1). Vectors, such as biases, stay as they
    are. Both are turned into float32 where they are used, of embeddings the rows that are read,
    and everything is computed as before: an export is smaller on disk and in memory, and a call
    takes longer by one pass over the matrices, which counts where it has few rows.

    Args:
        task: what is exported.
        precision: what matrices are stored as.

    Raises:
        ValueError: for another precision.
    """

    def __init__(self, task: Task, precision: Precision = "float32"):
        if precision not in get_args(Precision):
            raise ValueError(
                f"dtype {precision!r}, expected one of {', '.join(get_args(Precision))}."
            )
        self._task = task
        self._stored: dict[int, _Stored] = {}
        if precision == "float32":
            return
        store = {"bfloat16": _halved, "int8": _quartered}[precision]
        for variable in task.weights:
            if len(variable.shape) > 1 and variable.dtype == "float32":
                stored = store(variable)
                if stored is not None:
                    self._stored[id(variable)] = stored

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within it, what reads the task's weights in a graph reads the stored ones."""
        if not self._stored:
            yield
            return
        tables = [
            layer
            for layer in self._task._flatten_layers()
            if isinstance(layer, keras.layers.Embedding) and id(layer._embeddings) in self._stored
        ]
        with _Reading(self._stored):
            for layer in tables:
                if not getattr(layer, "lora_enabled", False):
                    layer.call = partial(_look_up, layer, self._stored[id(layer._embeddings)])
            try:
                yield
            finally:
                for layer in tables:
                    layer.__dict__.pop("call", None)


class _Stored(NamedTuple):
    """One weight. Fields: what is stored, what it is multiplied with (…, 1 where that is one)."""

    values: tf.Variable
    scales: tf.Variable | None

    def read(self, of: Callable[[Any], Any] = tf.convert_to_tensor) -> tf.Tensor:
        values = tf.cast(of(self.values), tf.float32)
        return values if self.scales is None else values * of(self.scales)


def _halved(variable: Any) -> _Stored:
    return _Stored(tf.Variable(tf.cast(variable.value, tf.bfloat16), trainable=False), None)


def _quartered(variable: Any) -> _Stored | None:
    given = variable.numpy()
    table = variable.name.startswith("embedding")
    axis = given.ndim - 1 if table else 0
    if given.shape[axis] < _SHORTEST:
        return None
    scales = np.max(np.abs(given), axis=axis, keepdims=True) / 127
    steps = np.rint(given / np.where(scales > 0, scales, 1)).astype(np.int8)
    return _Stored(tf.Variable(steps, trainable=False), tf.Variable(scales, trainable=False))


class _Reading(keras.StatelessScope):
    """Gives Keras' variables other values, which are computed once in each graph."""

    def __init__(self, stored: dict[int, _Stored]):
        super().__init__()
        self._stored = stored
        self._graph = tf.compat.v1.get_default_graph()
        self._read: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: Any) -> Any:
        key = id(variable)
        if key not in self._stored:
            return super().get_current_value(variable)
        if key not in self._read:
            # Not in the loop's body that happens to read it first, which would do so each time.
            with self._graph.as_default():
                self._read[key] = self._stored[key].read()
        return self._read[key]


def _look_up(layer: keras.layers.Embedding, stored: _Stored, inputs: Any) -> Any:
    rows = stored.read(lambda table: tf.gather(table, ops.cast(inputs, "int32")))
    return ops.cast(rows, dtype=layer.compute_dtype)
