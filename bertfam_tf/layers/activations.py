"""Activation functions by the names that published configs use."""

from collections.abc import Callable

import keras
from keras import ops

from bertfam_tf.layers import fused
from bertfam_tf.names import unknown


@keras.saving.register_keras_serializable(package="bertfam_tf", name="gelu")
def _gelu_exact(x):
    return ops.gelu(x, approximate=False)


@keras.saving.register_keras_serializable(package="bertfam_tf", name="gelu_new")
def _gelu_tanh(x):
    return ops.gelu(x, approximate=True)


_ACTIVATIONS: dict[str, Callable] = {
    "gelu": _gelu_exact,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_python": _gelu_exact,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}


def for_training(function: Callable) -> Callable:
    """Returns the form of an activation function that trains fastest, with the same values."""
    return fused.gelu if function is _gelu_exact else function


def activation(name: str) -> Callable:
    """Returns the activation function that published configs call ``name``.

    ``gelu`` is the exact x·Φ(x) (arXiv 1606.08415), ``gelu_new`` its tanh approximation.

    Raises:
        ValueError: if ``name`` is unknown.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(unknown("activation", name, _ACTIVATIONS))
    return _ACTIVATIONS[name]
