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
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from bertfam_tf import layers
from bertfam_tf.export.int8_product import (
    KERNEL,
    LARGEST_WEIGHT,
    SMOOTHING,
    Int8Dense,
    Int8Output,
    Trace,
    compute,
    float_kernel,
    int8_product,
    smoothing_factors,
)
from bertfam_tf.export.stacked_weights import StackedWeights
from bertfam_tf.export.stored_tables import StoredWeight, is_plain_output
from bertfam_tf.export.substitution import substituted_calls, with_rows_of
from bertfam_tf.heads.head import TiedOutput
from bertfam_tf.layers.attention import merged_projections
from bertfam_tf.layers.block import residual_sums
from bertfam_tf.tasks import Task

Answers = dict[str, np.ndarray]

# Smaller layers take little time, and heads for few labels are among them.
_SMALLEST = 16
# The root mean square of the error of a layer's output, relative to the output's.
_LARGEST_ERROR = 0.1
# Tokens of each calibration batch, for output layers over a vocabulary.
_MEASURED_TOKENS = 256


class Int8Layers:
    """The dense layers of a task in int8, as far as they keep their accuracy.

    Args:
        task: the task to export.
        function: texts by name to answers, the signature that is calibrated.
        batches: calibration texts by name, (batch, …).
        other: another function of the texts, whose activations count too: of a signature that reads
            layers at more positions.

    Attributes:
        answers: the task's answers in float32, for each batch.
        errors: layer path to the error of its output in int8 on the calibration texts: the root
            mean square of the difference, relative to the output's root mean square.
        in_float: paths of dense layers that stay in float32.

    Raises:
        ValueError: if this TensorFlow has no int8 kernel, or no layer can be computed in int8.
    """

    def __init__(
        self,
        task: Task,
        function: Callable,
        batches: Iterable[Answers],
        other: Callable | None = None,
    ):
        if op_def_registry.get(KERNEL) is None:
            raise ValueError(
                f"dtype='int8' needs the kernel {KERNEL}, which TensorFlow has in builds for x86 "
                "CPUs only; dtype='int8-weights' needs no kernel."
            )
        batches = self._batches = list(batches)
        self._task = task
        self._other = other
        # Where an export stores the weights.
        self.stacks: StackedWeights | None = None
        dense_layers = [
            layer
            for layer in task._flatten_layers()
            if isinstance(layer, keras.layers.Dense) or is_plain_output(layer)
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
        trace = Trace(self.stacks)
        calls = {layer: partial(compute, trace, x) for layer, x in self._layers.items()}
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
            with (
                substituted_calls(calls),
                merged_projections(merged),
                residual_sums(trace.residual_sum),
            ):
                yield
        finally:
            for layer, activation in zip(activated, activations, strict=True):
                layer.activation = activation

    def tables(self) -> dict[int, StoredWeight]:
        """Returns the embeddings that output layers share, by the variable's identity."""
        return {
            id(layer.table()): x.table
            for layer, x in self._layers.items()
            if isinstance(x, Int8Output)
        }

    def weights(self) -> dict[Hashable, np.ndarray]:
        """Returns the arrays of all products, by key in ``StackedWeights``."""
        products = [*self._layers.values(), *(product for product, _ in self._products.values())]
        merged = {id(part) for product, _ in self._products.values() for part in product.parts}
        weights: dict[Hashable, np.ndarray] = {}
        for product in products:
            if id(product) not in merged:
                weights |= product.weights()
        return weights

    def _merge(self, attention: layers.SelfAttention) -> tuple[Int8Dense, bool] | None:
        """Returns keys and values as one product, with queries if their input is the same, and
        whether it is without queries; None if they are not in int8."""
        query, key, value = (
            self._layers.get(x) for x in (attention.query, attention.key, attention.value)
        )
        if key is None or value is None or key.factors is not value.factors:
            return None
        # The context is linear in the values, so they take the factors of the next layer's input.
        output = self._layers.get(attention.output_dense)
        parts = [(key, 1.0), (value, 1.0 if output is None else output.factors)]
        if query is None or query.factors is not key.factors:
            return Int8Dense.side_by_side(parts), True
        scale = attention.scale if attention.positions is None else 1.0
        return Int8Dense.side_by_side([(query, scale), *parts]), False

    def _merged(self, trace: Trace, attention: Any, has_query: bool) -> Callable | None:
        product, without_queries = self._products.get(id(attention), (None, False))
        if product is None or without_queries != has_query:
            return None

        def multiply(x: tf.Tensor) -> tf.Tensor:
            trace.has_factors.add(attention.output_dense)
            return with_rows_of(x, product.multiply(trace, trace.quantize(product, x)))

        return multiply

    def describe(self) -> dict[str, Any]:
        """Describes the layers for the model card."""
        return {
            "smoothing": SMOOTHING,
            "largest_weight": LARGEST_WEIGHT,
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
            features = dict(zip(specs, tensors, strict=True))
            with substituted_calls(calls):
                if self._other is not None:
                    self._other(features)
                return function(features)

        # Calls of the function would warn of retracing after some exports in a process.
        traced = tf.function(answer, list(specs.values()), autograph=False).get_concrete_function()
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


def _is_eligible(layer: keras.layers.Layer) -> bool:
    return is_plain_output(layer) or (
        layer.built
        and layer.quantization_mode is None
        and layer.compute_dtype == layer.variable_dtype == "float32"
        and min(layer.kernel.shape) >= _SMALLEST
    )


class _Observed:
    """Records the input of a layer.

    Attributes:
        layer: the layer.
        inputs: the symbolic tensors that it was called with.
    """

    def __init__(self, layer: keras.layers.Layer):
        self.layer = layer
        self.inputs: list[tf.Tensor] = []
        tied = isinstance(layer, TiedOutput)
        width = layer.table().shape[1] if tied else layer.kernel.shape[0]
        self._largest = tf.Variable(np.zeros(width, "float32"), trainable=False)

    def observe(self, layer: keras.layers.Layer, x: tf.Tensor, **options: Any) -> tf.Tensor:
        self.inputs.append(x)
        sizes = tf.abs(tf.reshape(x, [-1, x.shape[-1]]))  # (tokens, width)
        self._largest.assign(tf.maximum(self._largest, tf.reduce_max(sizes, axis=0)))
        return type(layer).call(layer, x, **options)

    @property
    def largest(self) -> np.ndarray:
        """The largest absolute value of each channel, (width,)."""
        return self._largest.numpy()


def _quantized(observed: Iterable[_Observed]) -> Iterator[Int8Dense]:
    groups: dict[tuple[int, ...], list[_Observed]] = defaultdict(list)
    for observed_layer in observed:
        if observed_layer.inputs:
            groups[tuple(map(id, observed_layer.inputs))].append(observed_layer)
    for members in groups.values():
        readers = [observed_layer.layer for observed_layer in members]
        kernels = [float_kernel(layer) for layer in readers]
        kernel = np.concatenate(kernels, axis=1)
        factors = smoothing_factors(readers, members[0].largest, kernel)
        for layer, kernel in zip(readers, kernels, strict=True):
            yield int8_product(layer, kernel, factors)


class _Measured:
    """Compares the outputs of a layer and of its int8 form for the same input.

    Attributes:
        layer: the int8 form.
    """

    def __init__(self, layer: Int8Dense):
        self.layer = layer
        self._sums = tf.Variable([0.0, 0.0], trainable=False)

    def measure(self, layer: keras.layers.Layer, x: tf.Tensor, **options: Any) -> tf.Tensor:
        y = exact = type(layer).call(layer, x, **options)
        if isinstance(self.layer, Int8Output):
            # Logits of some tokens, because the logits of all take much memory.
            x = tf.reshape(x, [-1, x.shape[-1]])
            count = tf.shape(x)[0]
            x = tf.gather(x, tf.range(0, count, tf.maximum(count // _MEASURED_TOKENS, 1)))
            exact = type(layer).call(layer, x)
        error = compute(Trace(), self.layer, layer, x) - exact
        if isinstance(self.layer, Int8Output):
            # What all tokens have in common does not count.
            exact -= tf.reduce_mean(exact, axis=1, keepdims=True)
        self._sums.assign_add([tf.reduce_sum(tf.square(error)), tf.reduce_sum(tf.square(exact))])
        return y

    @property
    def error(self) -> float:
        error, whole = self._sums.numpy().tolist()
        of_rows = self.layer.error_of_rows if isinstance(self.layer, Int8Output) else 0.0
        # 1 for a layer that the calibration texts do not reach.
        return max((error / whole) ** 0.5 if whole else 1.0, of_rows)
