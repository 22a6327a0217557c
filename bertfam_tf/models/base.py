"""The base class of configs, and the Keras model that a family's wiring builds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from bertfam_tf import registry
from bertfam_tf.hints import hint
from bertfam_tf.layers.fused import quantization_error
from bertfam_tf.models.parts import Parts
from bertfam_tf.names import truncated_repr, unknown
from bertfam_tf.validation import in_range


@dataclass(frozen=True)
class Config:
    """Base of the families' configs: a frozen dataclass whose fields all have defaults."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Returns a config from a dict.

        Raises:
            ValueError: if a key is not a field (the message names the nearest one), or a value has
                the wrong type or is out of range.
        """
        types = typing.get_type_hints(cls)
        for name, value in values.items():
            if name not in types:
                raise ValueError(unknown(f"{cls.__name__} field", name, types, hint(name)))
            if typing.get_origin(types[name]) is tuple:
                _check_tuple(f"{cls.__name__}.{name}", value, typing.get_args(types[name])[0])
                continue
            kinds = typing.get_args(types[name]) or (types[name],)
            allowed = (*kinds, int) if float in kinds else kinds
            if not isinstance(value, allowed) or (bool not in kinds and isinstance(value, bool)):
                kind = types[name] if len(kinds) > 1 else kinds[0].__name__
                raise ValueError(
                    f"{cls.__name__}.{name} must be of type {kind}, got {truncated_repr(value)}."
                )
            if isinstance(value, int | float) and not isinstance(value, bool):
                low, high = _bounds(name, float in kinds)
                in_range(f"{cls.__name__}.{name}", value, at_least=low, at_most=high)
        # JSON and YAML have lists for tuples.
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as plain values."""
        fields = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _check_tuple(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, list | tuple) or any(type(item) is not kind for item in value):
        raise ValueError(f"{name} must be a list of {kind.__name__}, got {truncated_repr(value)}.")
    low, high = _bounds("", kind is float)
    for element in value:
        in_range(name, element, at_least=low, at_most=high)


_LARGEST = 2**31 - 1
# Bounds the time to build a model from a hostile config: where layers share their weights, the
# number of stored tensors does not. The deepest published model has 48.
MAX_LAYERS = 256
_POSITIVE = frozenset(
    """
    div_val embedding_size global_every head_size hidden_size inner_size intermediate_size
    layers_per_group local_attention max_distance max_positions num_groups num_heads num_languages
    vocab_size
    """.split()
)


_COUNTS = frozenset({"num_segments", "extra_feed_forwards"})


def _bounds(name: str, floats: bool) -> tuple[float, float]:
    """Returns the minimum and the maximum of a field."""
    if floats:
        return 0, 1 if name.endswith("dropout") else _LARGEST
    if name == "num_layers":
        return 0, MAX_LAYERS
    return (1 if name in _POSITIVE else 0 if name in _COUNTS else -_LARGEST), _LARGEST


def _empty(tokens: Any, spec: Any) -> Any:
    """Returns tensors of length 0 for the batch."""

    def tensor(like):
        x = ops.cast(tokens[:, :0], like.dtype)
        for axis, size in enumerate(like.shape[1:], 1):
            if size is not None:
                x = ops.repeat(ops.expand_dims(x, axis), size, axis)
        return x

    return keras.tree.map_structure(tensor, spec)


def _no_predictions(tokens: Any, spec: Any) -> Any:
    return ops.cast(ops.expand_dims(ops.zeros_like(tokens), 1)[:, :0], spec.dtype)


_CACHE_LENGTH = "cache_length"
# All inputs, and the defaults of optional ones: functions of the token ids, and of the input's
# shape and dtype.
_INPUTS: dict[str, Callable | None] = {
    "token_ids": None,
    "padding_mask": None,
    "segment_ids": lambda tokens, spec: ops.zeros_like(tokens),
    "position_ids": lambda tokens, spec: ops.cumsum(ops.ones_like(tokens), axis=1) - 1,
    "language_ids": None,
    "cache": _empty,
    _CACHE_LENGTH: None,
    "memory": _empty,
    # One value, broadcast to all pairs.
    "perm_mask": lambda tokens, spec: ops.expand_dims(ops.zeros_like(tokens[:, :1], spec.dtype), 1),
    "target_mapping": _no_predictions,
}


def _tensor(value: Any, spec: Any) -> Any:
    def convert(value, like):
        symbolic = keras.utils.is_keras_tensor(value)
        return value if symbolic else ops.convert_to_tensor(value, like.dtype)

    return keras.tree.map_structure_up_to(spec, lambda like, x: convert(x, like), spec, value)


_SCOPE = threading.local()


@contextlib.contextmanager
def single_example_branch() -> Iterator[None]:
    """Returns a scope in which graphs that leave padding out have a branch for single examples.

    The branch needs no masks, gathers and groups of examples. It is for models in production, where
    most batches are one example: graphs take about twice as long to trace. It has an effect on
    TensorFlow only, and where a call of a backbone names the outputs.
    """
    _SCOPE.single_example_branch = True
    try:
        yield
    finally:
        _SCOPE.single_example_branch = False


@contextlib.contextmanager
def unpadding(enabled: bool) -> Iterator[None]:
    """Returns a scope in which backbones compute real tokens only, or padding too.

    The outermost scope of a thread decides. Without any, backbones compute padding.

    Args:
        enabled: whether padding is left out, by families that can.
    """
    outermost = getattr(_SCOPE, "enabled", None) is None
    if outermost:
        _SCOPE.enabled = enabled
    try:
        yield
    finally:
        if outermost:
            _SCOPE.enabled = None


def leaving_padding_out() -> bool:
    """Returns whether the scope of ``unpadding`` says so; outside of any scope, no."""
    return bool(getattr(_SCOPE, "enabled", None))


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Backbone(keras.Model):
    """An encoder without heads: a dict of tensors in, a dict of tensors out.

    Args:
        family: a name from ``bertfam_tf.families()``.
        config: the family's config, or a dict of its fields.
        parts: existing layers by name, whose weights this model shares: ``parts`` of another
            backbone, or a subset of them. Other layers are new.
        dtype: the dtype policy of the new layers and of this model; None for Keras' global one.
        unpadded: whether only real tokens are computed, where the family can. Weights and outputs
            are the same, except at padding.
        single_example: whether the model is for batches of one example without padding, where the
            family can compute real tokens only. Weights and outputs are the same.
        outputs: the names of the outputs that the model has; None for all.
        cache_in_place: whether the model has the input ``cache_length``. A call with this input
            uses such a model of the same layers, so this is rarely needed.

    Call:
        inputs: dict of int32 tensors (batch, length): ``token_ids``, in families that read
            characters (batch, length, characters), ``padding_mask`` (1 at real
            tokens, 0 at padding) and, where the family has them, ``segment_ids`` (default zeros),
            ``position_ids`` (default 0, 1, 2, …) and ``language_ids``. Representations of earlier
            tokens, by default of none, are inputs too: ``memory``, a tuple with (batch, memory
            length, hidden) for each layer, or ``cache``, a tuple with (keys, values) for each
            layer, both (batch, heads, cached length, head size); with a cache, the padding mask is
            (batch, cached length + length). With ``cache_length``, an int32 scalar, the cache is a
            set of buffers of a fixed length of which the first ``cache_length`` positions are
            used: keys and values of the new tokens are written after them, in place where the
            backend can, and the padding mask covers all positions of the buffers. ``perm_mask``
            (batch, length, length) is 1 where a query (second axis) must not attend to a key (third
            axis), by default nowhere; ``target_mapping`` (batch, predictions, length) is 1 at the
            position of a prediction, by default there is none.
        outputs: the name of the output to return, or several names, so that nothing else is
            computed; None for all.

    Returns:
        Dict of ``sequence_output`` (batch, length, hidden), ``first_token`` (batch, hidden), its
        first position, and ``hidden_states`` (the embeddings' output, then each layer's). Where the
        family has them: ``pooled_output`` (batch, hidden);
        ``attention_scores``, each layer's (batch, heads, length, keys), scaled, before mask and
        softmax; only where a call names them ``attention_probabilities``, of the same shape, and
        ``queries``, ``keys`` and ``values``, each layer's (batch, heads, length, head size), before
        scaling; ``memory`` or ``cache`` for the next
        call; ``last_token`` (batch, hidden), the output at the last real token of each example;
        ``query_output`` (batch, predictions, hidden).

        At padding, outputs with a value for each position mean nothing, and depend on how the model
        runs: mask them with ``padding_mask``. Unpadded models, as in ``fit``, ``predict`` and
        SavedModels, have zeros there in ``sequence_output``, ``hidden_states``, ``queries``,
        ``keys`` and ``values``, and in ``attention_scores`` at most a bias of relative positions.
        The first position of an example is always computed, also if it is padding. Padded models,
        as in a direct call and in ``.tflite`` files, return the layers' results there.

    Raises:
        ValueError: if a family, config field, input or output is unknown, or an input is missing.
    """

    def __init__(
        self,
        family: str,
        config: Config | dict[str, Any],
        *,
        parts: Mapping[str, keras.layers.Layer] | None = None,
        dtype: Any = None,
        unpadded: bool = False,
        single_example: bool = False,
        outputs: Iterable[str] | None = None,
        cache_in_place: bool = False,
        **kwargs,
    ):
        record = registry.get(family)
        fields = config if isinstance(config, dict) else config.to_dict()
        typed: Any = record.config.from_dict(fields)
        names = None if outputs is None else tuple(outputs)
        wired = Parts(
            parts,
            dtype,
            unpadded=unpadded,
            single_example=single_example,
            outputs=names,
            cache_in_place=cache_in_place,
        )
        inputs, outputs_by_name = record.wire(typed, wired)
        outputs_by_name.setdefault("first_token", outputs_by_name["sequence_output"][:, 0, :])
        kwargs.setdefault("name", f"{family}_backbone")
        super().__init__(inputs=inputs, outputs=_named(outputs_by_name, names), **kwargs)
        self.dtype_policy = wired.dtype_policy
        self.family = family
        self.config = typed
        self.parts = wired
        # In a function, because Keras would track the model: its layers are this one's.
        self._variant = functools.cache(lambda **options: _variant(self, **options))

    def __call__(self, inputs, *args, **kwargs):
        names = _names(kwargs.get("outputs"))
        if isinstance(inputs, dict):
            if _CACHE_LENGTH in inputs and "cache" in self.input and not self.parts.cache_in_place:
                kwargs.pop("outputs", None)
                model = self._variant(outputs=names, cache_in_place=True)
                return model(inputs, *args, **kwargs)
            inputs = self.complete(inputs)
        if names is not None and not self.output.keys() >= set(names):
            # Keras expects that a layer has no more outputs in a call than ``output`` has.
            del kwargs["outputs"]
            model = self._variant(outputs=names)
            return model(inputs, *args, **kwargs)
        return super().__call__(inputs, *args, **kwargs)

    def compute_output_spec(self, inputs, training=None, mask=None, outputs=None):
        return _named(super().compute_output_spec(inputs, training, mask), _names(outputs))

    def call(self, inputs, training=None, mask=None, outputs=None):
        # None would keep the mode in which a variant was made, such as that of a training step.
        training = False if training is None else training
        names = _names(outputs)
        # Keras' sum on TensorFlow takes a tensor (0, width) for a bias.
        empty = inputs["padding_mask"].shape[0] == 0
        leave_out = leaving_padding_out() and self.parts.can_unpad and not empty
        leave_out = leave_out and not self.parts.single_example
        unpadded = self.parts.unpadded or leave_out
        if names is None and unpadded == self.parts.unpadded:
            return super().call(inputs, training=training, mask=mask)
        variant = self._variant(outputs=names, unpadded=unpadded)
        if not (leave_out and names and _branches_for_single_examples(inputs, training)):
            return variant(inputs, training=training)
        single = self._variant(outputs=names, unpadded=False, single_example=True)
        real = inputs["padding_mask"]
        # One example without padding: the mask is at most 1, and the minimum of no mask is larger.
        return ops.cond(
            ops.equal(ops.min(real), ops.shape(real)[0]),
            lambda: single(inputs, training=training),
            lambda: variant(inputs, training=training),
        )

    def complete(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the inputs of this model: others are dropped, and defaults added.

        Raises:
            ValueError: if an input is unknown, or one without a default is missing.
        """
        for name in given:
            if name not in _INPUTS:
                raise ValueError(unknown("input", name, _INPUTS, hint(name)))
        inputs = {}
        for name, spec in self.input.items():
            default = _INPUTS[name]
            if name in given:
                inputs[name] = _tensor(given[name], spec)
            elif default and "token_ids" in given:
                tokens = _tensor(given["token_ids"], self.input["token_ids"])
                inputs[name] = default(tokens, spec)
            else:
                raise ValueError(f"The {self.family} backbone needs the input {name!r}.")
        return inputs

    @property
    def token_inputs(self) -> dict[str, Any]:
        """The inputs (batch, length, …): the token ids and others with a value for each token."""
        return {
            name: spec
            for name, spec in self.input.items()
            if name == "token_ids" or getattr(spec, "ndim", None) == 2
        }

    def weights_of(self, *outputs: str, layers: Sequence[int] = ()) -> list[keras.Variable]:
        """Returns the weights that the named outputs depend on, so no pooler's unless it is named.

        Args:
            outputs: the names of outputs.
            layers: for outputs that are lists, the indices of the tensors that count; none for all.
        """
        tensors = [self.output[name] for name in outputs]
        if layers:
            tensors = [[x[i] for i in layers] if isinstance(x, list) else x for x in tensors]
        return keras.Model(self.input, tensors).weights

    @property
    def max_length(self) -> int | None:
        """Maximum length of an input; None for relative positions, which have no maximum."""
        return getattr(self.config, "max_positions", None)

    def export(self, filepath: Any, format: str = "tf_saved_model", **kwargs: Any) -> None:
        """Exports like ``keras.Model.export``, with the inputs of ``token_inputs``.

        Outputs are single tensors: layer ``i`` of ``hidden_states`` is ``hidden_states_i``.
        """
        inputs = {
            name: keras.Input(spec.shape[1:], dtype=spec.dtype, name=name)
            for name, spec in self.token_inputs.items()
        }
        paths = keras.tree.flatten_with_path(self(inputs))
        outputs = {"_".join(map(str, path)): tensor for path, tensor in paths}
        keras.Model(inputs, outputs, name=self.name).export(filepath, format=format, **kwargs)

    def _run_through_graph(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras' clone_model, which alone passes both functions, clones layer by layer. The layers
        # of a backbone share parts, so it is cloned as a whole.
        if kwargs.keys() >= {"operation_fn", "call_fn"}:
            return kwargs["operation_fn"](self)(inputs)
        return super()._run_through_graph(inputs, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "config": self.config.to_dict(),
            "name": self.name,
            **trainable_config(self),
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "unpadded": self.parts.unpadded,
            "single_example": self.parts.single_example,
            "outputs": self.parts.outputs,
            "cache_in_place": self.parts.cache_in_place,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> Backbone:
        arguments = {**config}
        for key in ("trainable", "frozen", "without_dropout"):
            arguments.pop(key, None)
        backbone = cls(**arguments)
        set_trainable(backbone, config)
        return backbone

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        # Before Keras warns about layers that it does not quantize.
        raise quantization_error(f"The model {self.name!r}")


def trainable_config(model: keras.Model) -> dict[str, Any]:
    """Returns whether a model is trainable, the names of its layers that are not, and the names of
    those among them whose dropout is disabled."""
    frozen = [layer for layer in model.layers if not layer.trainable]
    rates = {layer.name: [dropout.rate for dropout in _dropouts(layer)] for layer in frozen}
    return {
        "trainable": model.trainable,
        "frozen": list(rates),
        "without_dropout": [name for name, each in rates.items() if each and not any(each)],
    }


def set_trainable(model: keras.Model, config: Mapping[str, Any]) -> None:
    """Applies the result of ``trainable_config``; missing entries change nothing."""
    if not config.get("trainable", True):
        model.trainable = False
    for layer in model.layers:
        if layer.name in config.get("frozen", ()):
            layer.trainable = False
        if layer.name in config.get("without_dropout", ()):
            disable_dropout(layer)


def disable_dropout(layer: keras.layers.Layer) -> None:
    """Sets all dropout rates in a layer to 0."""
    for dropout in _dropouts(layer):
        dropout.rate = 0.0


def _dropouts(layer: keras.layers.Layer) -> list[keras.layers.Dropout]:
    return [x for x in layer._flatten_layers() if isinstance(x, keras.layers.Dropout)]


def _names(outputs: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if outputs is None:
        return None
    return (outputs,) if isinstance(outputs, str) else tuple(sorted(set(outputs)))


def _named(outputs: dict[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """Returns the outputs of these names; all for None."""
    if names is None:
        return outputs
    for name in names:
        if name not in outputs:
            raise ValueError(unknown("output", name, outputs))
    return {name: outputs[name] for name in names}


def _branches_for_single_examples(inputs: dict[str, Any], training: Any) -> bool:
    return (
        getattr(_SCOPE, "single_example_branch", False)
        and keras.backend.backend() == "tensorflow"
        and not training
        and inputs["padding_mask"].shape[0] in (None, 1)
    )


def _variant(backbone: Backbone, *, outputs: tuple[str, ...] | None, **options: bool) -> Backbone:
    """Returns a model of the same layers with other options, as ``Backbone`` takes them."""
    parts = backbone.parts
    modes = {
        name: getattr(parts, name) for name in ("unpadded", "single_example", "cache_in_place")
    }
    return Backbone(
        backbone.family,
        backbone.config,
        parts=parts,
        dtype=backbone.dtype_policy,
        outputs=parts.outputs if outputs is None else outputs,
        **{**modes, **options},
    )


def plain_weights(model: keras.layers.Layer) -> dict[str, np.ndarray]:
    """Returns weights by path, with LoRA's updates merged into them."""
    merged = {
        layer._kernel.path: layer.kernel for layer in dense_layers(model) if layer.lora_enabled
    }
    return {
        variable.path: keras.ops.convert_to_numpy(merged.get(variable.path, variable))
        for variable in model.weights
        if not variable.name.startswith("lora_kernel_")
    }


def dense_layers(model: keras.layers.Layer) -> Iterator[keras.layers.Dense]:
    """Returns the dense layers in a model, or in a layer."""
    return (x for x in model._flatten_layers() if isinstance(x, keras.layers.Dense))
