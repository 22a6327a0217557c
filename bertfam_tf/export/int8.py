"""Dense layers that compute in int8, with oneDNN's kernel in TensorFlow for x86 CPUs.

Weights and activations are symmetric int8 with the scales of arXiv 1806.08342, section 3: one for
each output channel of a kernel, and one for the input of a layer. Input channels differ in size by
orders of magnitude, so they are first made equal: factors move size from activations into weights
(SmoothQuant, arXiv 2211.10438). The input's scale is fixed at export, from calibration texts, so
that the answer for a row does not depend on other rows.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.python.framework import op_def_library, op_def_registry

from bertfam_tf import layers
from bertfam_tf.export.stacked_weights import StackedWeights
from bertfam_tf.export.substitution import substituted_calls, with_rows_of
from bertfam_tf.layers.attention import merged_projections
from bertfam_tf.tasks import Task

KERNEL = "_QuantizedMatMul"
Answers = dict[str, np.ndarray]

# The exponent of the activations in SmoothQuant's factors (equation 4).
_SMOOTHING = 0.7
_LARGEST_INPUT = 127
# CPUs without VNNI add two products in 16 bits: 2 · 255 · 64 fits, larger weights would saturate.
_LARGEST_WEIGHT = 64
# The kernel's ranges are the values of this integer.
_RANGE = 127
# Smaller layers take little time, and heads for few labels are among them.
_SMALLEST = 16
# The root mean square of the error of a layer's output, relative to the output's.
_LARGEST_ERROR = 0.1
# Activations that the kernel applies to its result.
_FUSED = {
    layers.activation("gelu"): "GeluExact",
    layers.activation("gelu_new"): "GeluApproximate",
    layers.activation("relu"): "Relu",
    layers.activation("tanh"): "Tanh",
}


class Int8Layers:
    """The dense layers of a task in int8, as far as they keep their accuracy.

    Args:
        task: the task to export.
        function: texts by name to answers, the signature that is calibrated.
        batches: calibration texts by name, (batch, …).

    Attributes:
        answers: the task's answers in float32, for each batch.
        errors: layer path to the error of its output in int8 on the calibration texts: the root
            mean square of the difference, relative to the output's root mean square.
        in_float: paths of dense layers that stay in float32.

    Raises:
        ValueError: if this TensorFlow has no int8 kernel, or no layer can be computed in int8.
    """

    def __init__(self, task: Task, function: Callable, batches: Iterable[Answers]):
        if op_def_registry.get(KERNEL) is None:
            raise ValueError(
                f"dtype='int8' needs the kernel {KERNEL}, which TensorFlow has in builds for x86 "
                "CPUs only; dtype='int8-weights' needs no kernel."
            )
        batches = self._batches = list(batches)
        self._task = task
        # Where an export stores the weights.
        self.stacks: StackedWeights | None = None
        dense_layers = [
            layer for layer in task._flatten_layers() if isinstance(layer, keras.layers.Dense)
        ]
        eligible = {id(layer): layer for layer in dense_layers if _is_eligible(layer)}
        observed = [_Observed(layer) for layer in eligible.values()]
        self.answers = self._run(function, batches, {x.layer: x.observe for x in observed})
        self._layers = {x.layer: x for x in _quantized(observed)}
        measured = [_Measured(x) for x in self._layers.values()]
        if measured:
            self._run(function, batches, {x.layer.layer: x.measure for x in measured})
        self.errors = {x.layer.layer.path: x.error for x in measured}
        self._layers = {x.layer.layer: x.layer for x in measured if x.error <= _LARGEST_ERROR}
        if not self._layers:
            raise ValueError(
                f"{type(task).__name__} has no dense layer that can be computed in int8; "
                "dtype='int8-weights' stores its weights in int8."
            )
        self._products = {
            id(attention): product
            for attention in task._flatten_layers()
            if isinstance(attention, layers.SelfAttention)
            and (product := self._merge(attention)) is not None
        }
        self.in_float = sorted({x.path for x in dense_layers if x not in self._layers})

    @property
    def in_int8(self) -> list[str]:
        """Paths of the layers that compute in int8."""
        return sorted(layer.path for layer in self._layers)

    @contextlib.contextmanager
    def substituted(self) -> Iterator[None]:
        """Returns a context in which the layers compute in int8."""
        trace = _Trace(self.stacks)
        calls = {layer: partial(_compute, trace, x) for layer, x in self._layers.items()}
        merged = partial(self._merged, trace)
        activated = [
            layer
            for layer in {id(x): x for x in self._task._flatten_layers()}.values()
            if not isinstance(layer, keras.layers.Dense)
            and callable(getattr(layer, "activation", None))
        ]
        activations = [layer.activation for layer in activated]
        for layer, activation in zip(activated, activations, strict=True):
            layer.activation = partial(trace.activate, activation)
        try:
            with substituted_calls(calls), merged_projections(merged):
                yield
        finally:
            for layer, activation in zip(activated, activations, strict=True):
                layer.activation = activation

    def weights(self) -> dict[Hashable, np.ndarray]:
        """Returns the arrays of all products, by key in ``StackedWeights``."""
        products = [*self._layers.values(), *(product for product, _ in self._products.values())]
        merged = {id(part) for product, _ in self._products.values() for part in product.parts}
        weights: dict[Hashable, np.ndarray] = {}
        for product in products:
            if id(product) not in merged:
                weights |= product.weights()
        return weights

    def _merge(self, attention: layers.SelfAttention) -> tuple[_Int8Dense, bool] | None:
        """Returns keys and values as one product, with queries if their input is the same, and
        whether it is without queries; None if they are not in int8."""
        query, key, value = (
            self._layers.get(x) for x in (attention.query, attention.key, attention.value)
        )
        if key is None or value is None or key.factors is not value.factors:
            return None
        if query is None or query.factors is not key.factors:
            return _Int8Dense.side_by_side([(key, 1.0), (value, 1.0)]), True
        scale = attention.scale if attention.positions is None else 1.0
        return _Int8Dense.side_by_side([(query, scale), (key, 1.0), (value, 1.0)]), False

    def _merged(self, trace: _Trace, attention: Any, has_query: bool) -> Callable | None:
        product, without_queries = self._products.get(id(attention), (None, False))
        if product is None or without_queries != has_query:
            return None
        return lambda x: with_rows_of(x, product.multiply(trace, trace.quantize(product, x)))

    def describe(self) -> dict[str, Any]:
        """Describes the layers for the model card."""
        return {
            "smoothing": _SMOOTHING,
            "largest_weight": _LARGEST_WEIGHT,
            "largest_error": _LARGEST_ERROR,
            "errors": {path: round(error, 5) for path, error in sorted(self.errors.items())},
            "int8": self.in_int8,
            "float32": self.in_float,
        }

    def agreement(self, run: Callable[[Answers], Answers]) -> dict[str, dict[str, float]]:
        """Compares the answers of an export with those in float32, on the calibration texts.

        Args:
            run: texts by name to answers, the signature that was calibrated.

        Returns:
            By output: ``largest`` and ``mean`` absolute difference of float outputs, and the share
            of ``equal`` values of others. Entries after the ``count`` of a row are left out.
        """
        pairs = [
            (_entries(expected), _entries(run(batch)))
            for batch, expected in zip(self._batches, self.answers, strict=True)
        ]
        by_output = {}
        for name in pairs[0][0]:
            expected, actual = (np.concatenate([pair[i][name] for pair in pairs]) for i in (0, 1))
            if expected.dtype.kind == "f":
                sizes = np.abs(actual - expected)
                largest, mean = sizes.max(initial=0), sizes.mean() if sizes.size else 0
                by_output[name] = {"largest": float(largest), "mean": float(mean)}
            else:
                equal = (actual == expected).mean() if expected.size else 1
                by_output[name] = {"equal": float(equal)}
        return by_output

    def _run(self, function: Callable, batches: list[Answers], calls: dict) -> list[Answers]:
        specs = self._task.feature_specs

        def answer(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            with substituted_calls(calls):
                return function(dict(zip(specs, tensors, strict=True)))

        traced = tf.function(answer, list(specs.values()), autograph=False)
        batches_of_answers = [
            traced(*(tf.constant(batch[name]) for name in specs)) for batch in batches
        ]
        return [{name: x.numpy() for name, x in answers.items()} for answers in batches_of_answers]


def _entries(answers: Answers) -> Answers:
    """Returns the entries that are used, each output in one vector."""
    count = answers.get("count")

    def used(values: np.ndarray) -> np.ndarray:
        if count is None or values.ndim < 2:
            return values.ravel()
        return values[np.arange(values.shape[1]) < count[:, None]].ravel()

    return {name: used(values) for name, values in answers.items()}


def _is_eligible(layer: keras.layers.Dense) -> bool:
    return (
        layer.built
        and layer.quantization_mode is None
        and layer.compute_dtype == layer.variable_dtype == "float32"
        and min(layer.kernel.shape) >= _SMALLEST
    )


class _Observed:
    """Records the input of a layer.

    Attributes:
        layer: the dense layer.
        inputs: the symbolic tensors that it was called with.
    """

    def __init__(self, layer: keras.layers.Dense):
        self.layer = layer
        self.inputs: list[tf.Tensor] = []
        self._largest = tf.Variable(np.zeros(layer.kernel.shape[0], "float32"), trainable=False)

    def observe(self, layer: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
        self.inputs.append(x)
        sizes = tf.abs(tf.reshape(x, [-1, x.shape[-1]]))  # (tokens, width)
        self._largest.assign(tf.maximum(self._largest, tf.reduce_max(sizes, axis=0)))
        return type(layer).call(layer, x)

    @property
    def largest(self) -> np.ndarray:
        """The largest absolute value of each channel, (width,)."""
        return self._largest.numpy()


def _quantized(observed: Iterable[_Observed]) -> Iterator[_Int8Dense]:
    groups: dict[tuple[int, ...], list[_Observed]] = defaultdict(list)
    for observed_layer in observed:
        if observed_layer.inputs:
            groups[tuple(map(id, observed_layer.inputs))].append(observed_layer)
    for members in groups.values():
        kernels = [ops.convert_to_numpy(observed_layer.layer.kernel) for observed_layer in members]
        factors = _factors(members[0].largest, np.concatenate(kernels, axis=1))
        for observed_layer, kernel in zip(members, kernels, strict=True):
            yield _Int8Dense(observed_layer.layer, kernel, factors)


def _factors(largest: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Returns the factors of input channels before they are rounded to int8, (width,).

    Args:
        largest: absolute values of the channels, (width,).
        kernel: the kernels of all layers that read them, (width, units).
    """
    largest = np.maximum(largest, 1e-5)
    weights = np.maximum(np.abs(kernel).max(axis=1), 1e-5)
    smoothing = largest**_SMOOTHING / weights ** (1 - _SMOOTHING)
    return (_LARGEST_INPUT / (largest / smoothing).max() / smoothing).astype("float32")


class _Int8Dense:
    """A dense layer's weights for the kernel.

    Args:
        layer: the layer.
        kernel: its weights, float32 (width, units).
        factors: the factors of its input channels, float32 (width,), the same array for layers that
            share their input.
    """

    def __init__(self, layer: keras.layers.Dense, kernel: np.ndarray, factors: np.ndarray):
        self.layer = layer
        self.factors = factors
        kernel = kernel / factors[:, None]
        scales = np.abs(kernel).max(axis=0) / _LARGEST_WEIGHT
        scales = np.where(scales > 0, scales, 1).astype("float32")
        # A variable, so that all signatures share it.
        self.kernel = tf.Variable(np.rint(kernel / scales).astype(np.int8), trainable=False)
        self.ranges = scales * np.float32(_RANGE)
        bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
        self.bias = np.zeros(len(scales), "float32") if bias is None else bias
        self.parts: list[_Int8Dense] = []

    @classmethod
    def side_by_side(cls, parts: Sequence[tuple[_Int8Dense, float]]) -> _Int8Dense:
        """Returns one product for layers that share their input, with outputs side by side.

        Args:
            parts: the layers, and the positive factor of each one's output.
        """
        merged = cls.__new__(cls)
        merged.parts = [dense for dense, _ in parts]
        merged.layer = merged.parts[0].layer
        merged.factors = merged.parts[0].factors
        kernels = [dense.kernel.numpy() for dense in merged.parts]
        merged.kernel = tf.Variable(np.concatenate(kernels, axis=1), trainable=False)
        merged.ranges = np.concatenate([dense.ranges * np.float32(x) for dense, x in parts])
        merged.bias = np.concatenate([dense.bias * np.float32(x) for dense, x in parts])
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

    def quantize(self, trace: _Trace, x: tf.Tensor) -> tf.Tensor:
        """Returns the input, float32 (tokens, width), as qint8."""
        limit = float(_LARGEST_INPUT)
        return tf.raw_ops.QuantizeV2(
            input=x * trace.read(id(self.factors), self.factors),
            min_range=-limit,
            max_range=limit,
            T=tf.qint8,
            mode="SCALED",
            round_mode="HALF_TO_EVEN",
            narrow_range=True,
        ).output

    def multiply(self, trace: _Trace, x: tf.Tensor, *activation: str) -> tf.Tensor:
        """Returns the output for a quantized input, float32 (tokens, units)."""
        kernel = tf.bitcast(trace.read((id(self), "kernel"), self.kernel), tf.qint8)
        bias = trace.read((id(self), "bias"), self.bias)
        low = trace.read((id(self), "low"), -self.ranges)
        high = trace.read((id(self), "high"), self.ranges)
        limit = tf.constant(_LARGEST_INPUT, tf.float32)
        # There is no Python wrapper of this operation.
        (y,), _ = op_def_library.apply_op(
            KERNEL,
            name="int8_dense",
            device_inputs=[x, kernel, bias],
            host_inputs=[-limit, limit, low, high],
            Tdevice_outputs=[tf.float32],
            Thost_outputs=[],
            T1=tf.qint8,
            T2=tf.qint8,
            Tbias=tf.float32,
            U=tf.float32,
            Tout=tf.float32,
            transpose_a=False,
            transpose_b=False,
            is_weight_const=True,
            is_bias_const=True,
            fused_ops=["BiasAdd", *activation, "Dequantize"],
            input_quant_mode="SCALED",
            output_quant_mode="SCALED",
            leakyrelu_alpha=0.2,
        )
        y.set_shape([None, self.kernel.shape[1]])
        return y


class _Trace:
    """Tensors of a graph that is traced: layers of one input share its quantized values."""

    def __init__(self, stacks: StackedWeights | None = None) -> None:
        self._stacks = stacks
        # Values include the objects whose identities are the keys, so that these stay unique.
        self._quantized: dict[tuple[int, int, int], tuple] = {}
        self._made: dict[int, tuple[tf.Tensor, Callable[..., tf.Tensor]]] = {}

    def read(self, key: Hashable, weight: Any) -> tf.Tensor:
        """Returns a weight in the current graph."""
        if self._stacks is not None and key in self._stacks:
            return self._stacks.read(key)
        return tf.convert_to_tensor(weight)

    def quantize(self, dense: _Int8Dense, x: tf.Tensor) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        key = (id(graph), id(x), id(dense.factors))
        if key not in self._quantized:
            rows = x if x.shape.rank == 2 else tf.reshape(x, [-1, x.shape[-1]])
            self._quantized[key] = (graph, x, dense.quantize(self, rows))
        return self._quantized[key][-1]

    def made(self, y: tf.Tensor, with_activation: Callable[[str], tf.Tensor]) -> tf.Tensor:
        self._made[id(y)] = (y, with_activation)
        return y

    def activate(self, activation: Callable, x: Any) -> Any:
        """Computes ``activation(x)``, by the kernel where it computed ``x``."""
        if activation in _FUSED and id(x) in self._made:
            return self._made[id(x)][1](_FUSED[activation])
        return activation(x)


def _compute(trace: _Trace, dense: _Int8Dense, layer: keras.layers.Dense, x: tf.Tensor) -> Any:
    quantized = trace.quantize(dense, x)

    def output(*activation: str) -> tf.Tensor:
        return with_rows_of(x, dense.multiply(trace, quantized, *activation))

    y = trace.made(output(), output)
    return y if layer.activation is None else trace.activate(layer.activation, y)


class _Measured:
    """Compares the outputs of a layer and of its int8 form for the same input.

    Attributes:
        layer: the int8 form.
    """

    def __init__(self, layer: _Int8Dense):
        self.layer = layer
        self._sums = tf.Variable([0.0, 0.0], trainable=False)

    def measure(self, layer: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
        y = type(layer).call(layer, x)
        error = _compute(_Trace(), self.layer, layer, x) - y
        self._sums.assign_add([tf.reduce_sum(tf.square(error)), tf.reduce_sum(tf.square(y))])
        return y

    @property
    def error(self) -> float:
        error, whole = self._sums.numpy().tolist()
        return (error / whole) ** 0.5 if whole else 0.0
