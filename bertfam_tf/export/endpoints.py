"""A task's signatures as graphs, and what to ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.export.batching import BatchingOptions, batched
from bertfam_tf.export.guards import Limits, guarded
from bertfam_tf.export.weights import Weights
from bertfam_tf.serve.servable import DEFAULT_SIGNATURE
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.base import Signature

EXAMPLES = "inputs"

# Plain, empty, long beyond any model, other scripts, special tokens, bytes that are not UTF-8.
_SAMPLES = [
    b"It arrived on time and works well.",
    b"",
    b"word " * 600,
    "Größe, naïve, 日本語, العربية, हिन्दी 🙂".encode(),
    b"[CLS] and [SEP], a [MASK] and a <mask>",
    b"\xff\xfe broken \xc3",
]


class Endpoint(NamedTuple):
    """A signature as a graph.

    Fields:
        function: takes tensors in the order of ``inputs``.
        inputs: what the export's signature takes, by name.
        signature: the task's.
        limits: of the values of ``inputs``, which the graph checks.
    """

    function: Any
    inputs: dict[str, tf.TensorSpec]
    signature: Signature
    limits: Limits

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Its answers in this process."""
        answers = self.function(*(tf.constant(inputs[name]) for name in self.inputs))
        return {name: value.numpy() for name, value in answers.items()}

    @property
    def outputs(self) -> dict[str, tf.TensorSpec]:
        """Its answers' shapes and types."""
        return self.function.structured_outputs


def endpoints(
    task: Task, weights: Weights, batching: BatchingOptions | None, **options: Any
) -> dict[str, Endpoint]:
    """The task's signatures, traced; their graphs refuse inputs that do not fit ``inputs``.

    Args:
        task: what is exported.
        weights: what the graphs read.
        batching: of signatures of texts. Packed rows are as long as each request has them, and
            are not put together.
        **options: of ``task.signatures``.
    """
    found: dict[str, Endpoint] = {}
    # Those of another method hang on it.
    signatures = sorted(task.signatures(**options).items(), key=lambda x: x[0] != DEFAULT_SIGNATURE)
    for name, signature in signatures:
        limits = Limits()
        if signature.method == "predict":
            inputs = task.feature_specs if signature.inputs is None else signature.inputs
            function = _by_name(signature.function, tuple(inputs), weights)
            if batching is not None and signature.inputs is None:
                function = batched(function, name, batching)
            if signature.inputs is not None:
                limits = Limits(task.packed_value_counts, task.backbone.max_length)
        else:
            inputs = {EXAMPLES: tf.TensorSpec([None], tf.string, EXAMPLES)}
            function = _of_examples(signature.function, task, found[DEFAULT_SIGNATURE].function)
        function = guarded(function, inputs, limits)
        traced = tf.function(function, list(inputs.values()), autograph=False)
        found[name] = Endpoint(traced.get_concrete_function(), inputs, signature, limits)
    return found


def _by_name(function: Callable, names: tuple[str, ...], weights: Weights) -> Callable:
    def answer(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        with weights.used():
            return function(dict(zip(names, tensors, strict=True)))

    return answer


def _of_examples(view: Callable, task: Task, answer: Any) -> Callable:
    features = {
        name: tf.io.FixedLenFeature(spec.shape[1:], tf.string)
        for name, spec in task.feature_specs.items()
    }

    def function(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = tf.io.parse_example(examples, features)
        return view(answer(*(texts[name] for name in features)))

    return function


def hard_texts(task: Task) -> dict[str, np.ndarray]:
    """Texts of all kinds, bytes, as the task takes them: what an export is compared on."""
    texts = {}
    for turned, (name, spec) in enumerate(task.feature_specs.items()):
        count = int(np.prod(spec.shape[1:]))
        columns = [np.roll(np.array(_SAMPLES, object), turned + i) for i in range(count)]
        texts[name] = np.stack(columns, axis=1).reshape(-1, *spec.shape[1:])
    return texts


class Questions:
    """Inputs for each signature of a task."""

    def __init__(self, task: Task):
        self._task = task
        self._specs = task.feature_specs

    def hard(self, endpoint: Endpoint) -> dict[str, np.ndarray]:
        """Texts of all kinds, what an export is compared on."""
        return self._for(endpoint, hard_texts(self._task))

    def plain(self, endpoint: Endpoint, rows: int) -> dict[str, np.ndarray]:
        """As many rows of one sentence, which a server warms up with."""
        texts = {
            name: np.full((rows, *spec.shape[1:]), _SAMPLES[0], object)
            for name, spec in self._specs.items()
        }
        return self._for(endpoint, texts)

    def _for(self, endpoint: Endpoint, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if endpoint.signature.method != "predict":
            return {EXAMPLES: np.array(examples(texts), object)}
        if endpoint.signature.inputs is None:
            return texts
        packed = self._task.preprocess({name: tf.constant(x) for name, x in texts.items()})
        return {name: packed[name].numpy() for name in endpoint.inputs}


def examples(texts: dict[str, np.ndarray]) -> list[bytes]:
    """Serialized tf.Examples, one for each row, with the texts as features."""
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    name: tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=values[row : row + 1].ravel().tolist())
                    )
                    for name, values in texts.items()
                }
            )
        ).SerializeToString()
        for row in range(len(next(iter(texts.values()))))
    ]
