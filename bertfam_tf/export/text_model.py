"""A Keras model of raw text, as an export sees a task."""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

import bertfam_tf
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.components import Signature, Tensors
from bertfam_tf.tasks.text_learner import refuse
from bertfam_tf.text.preprocessor import TextPreprocessor

_TEXT = "text"
# Names that Keras makes for inputs without one.
_UNNAMED = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")


class TextModel:
    """A functional or sequential model whose first layer is a ``TextPreprocessor``.

    Inputs have the names that ``keras.Input`` gave them; a single one without a name is ``text``.
    Outputs that are not a dict are ``output_0``, ``output_1``, …, as in ``keras.Model.export``.

    Args:
        model: the model.

    Raises:
        ValueError: for a model without texts, with several tokenizers, texts longer than a
            backbone's positions, inputs that have no names, or outputs without a batch.
    """

    # The model's own answers are compared, and there are no others.
    answers_from_ids = False
    class_names: tuple[str, ...] = ()

    def __init__(self, model: keras.Model):
        self._model = model
        layers = [x for x in model._flatten_layers() if isinstance(x, TextPreprocessor)]
        tokenizers = {id(layer.tokenizer): layer.tokenizer for layer in layers}
        if len(tokenizers) != 1 or not model.built:
            raise ValueError(
                "A model is exported with the tokenizer of its TextPreprocessor layer, expected "
                f"one, got {len(tokenizers)}. keras.Model.export writes a model of other inputs."
            )
        [self.tokenizer] = tokenizers.values()
        longest = max(layer.max_length for layer in layers)
        for backbone in model._flatten_layers():
            positions = backbone.max_length if isinstance(backbone, Backbone) else None
            if positions is not None and longest > positions:
                raise ValueError(
                    f"max_length {longest} of the TextPreprocessor exceeds the {positions} "
                    f"positions of {backbone.name}."
                )
        functional = hasattr(model, "_inputs_struct")
        self._inputs = model.input if functional else model.inputs
        self._outputs = model.output if functional else model.outputs
        self.feature_specs = _specs(keras.tree.flatten(self._inputs))
        self._names = list(self.feature_specs)
        self._output_names = _output_names(self._outputs)

    @property
    def weights(self) -> list[keras.Variable]:
        """The weights of the model."""
        return self._model.weights

    def _flatten_layers(self) -> Any:
        return self._model._flatten_layers()

    @property
    def resources(self) -> tf.Module:
        """Tracks the lookup tables of all layers."""
        module = tf.Module()
        module.layers = list(self._flatten_layers())
        return module

    def served_tasks(self) -> dict[str, Any]:
        """As of a task."""
        return {"": self}

    def describe(self) -> dict[str, Any]:
        """The part of the model card that a task describes."""
        return {
            "bertfam_tf": bertfam_tf.__version__,
            "task": None,
            "model": self._model.name,
            "options": {},
        }

    def signatures(self, **options: Any) -> dict[str, Signature]:
        """The functions of the export by name: ``serving_default``."""
        refuse("export", options, [])
        return {"serving_default": Signature(self.answer)}

    def answer(self, features: Tensors) -> Tensors:
        """Maps the inputs by name, (batch, …), to outputs by name."""
        inputs = keras.tree.pack_sequence_as(self._inputs, [features[n] for n in self._names])
        if isinstance(inputs, list) and len(inputs) == 1:
            [inputs] = inputs
        outputs = keras.tree.flatten(self._model(inputs, training=False))
        return {
            name: tf.cast(x, tf.float32) if x.dtype.is_floating else x
            for name, x in zip(self._output_names, outputs, strict=True)
        }

    def answer_ids(self, inputs: Tensors) -> Tensors:
        """As of a task; a model of texts takes no ids."""
        raise NotImplementedError


def _specs(inputs: list[Any]) -> dict[str, tf.TensorSpec]:
    names = [x.name for x in inputs]
    unnamed = [i for i, name in enumerate(names) if _UNNAMED.fullmatch(name)]
    if len(inputs) == 1 and unnamed:
        names = [_TEXT]
    elif unnamed:
        raise ValueError(
            "Inputs of an export need names, as in keras.Input((), dtype='string', name='text'), "
            f"got {len(inputs)} inputs, {len(unnamed)} of them without one."
        )
    return {
        name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name)
        for name, x in zip(names, inputs, strict=True)
    }


def _output_names(outputs: Any) -> list[str]:
    paths = keras.tree.flatten_with_path(outputs)
    for path, tensor in paths:
        if not tensor.shape or tensor.shape[0] is not None:
            raise ValueError(
                "Outputs of an export have the batch as their first dimension, got the shape "
                f"{tensor.shape} of output {'.'.join(map(str, path)) or 0!r}."
            )
    is_named = isinstance(outputs, dict)
    return ["_".join(map(str, p)) if is_named else f"output_{i}" for i, (p, _) in enumerate(paths)]
