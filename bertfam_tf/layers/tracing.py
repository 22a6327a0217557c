"""Layers that are equal but for their weights, traced once.

To trace a model, Python code makes the operations of one block after the other, and the gradient's
in turn, which takes seconds. Here equal layers call one function with their weights as arguments.
TensorFlow inlines it: the graph that runs is the same.
"""

import contextlib
import threading
import types
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import keras

# What Keras keeps about any layer. The rest of a layer's attributes are its own.
_KEPT_BY_KERAS = frozenset(vars(keras.layers.Layer(name="any")))
_COUNTS = ("_dtype_policy", "_remat_mode", "activity_regularizer", "autocast")
_PLAIN = (str, bytes, bool, int, float, type(None))

# The layer that was traced for all that are equal to it, and what was traced.
_traced_layers: weakref.WeakValueDictionary[Hashable, keras.layers.Layer]
_traced_layers = weakref.WeakValueDictionary()
_functions: weakref.WeakKeyDictionary[keras.layers.Layer, dict[Hashable, Any]]
_functions = weakref.WeakKeyDictionary()


_SCOPE = threading.local()


@contextlib.contextmanager
def recomputation(enabled: bool = True) -> Iterator[None]:
    """Scope in which training graphs keep of each block only its inputs.

    What a block computes is computed once more for its gradient, which takes a third more time and
    saves most of the memory of activations (arXiv 1604.06174). Only in graphs of TensorFlow.
    """
    before = getattr(_SCOPE, "recomputed", False)
    _SCOPE.recomputed = enabled
    try:
        yield
    finally:
        _SCOPE.recomputed = before


def call_once_traced(layer: keras.layers.Layer, method: str, *args: Any, **kwargs: Any) -> Any:
    """``layer.method(*args, **kwargs)``; in a TensorFlow graph a call of a function.

    All layers that are equal but for the values of their weights, of one model or of several, call
    the same function. Layers that compute in another dtype than that of their weights, those with
    losses of their own, and those whose methods were replaced are traced one by one.

    Args:
        layer: a layer that is built. Which of its attributes a computation depends on is not known,
            so that all have to be equal: numbers and strings, parts, the shapes of weights, and
            functions. A layer with any other object in it is traced by itself.
        method: the name of a method that depends on the layer and its arguments only, and returns a
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

    # Referenced until this returns: its model may be gone already.
    traced = _traced_layer(layer, described.key)

    def outputs(which: slice) -> tuple[tuple, dict[str, Any], tuple]:
        function = _function(traced, method, which, described.key)
        if kwargs.get("training") and getattr(_SCOPE, "recomputed", False):
            return _recomputed(function, weights, args, kwargs)
        return function(weights, args, kwargs)

    # Gradients of all outputs of a function are computed if any is asked for. Those after the first
    # are rarely read: in training they have a function of their own, which then is pruned.
    first = slice(1 if kwargs.get("training") else None)
    found, updates, of_method = outputs(first)
    if len(found) < len(of_method):
        found += outputs(slice(1, None))[0]
    for i, value in updates.items():
        described.variables[int(i)].assign(value)
    return found


def _recomputed(function: Any, weights: list, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``function(weights, args, kwargs)``, of which only the arguments are kept for gradients."""
    import tensorflow as tf

    given = (weights, args, kwargs)
    values = keras.tree.flatten(given)
    tensors = [value for value in values if tf.is_tensor(value)]
    places = [i for i, value in enumerate(values) if tf.is_tensor(value)]
    structure: list[Any] = []

    def of_tensors(*replaced: Any) -> list[Any]:
        filled = list(values)
        for place, tensor in zip(places, replaced, strict=True):
            filled[place] = tensor
        found = function(*keras.tree.pack_sequence_as(given, filled))
        structure[:] = [found]
        return [each for each in keras.tree.flatten(found) if each is not None]

    @tf.custom_gradient
    def forward(*inputs: Any) -> Any:
        found = of_tensors(*inputs)

        def backward(*upstream: Any) -> list[Any]:
            # Not before the gradient is there, or all blocks would be recomputed at once. With a
            # control dependency alone, TensorFlow still computes them early.
            first = tf.reshape(upstream[0], [-1])[:1]
            zero = tf.reduce_sum(tf.where(tf.equal(first, first), 0.0, 0.0))
            again = [
                each + tf.cast(zero, each.dtype) if each.dtype.is_floating else each
                for each in inputs
            ]
            with tf.GradientTape() as tape:
                tape.watch([each for each in again if each.dtype.is_floating])
                outputs = of_tensors(*again)
            sources = [each for each in again if each.dtype.is_floating]
            pairs = [(x, g) for x, g in zip(outputs, upstream, strict=True) if x.dtype.is_floating]
            gradients = iter(
                tape.gradient([x for x, _ in pairs], sources, [gradient for _, gradient in pairs])
            )
            return [next(gradients) if each.dtype.is_floating else None for each in inputs]

        return found, backward

    flat = iter(forward(*tensors))
    leaves = [None if each is None else next(flat) for each in keras.tree.flatten(structure[0])]
    return keras.tree.pack_sequence_as(structure[0], leaves)


def _traced_layer(layer: keras.layers.Layer, described: Hashable) -> keras.layers.Layer:
    """The layer that is traced in place of this one: an equal layer, or itself."""
    traced = _traced_layers.get(described)
    if traced is None or _Description(traced).key != described:  # it was changed since
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
                found = getattr(layer, method)(*args, **kwargs)
            # Seeds of dropout, say.
            after = enumerate(map(scope.get_current_value, variables))
            changed = {str(i): value for i, value in after if value is not weights[i]}
            # Each trace, such as of a call without scores, has its own number of outputs.
            return found[outputs], changed, (None,) * len(found)

        functions[key] = tf.function(call, autograph=False)
        # It is traced for as many shapes as its callers are.
        functions[key]._omit_frequent_tracing_warning = True
    return functions[key]


class _Description:
    """What the computation of a layer depends on.

    Attributes:
        key: equal for layers that are equal but for the values of their weights.
        variables: of the layer and its parts, in the same order for equal layers.
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
            return list, tuple(self._of(each) for each in value)
        if isinstance(value, dict):
            return dict, tuple((self._of(key), self._of(each)) for key, each in value.items())
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
