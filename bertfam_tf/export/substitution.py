"""Layers that compute something else while a graph is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf


@contextlib.contextmanager
def substituted_calls(calls: Mapping[keras.layers.Layer, Callable[..., Any]]) -> Iterator[None]:
    """Returns a context in which layers compute ``calls[layer](layer, x, …)`` as their ``call``.

    Arguments other than ``training`` are passed on. Inside, ``type(layer).call(layer, x)`` is the
    layer's own computation.
    """
    for layer, call in calls.items():
        layer.call = partial(_without_training, call, layer)
    try:
        yield
    finally:
        for layer in calls:
            layer.__dict__.pop("call", None)


def _without_training(
    call: Callable, layer: Any, inputs: Any, training: Any = None, **options: Any
) -> Any:
    return call(layer, inputs, **options)


def with_rows_of(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Reshapes (tokens, units) to the leading dimensions of a layer's input (…, width)."""
    if x.shape.rank == 2:
        return y
    if x.shape[1:-1].is_fully_defined():  # of one position, in a step of a decoder
        return tf.reshape(y, [-1, *x.shape[1:-1], y.shape[-1]])
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], y.shape[-1:]], axis=0))
