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


def scan(step: Any, state: tuple, given: tuple) -> tuple[Any, tuple]:
    """A loop over the first axis, as ``ops.scan``, that keeps one part of the state of each step.

    Keras on TensorFlow would keep all parts, and move the state through arrays as well.

    Args:
        step: ``step(state, slices of given) -> state``, two tuples of the same shapes.
        state: tensors before the first step.
        given: tensors (steps, …).

    Returns:
        ``(states, state)``: the first tensor of the state after each step, (steps, …); and the
        state after the last one.
    """
    if keras.backend.backend() != "tensorflow":
        state, states = ops.scan(lambda *args: (step(*args),) * 2, state, given)
        return states[0], state
    import tensorflow as tf

    steps = tf.shape(given[0])[0]

    def array(x: Any) -> tf.TensorArray:
        return tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:]).unstack(x)

    read = [array(x) for x in given]
    # Zeros that are overwritten: TFLite has no kernel for an array without values of unknown shape.
    written = array(tf.zeros(tf.concat([[steps], tf.shape(state[0])], 0), state[0].dtype))

    def body(i: Any, written: Any, *state: Any) -> tuple:
        state = step(state, [x.read(i) for x in read])
        return i + 1, written.write(i, state[0]), *state

    found = tf.while_loop(lambda i, *_: i < steps, body, (0, written, *state))
    return found[1].stack(), found[2:]


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
