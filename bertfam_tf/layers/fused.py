"""Keras' layers, spelled so that TensorFlow fuses their operations on CPUs.

TensorFlow's graph optimizer looks for ``MatMul`` + ``BiasAdd`` + activation on matrices, and
computes them as one operation. Keras' layers add the bias by a broadcast sum, which it does not
recognise, and compute norms in more passes over memory than needed. Weights, names and results are
those of Keras' layers; on other backends, and for tensors that are not matrices, they compute.
"""

from typing import Any

import keras
from keras import ops


def _fuses(x: Any) -> bool:
    return keras.backend.backend() == "tensorflow" and len(x.shape) == 2


def take(x: Any, indices: Any) -> Any:
    """``ops.take`` along the first axis, of indices that are known not to be negative.

    Keras on TensorFlow has four operations that add the axis' length to negative indices.
    """
    if keras.backend.backend() != "tensorflow" or keras.utils.is_keras_tensor(x):
        return ops.take(x, indices, axis=0)
    import tensorflow as tf

    return tf.gather(x, indices)


def split_rows(x: Any, sizes: Any) -> list:
    """``x`` in parts along the first axis, of int32 sizes (parts,) that add up to it."""
    if keras.backend.backend() != "tensorflow":
        return ops.split(x, ops.cumsum(sizes)[:-1], axis=0)
    import tensorflow as tf

    return tf.split(x, sizes)


def with_gradient(function: Any, gradient: Any) -> Any:
    """``function``, with the gradient that TensorFlow would compute by a slow sum by index."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.custom_gradient(lambda *inputs: (function(*inputs), gradient))


class Dense(keras.layers.Dense):
    """``keras.layers.Dense``; arguments and call are the same."""

    def call(self, x, training=None):
        if self.bias is None or self.quantization_mode is not None or not _fuses(x):
            return super().call(x, training=training)
        import tensorflow as tf

        x = tf.nn.bias_add(ops.matmul(x, self.kernel), ops.convert_to_tensor(self.bias))
        return x if self.activation is None else self.activation(x)


class LayerNormalization(keras.layers.LayerNormalization):
    """``keras.layers.LayerNormalization`` over the last axis; arguments and call are the same."""

    def call(self, x):
        half = keras.backend.standardize_dtype(x.dtype) not in ("float32", "float64")
        plain = self.gamma is not None and self.beta is not None and not self.rms_scaling
        if half or not plain or not _fuses(x):
            return super().call(x)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        return centred * ops.rsqrt(variance + self.epsilon) * self.gamma + self.beta
