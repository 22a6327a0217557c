"""Weights of an export in few variables, because each one takes several operations to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Bytes, of tensors in TensorFlow.
_ALIGNMENT = 64


class GraphCache:
    """Tensors that are computed once for each graph."""

    def __init__(self) -> None:
        self._values: dict[tuple, tuple[Any, Any]] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns ``make()`` of the first call with ``key`` in the current graph."""
        graph = tf.compat.v1.get_default_graph()
        if (id(graph), key) not in self._values:
            # With the graph, so that its identity stays unique.
            self._values[id(graph), key] = (graph, make())
        return self._values[id(graph), key][1]


class StackedWeights:
    """Weights by key, in one variable for all vectors of a dtype, and one for all matrices of a
    width and dtype.

    Args:
        weights: arrays by key.
    """

    def __init__(self, weights: Mapping[Hashable, np.ndarray]):
        groups: dict[tuple, dict[Hashable, np.ndarray]] = defaultdict(dict)
        for key, weight in weights.items():
            # A part that is aligned is not copied when it is read.
            if weight.shape[-1] * weight.itemsize % _ALIGNMENT == 0:
                width = None if weight.ndim == 1 else weight.shape[-1]
                groups[weight.ndim, width, weight.dtype.name][key] = weight
        self._places: dict[Hashable, tuple[tuple, int]] = {}
        self._variables: dict[tuple, tf.Variable] = {}
        self._lengths: dict[tuple, list[int]] = {}
        self._cache = GraphCache()
        for group, members in groups.items():
            if len(members) > 1:
                self._places |= {key: (group, index) for index, key in enumerate(members)}
                stacked = np.concatenate(list(members.values()))
                name = "vectors" if group[0] == 1 else f"matrices_{group[1]}"
                self._variables[group] = tf.Variable(stacked, trainable=False, name=name)
                self._lengths[group] = [len(weight) for weight in members.values()]

    def __contains__(self, key: Hashable) -> bool:
        """Returns whether a weight is here; one that is alone of its kind is not."""
        return key in self._places

    def read(self, key: Hashable) -> tf.Tensor:
        """Returns a weight in the current graph."""
        group, index = self._places[key]

        def members() -> list[tf.Tensor]:
            return tf.split(tf.convert_to_tensor(self._variables[group]), self._lengths[group])

        return self._cache.get(group, members)[index]
