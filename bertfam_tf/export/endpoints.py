"""A task's signatures as traced graphs, and sample inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.export.guards import InputLimits, with_input_checks
from bertfam_tf.export.in_graph_batching import BatchingOptions, batch_requests
from bertfam_tf.export.weights import StoredWeights
from bertfam_tf.serve.servable import DEFAULT_SIGNATURE
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.parts import Signature

EXAMPLES = "inputs"

# Longer than any model takes.
_LONG = b"word " * 600
# Plain, empty, long, other scripts, special tokens, invalid UTF-8.
_SAMPLES = [
    b"It arrived on time and works well.",
    b"",
    _LONG,
    "Größe, naïve, 日本語, العربية, हिन्दी 🙂".encode(),
    b"[CLS] and [SEP], a [MASK] and a <mask>",
    b"\xff\xfe broken \xc3",
]


class Endpoint(NamedTuple):
    """A signature as a traced graph.

    Fields:
        function: a concrete function that takes tensors in the order of ``inputs``.
        inputs: shapes and dtypes by name.
        signature: the task's signature.
        limits: of the values of ``inputs``; the graph checks them.
    """

    function: Any
    inputs: dict[str, tf.TensorSpec]
    signature: Signature
    limits: InputLimits

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the graph in this process: inputs by name to outputs by name."""
        answers = self.function(*(tf.constant(inputs[name]) for name in self.inputs))
        return {name: value.numpy() for name, value in answers.items()}

    @property
    def outputs(self) -> dict[str, tf.TensorSpec]:
        """Shapes and dtypes by name."""
        return self.function.structured_outputs


def endpoints(
    task: Task, weights: StoredWeights, batching: BatchingOptions | None, **options: Any
) -> dict[str, Endpoint]:
    """Traces the task's signatures; the graphs validate their inputs.

    Args:
        task: the task to export.
        weights: the weights that the graphs read.
        batching: for signatures that take text. Requests of packed ids are not batched, because
            their lengths differ.
        **options: arguments of ``task.signatures``.

    Returns:
        Signature name to endpoint.
    """
    found: dict[str, Endpoint] = {}
    # The default signature first: classify and regress signatures call its graph.
    signatures = sorted(task.signatures(**options).items(), key=lambda x: x[0] != DEFAULT_SIGNATURE)
    for name, signature in signatures:
        limits = InputLimits()
        if signature.method == "predict":
            inputs = task.feature_specs if signature.inputs is None else signature.inputs
            function = _by_name(signature.function, tuple(inputs), weights)
            if batching is not None and signature.inputs is None:
                function = batch_requests(function, name, batching)
            if signature.inputs is not None and signature.of_texts is None:
                limits = InputLimits(task.packed_value_counts, task.backbone.max_length)
        else:
            inputs = {EXAMPLES: tf.TensorSpec([None], tf.string, EXAMPLES)}
            function = _from_examples(signature.function, task, found[DEFAULT_SIGNATURE].function)
        function = with_input_checks(function, inputs, limits)
        traced = tf.function(function, list(inputs.values()), autograph=False)
        found[name] = Endpoint(traced.get_concrete_function(), inputs, signature, limits)
    return found


def _by_name(function: Callable, names: tuple[str, ...], weights: StoredWeights) -> Callable:
    def answer(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        with weights.substituted():
            return function(dict(zip(names, tensors, strict=True)))

    return answer


def _from_examples(view: Callable, task: Task, answer: Any) -> Callable:
    features = {
        name: tf.io.FixedLenFeature(spec.shape[1:], tf.string)
        for name, spec in task.feature_specs.items()
    }

    def function(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = tf.io.parse_example(examples, features)
        return view(answer(*(texts[name] for name in features)))

    return function


def edge_case_texts(task: Task) -> dict[str, np.ndarray]:
    """Texts that cover edge cases, as the task takes them: input name to bytes, (6, …).

    They are the inputs on which an export is compared with its task.
    """
    texts = {}
    for shift, (name, spec) in enumerate(task.feature_specs.items()):
        count = int(np.prod(spec.shape[1:]))
        columns = [np.roll(np.array(_SAMPLES, object), shift + i) for i in range(count)]
        texts[name] = np.stack(columns, axis=1).reshape(-1, *spec.shape[1:])
    return texts


class SampleInputs:
    """Sample inputs for each signature of a task: input name to array, (rows, …).

    Args:
        task: the task.
    """

    def __init__(self, task: Task):
        self.task = task
        self._specs = task.feature_specs

    def edge_cases(self, endpoint: Endpoint) -> list[dict[str, np.ndarray]]:
        """The texts of ``edge_case_texts``, as the signature takes them, in several requests.

        An example as long as the task takes is a request of its own: padded to it, the others
        would take as long.
        """
        texts = edge_case_texts(self.task)
        columns = [x.reshape(len(x), -1) for x in texts.values()]
        long = (np.concatenate(columns, axis=1) == _LONG).any(axis=1)
        requests = [np.flatnonzero(~long), *np.flatnonzero(long)[:, np.newaxis]]
        return [
            self._for(endpoint, {name: x[rows] for name, x in texts.items()}) for rows in requests
        ]

    def identical_rows(self, endpoint: Endpoint, rows: int) -> dict[str, np.ndarray]:
        """``rows`` copies of one sentence, for warm-up and as a valid request."""
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
        if endpoint.signature.of_texts is not None:
            return endpoint.signature.of_texts(texts)
        packed = self.task.encode({name: tf.constant(x) for name, x in texts.items()})
        return {name: packed[name].numpy() for name in endpoint.inputs}


def examples(texts: dict[str, np.ndarray]) -> list[bytes]:
    """Serialized tf.Examples, one for each row of texts (rows, …), one feature for each input."""
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
