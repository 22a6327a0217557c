"""Tracing of layers that differ only in their weights, once for all.

Tracing a model creates the operations of one block after the other, and then of their gradients,
which takes seconds. Here, equal layers call one function with their weights as arguments.
TensorFlow inlines it, so the graph that runs is the same.
"""

import contextlib
import threading
import types
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import keras

# The attributes that Keras adds to any layer. All others are specific to the layer's class.
_KEPT_BY_KERAS = frozenset(vars(keras.layers.Layer(name="any")))
_COUNTS = ("_dtype_policy", "_remat_mode", "activity_regularizer", "autocast")
_PLAIN = (str, bytes, bool, int, float, type(None))

# The layer that was traced on behalf of all equal layers, and its traces.
_traced_layers: weakref.WeakValueDictionary[Hashable, keras.layers.Layer]
_traced_layers = weakref.WeakValueDictionary()
_functions: weakref.WeakKeyDictionary[keras.layers.Layer, dict[Hashable, Any]]
_functions = weakref.WeakKeyDictionary()


_SCOPE = threading.local()


@contextlib.contextmanager
def recomputation(enabled: bool = True) -> Iterator[None]:
    """Returns a scope in which training graphs keep only each block's inputs.

    This is gradient checkpointing (arXiv 1604.06174): each block is recomputed for its gradient,
    which takes a third more time and saves most of the memory of activations. It works in
    TensorFlow graphs only.
    """
    before = getattr(_SCOPE, "recomputed", False)
    _SCOPE.recomputed = enabled
    try:
        yield
    finally:
        _SCOPE.recomputed = before


def call_once_traced(layer: keras.layers.Layer, method: str, *args: Any, **kwargs: Any) -> Any:
    """Calls ``layer.method(*args, **kwargs)``, in a TensorFlow graph through a shared function.

    All layers that differ only in the values of their weights, in one model or in several, call the
    same function. A layer is traced separately if it computes in a different dtype than its weights
    have, has its own losses, or has replaced methods.

    Args:
        layer: a built layer. Its computation may depend on any of its attributes, so all have to be
            equal: numbers, strings, sublayers, shapes of weights, and functions. A layer that holds
            any other object is traced separately.
        method: the name of a method that depends only on the layer and its arguments, and returns a
            tuple.
        *args, **kwargs: tensors and structures of them; other values are constants.
    """
    if keras.backend.backend() != "tensorflow":
        return getattr(layer, method)(*args, **kwargs)
    import tensorflow as tf

    described = _Description(layer) if tf.inside_function() else None
    if described is None or not described.can_share:
        return getattr(layer, method)(*args, **kwargs)
    weights = [tf.convert_to_tensor(variable) for variable in described.variables]

    # Holds a reference until this returns: the layer's model may already be deleted.
    traced = _traced_layer(layer, described.key)

    def outputs(which: slice) -> tuple[tuple, dict[str, Any], tuple]:
        function = _function(traced, method, which, described.key)
        if kwargs.get("training") and getattr(_SCOPE, "recomputed", False):
            return _recomputed(function, weights, args, kwargs)
        return function(weights, args, kwargs)

    # TensorFlow computes the gradients of all outputs of a function if any is requested. Outputs
    # after the first are rarely read: in training, a separate function computes them, which is then
    # pruned.
    first = slice(1 if kwargs.get("training") else None)
    results, updates, of_method = outputs(first)
    if len(results) < len(of_method):
        results += outputs(slice(1, None))[0]
    for i, value in updates.items():
        described.variables[int(i)].assign(value)
    return results


def _recomputed(function: Any, weights: list, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Computes ``function(weights, args, kwargs)``; keeps only the arguments for the gradients."""
    import tensorflow as tf

    arguments = (weights, args, kwargs)
    values = keras.tree.flatten(arguments)
    tensors = [value for value in values if tf.is_tensor(value)]
    places = [i for i, value in enumerate(values) if tf.is_tensor(value)]
    structure: list[Any] = []

    def of_tensors(*replaced: Any) -> list[Any]:
        filled = list(values)
        for place, tensor in zip(places, replaced, strict=True):
            filled[place] = tensor
        results = function(*keras.tree.pack_sequence_as(arguments, filled))
        structure[:] = [results]
        return [result for result in keras.tree.flatten(results) if result is not None]

    @tf.custom_gradient
    def forward(*inputs: Any) -> Any:
        results = of_tensors(*inputs)

        def backward(*upstream: Any) -> list[Any]:
            # The recomputation must wait for the gradient, or all blocks would be recomputed at
            # once. With a control dependency alone, TensorFlow still recomputes them early.
            first = tf.reshape(upstream[0], [-1])[:1]
            zero = tf.reduce_sum(tf.where(tf.equal(first, first), 0.0, 0.0))
            again = [
                tensor + tf.cast(zero, tensor.dtype) if tensor.dtype.is_floating else tensor
                for tensor in inputs
            ]
            with tf.GradientTape() as tape:
                tape.watch([tensor for tensor in again if tensor.dtype.is_floating])
                outputs = of_tensors(*again)
            sources = [tensor for tensor in again if tensor.dtype.is_floating]
            pairs = [(x, g) for x, g in zip(outputs, upstream, strict=True) if x.dtype.is_floating]
            gradients = iter(
                tape.gradient([x for x, _ in pairs], sources, [gradient for _, gradient in pairs])
            )
            return [next(gradients) if tensor.dtype.is_floating else None for tensor in inputs]

        return results, backward

    flat = iter(forward(*tensors))
    leaves = [None if leaf is None else next(flat) for leaf in keras.tree.flatten(structure[0])]
    return keras.tree.pack_sequence_as(structure[0], leaves)


def _traced_layer(layer: keras.layers.Layer, described: Hashable) -> keras.layers.Layer:
    """Returns the layer that is traced in place of this one: an equal layer, or itself."""
    traced = _traced_layers.get(described)
    if traced is None or _Description(traced).key != described:  # it has changed since
        traced = _traced_layers[described] = layer
    return traced


def _function(layer: keras.layers.Layer, method: str, outputs: slice, described: Hashable) -> Any:
    import tensorflow as tf

    functions = _functions.setdefault(layer, {})
    key = (described, method, outputs.start, outputs.stop)
    if key not in functions:
        # The function must not keep its layer, and with it a model, in memory.
        reference = weakref.ref(layer)

        def call(weights: Any, args: Any, kwargs: Any) -> tuple[tuple, dict[str, Any], tuple]:
            layer: Any = reference()
            variables = _Description(layer).variables
            with keras.StatelessScope(zip(variables, weights, strict=True)) as scope:
                result = getattr(layer, method)(*args, **kwargs)
            # For example, the seeds of dropout.
            after = enumerate(map(scope.get_current_value, variables))
            changed = {str(i): value for i, value in after if value is not weights[i]}
            # Each trace, such as of a call without scores, has its own number of outputs.
            return result[outputs], changed, (None,) * len(result)

        functions[key] = tf.function(call, autograph=False)
        # It is traced for as many shapes as it has callers.
        functions[key]._omit_frequent_tracing_warning = True
    return functions[key]


class _Description:
    """A description of a layer's computation.

    Attributes:
        key: equal for layers that are equal but for the values of their weights.
        variables: the variables of the layer and its sublayers, in the same order for equal layers.
        can_share: whether one trace serves all layers of this key.
    """

    def __init__(self, layer: keras.layers.Layer):
        self.variables: list[keras.Variable] = []
        self.can_share = True
        self._seen: dict[int, int] = {}
        self.key = self._of(layer)

    def _of(self, value: Any) -> Hashable:
        if isinstance(value, _PLAIN):
            return type(value), value
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        if isinstance(value, list | tuple):
            return list, tuple(self._of(item) for item in value)
        if isinstance(value, dict):
            return dict, tuple((self._of(key), self._of(item)) for key, item in value.items())
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, keras.Variable):
            self.variables.append(value)
            return keras.Variable, tuple(value.shape), value.dtype
        if isinstance(value, keras.DTypePolicy):
            self.can_share &= value.compute_dtype == value.variable_dtype
            return keras.DTypePolicy, value.name
        if isinstance(value, keras.random.SeedGenerator):
            return keras.random.SeedGenerator, self._of(value.state)
        if isinstance(value, keras.layers.Layer):
            self.can_share &= value.built and value.activity_regularizer is None
            return type(value), tuple(self._attributes(value))
        self.can_share &= isinstance(value, types.FunctionType | type)
        return "is", id(value)

    def _attributes(self, layer: keras.layers.Layer) -> Iterator[Hashable]:
        for name, value in sorted(vars(layer).items()):
            if name in _KEPT_BY_KERAS and name not in _COUNTS:
                continue
            if name.startswith("_self_") or name.endswith("_initializer"):
                continue
            replaced = callable(getattr(type(layer), name, None))
            self.can_share &= not replaced
            yield name, self._of(value)
