"""Keras' layers, written so that TensorFlow fuses their operations on CPUs.

TensorFlow's graph optimizer looks for ``MatMul`` + ``BiasAdd`` + activation on matrices, and
computes them as one operation. Keras' layers add the bias by a broadcast sum, which it does not
recognise, and compute norms in more passes over memory than needed. Weights, names and results are
the same as for Keras' layers, which do the computation on other backends and for tensors that are
not matrices.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops


def _fuses(x: Any) -> bool:
    return keras.backend.backend() == "tensorflow" and len(x.shape) == 2


def quantization_error(what: str) -> ValueError:
    """Returns the error for Keras' ``quantize``, of a layer or model."""
    return ValueError(
        f"{what} of bertfam_tf cannot be quantized in place: a task's export(directory, "
        "dtype='int8' or 'int8-weights') and export_tflite(file, quantize='int8') write quantized "
        "models, and leave this one as it is."
    )


def _is_one_position(x: Any) -> bool:
    """Returns whether ``x`` is (batch, 1, width), as in a step of a decoder."""
    return keras.backend.backend() == "tensorflow" and len(x.shape) == 3 and x.shape[1] == 1


def take(x: Any, indices: Any) -> Any:
    """Computes ``ops.take`` along the first axis, for indices that are known to be non-negative.

    On TensorFlow, Keras adds four operations that shift negative indices by the axis' length.
    """
    if keras.backend.backend() != "tensorflow" or keras.utils.is_keras_tensor(x):
        return ops.take(x, indices, axis=0)
    import tensorflow as tf

    return tf.gather(x, indices)


def write(buffer: Any, values: Any, start: Any, axis: int) -> Any:
    """Returns ``buffer`` with ``values`` from position ``start`` of an axis on.

    TensorFlow writes into the memory of ``buffer`` if nothing else reads it any more, as in a loop.

    Args:
        buffer: (…, length, …).
        values: the shape of ``buffer``, with at most ``length`` positions along the axis.
        start: int32 scalar.
        axis: the axis.
    """
    rank = len(buffer.shape)
    begin: list[Any] = [0] * rank
    begin[axis] = start
    if keras.backend.backend() != "tensorflow":
        return ops.slice_update(buffer, tuple(begin), values)
    import tensorflow as tf

    end = [*begin[:axis], start + tf.shape(values)[axis], *begin[axis + 1 :]]
    others = sum(1 << i for i in range(rank) if i != axis)
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=buffer,
        begin=tf.stack(begin),
        end=tf.stack(end),
        strides=[1] * rank,
        value=values,
        begin_mask=others,
        end_mask=others,
    )


def split_rows(x: Any, sizes: Any) -> list:
    """Splits ``x`` along the first axis into chunks of the int32 sizes (chunks,)."""
    if keras.backend.backend() != "tensorflow":
        return ops.split(x, ops.cumsum(sizes)[:-1], axis=0)
    import tensorflow as tf

    return tf.split(x, sizes)


def with_gradient(function: Any, gradient: Any) -> Any:
    """Returns ``function`` with ``gradient`` instead of TensorFlow's slow scatter-add."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.custom_gradient(lambda *inputs: (function(*inputs), gradient))


def scan(step: Any, state: tuple, inputs: tuple) -> tuple[Any, tuple]:
    """Loops over the first axis like ``ops.scan``, and records one state tensor of each step.

    On TensorFlow, ``ops.scan`` would record all tensors of the state, and pass the state through
    arrays too.

    Args:
        step: ``step(state, slices of inputs) -> state``, two tuples of the same shapes.
        state: tensors before the first step.
        inputs: tensors (steps, …).

    Returns:
        ``(states, state)``: the first tensor of the state after each step, (steps, …); and the
        state after the last one.
    """
    if keras.backend.backend() != "tensorflow":
        state, states = ops.scan(lambda *args: (step(*args),) * 2, state, inputs)
        return states[0], state
    import tensorflow as tf

    steps = tf.shape(inputs[0])[0]

    def array(x: Any) -> tf.TensorArray:
        return tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:]).unstack(x)

    read = [array(x) for x in inputs]
    # The array starts as zeros: TFLite has no kernel for an uninitialised array of unknown shape.
    written = array(tf.zeros(tf.concat([[steps], tf.shape(state[0])], 0), state[0].dtype))

    def body(i: Any, written: Any, *state: Any) -> tuple:
        state = step(state, [x.read(i) for x in read])
        return i + 1, written.write(i, state[0]), *state

    result = tf.while_loop(lambda i, *_: i < steps, body, (0, written, *state))
    return result[1].stack(), result[2:]


class Product(NamedTuple):
    """A matrix product whose weights are tensors.

    Fields:
        kernel: (width, units).
        bias: (units,), or None.

    Call:
        x: (…, width).

    Returns:
        (…, units).
    """

    kernel: Any
    bias: Any = None

    def __call__(self, x: Any) -> Any:
        if self.bias is None:
            return ops.matmul(x, self.kernel)
        if not _fuses(x):
            return ops.matmul(x, self.kernel) + self.bias
        import tensorflow as tf

        return tf.nn.bias_add(ops.matmul(x, self.kernel), self.bias)


# The weights of a layer with LoRA; ``kernel`` is their sum.
_OF_LORA = ("_kernel", "lora_kernel_a", "lora_kernel_b")


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Dense(keras.layers.Dense):
    """``keras.layers.Dense``; arguments and call are the same."""

    def call(self, x, training=None):
        if self.quantization_mode is None and _is_one_position(x):
            # With constant shapes, no operation computes one while a decoder's loop runs.
            y = ops.matmul(ops.reshape(x, (-1, x.shape[-1])), self.kernel)
            y = ops.reshape(y, (-1, 1, y.shape[-1]))
            y = y if self.bias is None else ops.add(y, self.bias)
            return y if self.activation is None else self.activation(y)
        if self.bias is None or self.quantization_mode is not None or not _fuses(x):
            return super().call(x, training=training)
        x = Product(self.kernel, ops.convert_to_tensor(self.bias))(x)
        return x if self.activation is None else self.activation(x)

    def save_own_variables(self, store):
        # Keras saves the kernel with LoRA's update alone, with which training cannot go on.
        super().save_own_variables(store)
        if self.built and self.lora_enabled:
            for name in _OF_LORA:
                store[name] = getattr(self, name)

    def load_own_variables(self, store):
        super().load_own_variables({key: store[key] for key in {*store.keys()} - {*_OF_LORA}})
        if not self.built or not self.lora_enabled:
            return
        if {*_OF_LORA} <= {*store.keys()}:
            for name in _OF_LORA:
                getattr(self, name).assign(store[name])
        else:
            # Keras sets both factors to 0, where their gradients are 0 too.
            start = keras.initializers.HeUniform()
            self.lora_kernel_a.assign(start(self.lora_kernel_a.shape))

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras only warns about layers that are not implemented, and leaves them as they are.
        raise quantization_error(f"The layer {self.path!r}")


class Dropout(keras.layers.Dropout):
    """``keras.layers.Dropout``; arguments and call are the same.

    TensorFlow draws 16 random bits for each value instead of 32, which is most of dropout's time on
    CPUs, so the rate is rounded to a multiple of 1 / 65536.
    """

    def call(self, inputs, training=False):
        plain = self.noise_shape is None and 0 < self.rate < 1
        if not (training and plain and keras.backend.backend() == "tensorflow"):
            return super().call(inputs, training=training)
        import tensorflow as tf

        dropped = min(max(round(self.rate * 2**16), 1), 2**16 - 1)
        shape = tf.shape(inputs)
        size = tf.size(inputs)
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        words = tf.random.stateless_uniform(
            [(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32
        )
        bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
        kept = tf.cast(tf.reshape(bits, shape) >= dropped, inputs.dtype)
        kept.set_shape(inputs.shape)
        # A product, as TensorFlow's selection is slow in bfloat16.
        return inputs * (kept * (1 / (1 - dropped / 2**16)))


def gelu(x: Any) -> Any:
    """Computes the exact GELU, with a gradient of few operations, for training.

    In half precision it computes in float32: TensorFlow's error function is slow in bfloat16 on
    CPUs.

    Args:
        x: a floating-point tensor.

    Returns:
        x · Φ(x), the same shape and dtype.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.gelu(x, approximate=False)
    import tensorflow as tf

    dtype = tf.float32 if x.dtype.size == 2 else x.dtype

    @tf.custom_gradient
    def compute(x: Any) -> Any:
        full = tf.cast(x, dtype)
        scaled = full * -math.sqrt(0.5)
        cdf = 0.5 * tf.math.erfc(scaled)

        def gradient(upstream: Any) -> Any:
            # TensorFlow computes the three functions in one pass.
            density = tf.exp(-tf.square(scaled))
            slope = cdf + scaled * density * (-1 / math.sqrt(math.pi))
            return tf.cast(tf.cast(upstream, dtype) * slope, x.dtype)

        return tf.cast(full * cdf, x.dtype), gradient

    return compute(x)


class LayerNormalization(keras.layers.LayerNormalization):
    """``keras.layers.LayerNormalization`` over the last axis; arguments and call are the same."""

    def call(self, x):
        half = keras.backend.standardize_dtype(x.dtype) not in ("float32", "float64")
        plain = self.gamma is not None and self.beta is not None and not self.rms_scaling
        if half or not plain or not (_fuses(x) or _is_one_position(x)):
            return super().call(x)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        return centred * ops.rsqrt(variance + self.epsilon) * self.gamma + self.beta
