"""Dense layers, and output layers that are tied to an embedding, as products in int8."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.python.framework import op_def_library

from bertfam_tf import layers
from bertfam_tf.export.stacked_weights import StackedWeights
from bertfam_tf.export.stored_tables import StoredWeight, mean_row
from bertfam_tf.export.substitution import with_rows_of
from bertfam_tf.heads.head import TiedOutput

KERNEL = "_QuantizedMatMul"

# Exponents of the activations in SmoothQuant's factors (equation 4).
SMOOTHING = 0.7
# For an output layer whose rows are also looked up: the factors are in the errors of rows too.
OUTPUT_SMOOTHING = 0.4
_LARGEST_INPUT = 127
# CPUs without VNNI add two products in 16 bits: 2 · 255 · 64 fits, larger weights would saturate.
LARGEST_WEIGHT = 64
# The kernel's ranges are the values of this integer.
_RANGE = 127
# Activations that the kernel applies to its result.
_FUSED = {
    layers.activation("gelu"): "GeluExact",
    layers.activation("gelu_new"): "GeluApproximate",
    layers.activation("relu"): "Relu",
    layers.activation("tanh"): "Tanh",
    keras.activations.tanh: "Tanh",
}


def smoothing_factors(
    readers: Sequence[keras.layers.Layer], largest: np.ndarray, kernel: np.ndarray
) -> np.ndarray:
    """Returns the factors of input channels before they are rounded to int8, (width,).

    Args:
        readers: all layers that read the channels.
        largest: absolute values of the channels, (width,).
        kernel: the kernels of the layers side by side, (width, units).
    """
    tied = any(isinstance(layer, TiedOutput) for layer in readers)
    exponent = OUTPUT_SMOOTHING if tied else SMOOTHING
    largest = np.maximum(largest, 1e-5)
    weights = np.maximum(np.abs(kernel).max(axis=1), 1e-5)
    smoothing = largest**exponent / weights ** (1 - exponent)
    return (_LARGEST_INPUT / (largest / smoothing).max() / smoothing).astype("float32")


def float_kernel(layer: keras.layers.Layer) -> np.ndarray:
    """Returns the weights of a dense layer or a ``TiedOutput``, (width, units)."""
    if isinstance(layer, TiedOutput):
        table = ops.convert_to_numpy(layer.table())
        return (table - mean_row(table)).T
    return ops.convert_to_numpy(layer.kernel)


def int8_product(layer: keras.layers.Layer, kernel: np.ndarray, factors: np.ndarray) -> Int8Dense:
    """Returns a layer's weights for the kernel; arguments as for ``Int8Dense``."""
    kind = Int8Output if isinstance(layer, TiedOutput) else Int8Dense
    return kind(layer, kernel, factors)


def _input_range() -> tuple[tf.Tensor, tf.Tensor]:
    return tf.constant(-_LARGEST_INPUT, tf.float32), tf.constant(_LARGEST_INPUT, tf.float32)


class Int8Dense:
    """A dense layer's weights for the kernel.

    Args:
        layer: the layer.
        kernel: its weights, float32 (width, units).
        factors: the factors of its input channels, float32 (width,), the same array for layers that
            share their input.

    Attributes:
        kernel: the weights in int8, the longer side first.
        is_transposed: whether that is (units, width).
    """

    def __init__(self, layer: keras.layers.Layer, kernel: np.ndarray, factors: np.ndarray):
        self.layer = layer
        self.factors = factors
        kernel = kernel / factors[:, None]
        scales = np.abs(kernel).max(axis=0) / LARGEST_WEIGHT
        scales = np.where(scales > 0, scales, 1).astype("float32")
        self._store(np.rint(kernel / scales).astype(np.int8))
        self.ranges = scales * np.float32(_RANGE)
        bias = ops.convert_to_numpy(layer.bias) if layer.use_bias else np.zeros(len(scales))
        self.bias = bias.astype("float32")
        self.parts: list[Int8Dense] = []

    def _store(self, values: np.ndarray) -> None:
        # With its longer side first, kernels of all layers of a model have rows of one width, and
        # ``StackedWeights`` reads them as one.
        self.is_transposed = values.shape[1] > values.shape[0]
        # A variable, so that all signatures share it.
        self.kernel = tf.Variable(values.T if self.is_transposed else values, trainable=False)

    @classmethod
    def side_by_side(cls, parts: Sequence[tuple[Int8Dense, float | np.ndarray]]) -> Int8Dense:
        """Returns one product for layers that share their input, with outputs side by side.

        Args:
            parts: the layers, and the positive factors of their outputs, one for all units or
                (units,).
        """
        merged = cls.__new__(cls)
        merged.parts = [dense for dense, _ in parts]
        merged.layer = merged.parts[0].layer
        merged.factors = merged.parts[0].factors
        stored = [(dense.kernel.numpy(), dense.is_transposed) for dense in merged.parts]
        kernels = [values.T if is_transposed else values for values, is_transposed in stored]
        merged._store(np.concatenate(kernels, axis=1))
        scales = [np.asarray(scale, "float32") for _, scale in parts]
        pairs = list(zip(merged.parts, scales, strict=True))
        merged.ranges = np.concatenate([dense.ranges * scale for dense, scale in pairs])
        merged.bias = np.concatenate([dense.bias * scale for dense, scale in pairs])
        return merged

    def weights(self) -> dict[Hashable, np.ndarray]:
        """Returns the arrays that the product reads, by key."""
        return {
            (id(self), "kernel"): self.kernel.numpy(),
            (id(self), "bias"): self.bias,
            (id(self), "high"): self.ranges,
            (id(self), "low"): -self.ranges,
            id(self.factors): self.factors,
        }

    def _read(self, trace: Trace) -> list[tf.Tensor]:
        values = {"bias": self.bias, "low": -self.ranges, "high": self.ranges}
        return [trace.read((id(self), name), x) for name, x in values.items()]

    def quantize(self, trace: Trace, x: tf.Tensor, has_factors: bool = False) -> tf.Tensor:
        """Returns the input, float32 (tokens, width), as qint8.

        Args:
            trace: the graph's tensors.
            x: the input.
            has_factors: whether it is multiplied by the factors already.
        """
        low, high = _input_range()
        return tf.raw_ops.QuantizeV2(
            input=x if has_factors else x * trace.read(id(self.factors), self.factors),
            min_range=low,
            max_range=high,
            T=tf.qint8,
            mode="SCALED",
            round_mode="HALF_TO_EVEN",
            narrow_range=True,
        ).output

    def multiply(
        self, trace: Trace, x: tf.Tensor, *fused: str, addend: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the output for a quantized input, float32 (tokens, units).

        Args:
            trace: the graph's tensors.
            x: the quantized input.
            *fused: operations that the kernel applies to its result, ``"Add"`` with ``addend``.
            addend: a second term, float32 (tokens, units).
        """
        kernel = tf.bitcast(trace.read((id(self), "kernel"), self.kernel), tf.qint8)
        bias, low, high = self._read(trace)
        # There is no Python wrapper of this operation.
        (y,), _ = op_def_library.apply_op(
            KERNEL,
            name="int8_dense",
            device_inputs=[x, kernel, bias, *([] if addend is None else [addend])],
            host_inputs=[*_input_range(), low, high],
            Tdevice_outputs=[tf.float32],
            Thost_outputs=[],
            T1=tf.qint8,
            T2=tf.qint8,
            Tbias=tf.float32,
            U=tf.float32,
            Tout=tf.float32,
            transpose_a=False,
            transpose_b=self.is_transposed,
            is_weight_const=True,
            is_bias_const=True,
            fused_ops=["BiasAdd", *fused, "Dequantize"],
            input_quant_mode="SCALED",
            output_quant_mode="SCALED",
            leakyrelu_alpha=0.2,
        )
        y.set_shape([None, len(self.bias)])
        return y


class Int8Output(Int8Dense):
    """An output layer that is tied to the token embedding, whose rows are stored once for both.

    The rows' mean is kept in float32: what they have in common would take most of their range.

    Args:
        layer: the layer.
        kernel: its weights without the rows' mean, float32 (width, vocabulary).
        factors: the same as for ``Int8Dense``.
    """

    layer: TiedOutput

    def __init__(self, layer: TiedOutput, kernel: np.ndarray, factors: np.ndarray):
        super().__init__(layer, kernel, factors)
        scales = tf.Variable(self.ranges[:, None] / np.float32(_RANGE), trainable=False)
        mean = mean_row(ops.convert_to_numpy(layer.table()))
        self.table = StoredWeight(self.kernel, scales, factors, mean)
        stored = self.kernel.numpy() * scales.numpy() * factors
        rounded = stored - kernel.T
        # The error of rows that are looked up, relative to their root mean square.
        self.error_of_rows = float(np.sqrt(np.square(rounded).mean() / np.square(kernel).mean()))
        # As they are long, a copy out of a stack would take time at each token.
        self._bias, self._high, self._low = (
            tf.Variable(x, trainable=False) for x in (self.bias, self.ranges, -self.ranges)
        )

    def _store(self, values: np.ndarray) -> None:
        # Rows are looked up.
        self.is_transposed = True
        self.kernel = tf.Variable(values.T, trainable=False)

    def weights(self) -> dict[Hashable, np.ndarray]:
        return {id(self.factors): self.factors}

    def _read(self, trace: Trace) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(x) for x in (self._bias, self._low, self._high)]

    def logits(self, trace: Trace, x: tf.Tensor) -> tf.Tensor:
        """Returns the layer's output for its input, float32 (…, width)."""
        y = with_rows_of(x, self.multiply(trace, trace.quantize(self, x)))
        return y + tf.linalg.matvec(x, self.table.offset)[..., tf.newaxis]


class Trace:
    """Tensors of a graph that is traced: layers of one input share its quantized values."""

    def __init__(self, stacks: StackedWeights | None = None) -> None:
        self._stacks = stacks
        # Values include the objects whose identities are the keys, so that these stay unique.
        self._quantized: dict[tuple[int, int, int], tuple] = {}
        self._made: dict[int, tuple[tf.Tensor, Callable[..., tf.Tensor]]] = {}
        # Layers whose next input is already multiplied by its factors.
        self.has_factors: set[keras.layers.Layer] = set()

    def read(self, key: Hashable, weight: Any) -> tf.Tensor:
        """Returns a weight in the current graph."""
        if self._stacks is not None and key in self._stacks:
            return self._stacks.read(key)
        return tf.convert_to_tensor(weight)

    def quantize(self, dense: Int8Dense, x: tf.Tensor) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        key = (id(graph), id(x), id(dense.factors))
        if key not in self._quantized:
            rows = x if x.shape.rank == 2 else tf.reshape(x, [-1, x.shape[-1]])
            has_factors = dense.layer in self.has_factors
            self._quantized[key] = (graph, x, dense.quantize(self, rows, has_factors))
        self.has_factors.discard(dense.layer)
        return self._quantized[key][-1]

    def made(self, y: tf.Tensor, fused: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Records that the kernel computed ``y``, and can compute ``fused`` at once."""
        self._made[id(y)] = (y, fused)
        return y

    def activate(self, activation: Callable, x: Any) -> Any:
        """Computes ``activation(x)``, by the kernel where it computed ``x``."""
        if activation in _FUSED and id(x) in self._made:
            return self._made[id(x)][1](_FUSED[activation])
        return activation(x)

    def residual_sum(self, x: Any, y: Any) -> Any:
        """Computes ``x + y``, by the kernel where it computed ``y``."""
        # With more dimensions, reshaping ``x`` would take as long as the sum.
        if id(y) in self._made and x.shape.rank == 2:
            return self._made[id(y)][1]("Add", addend=x)
        return x + y


def compute(
    trace: Trace, dense: Int8Dense, layer: keras.layers.Layer, x: tf.Tensor, **options: Any
) -> Any:
    """Computes ``layer(x, **options)`` in int8."""
    if isinstance(dense, Int8Output):
        if options.get("targets") is not None:
            return type(layer).call(layer, x, **options)
        return dense.logits(trace, x)
    quantized = trace.quantize(dense, x)

    def output(*fused: str, addend: tf.Tensor | None = None) -> tf.Tensor:
        return with_rows_of(x, dense.multiply(trace, quantized, *fused, addend=addend))

    y = trace.made(output(), output)
    return y if layer.activation is None else trace.activate(layer.activation, y)
