"""Signatures of tasks as traced graphs, and sample inputs for them."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.export.guards import InputLimits, with_input_checks
from bertfam_tf.export.in_graph_batching import BatchingOptions, batch_requests
from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE
from bertfam_tf.export.signatures import packed_value_counts
from bertfam_tf.export.text_model import TextModel
from bertfam_tf.export.weights import StoredWeights
from bertfam_tf.tasks import MultiTask, Task
from bertfam_tf.tasks.components import Signature

EXAMPLES = "inputs"

# Longer than most models take. No part of it repeats: windows with the same tokens would have the
# same scores, and rounding would decide which of their answers is the best.
_LONG = " ".join(random.Random(0).choices(string.ascii_lowercase, k=600)).encode()
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
        limits: the limits of the values of ``inputs``; the graph checks them.
        task: the task that answers.
    """

    function: Any
    inputs: dict[str, tf.TensorSpec]
    signature: Signature
    limits: InputLimits
    task: Task

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the graph in this process: inputs by name to outputs by name."""
        answers = self.function(*(tf.constant(inputs[name]) for name in self.inputs))
        return {name: value.numpy() for name, value in answers.items()}

    @property
    def outputs(self) -> dict[str, tf.TensorSpec]:
        """Shapes and dtypes by name."""
        return self.function.structured_outputs

    def edge_cases(self, max_rows: int) -> list[dict[str, np.ndarray]]:
        """Returns ``edge_case_texts`` as inputs by name, (rows, …), in several requests.

        An example as long as the task takes is a request of its own: padded to it, the others
        would take as long.

        Args:
            max_rows: the largest number of rows of a request.
        """
        texts = edge_case_texts(self.task)
        columns = [x.reshape(len(x), -1) for x in texts.values()]
        long = (np.concatenate(columns, axis=1) == _LONG).any(axis=1)
        short = np.flatnonzero(~long)
        requests = [
            *(short[start : start + max_rows] for start in range(0, len(short), max_rows)),
            *np.flatnonzero(long)[:, np.newaxis],
        ]
        return [self._inputs({name: x[rows] for name, x in texts.items()}) for rows in requests]

    def identical_rows(self, rows: int) -> dict[str, np.ndarray]:
        """Returns ``rows`` copies of one sentence as inputs, for warm-up and as a valid request."""
        return self._inputs(
            {
                name: _column(spec, [_SAMPLES[0]] * rows)
                for name, spec in self.task.feature_specs.items()
            }
        )

    def _inputs(self, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.signature.method != "predict":
            return {EXAMPLES: np.array(examples(texts), object)}
        if self.signature.inputs is None:
            return texts
        if self.signature.of_texts is not None:
            return self.signature.of_texts(texts)
        packed = self.task.encode({name: tf.constant(x) for name, x in texts.items()})
        return {name: packed[name].numpy() for name in self.inputs}


def endpoints(
    task: Task | MultiTask | TextModel,
    weights: StoredWeights,
    batching: BatchingOptions | None,
    **options: Any,
) -> dict[str, Endpoint]:
    """Traces the signatures of a task, or of several; the graphs validate their inputs.

    Args:
        task: the task to export. With several tasks, only signatures that take text are traced: the
            default one gets the task's name, and others append theirs to it.
        weights: the weights that the graphs read.
        batching: batches signatures that take text. Requests of packed ids, and of lists of texts,
            are not batched, because their lengths differ.
        **options: arguments of ``task.signatures``; of one task.

    Returns:
        Signature name to endpoint.
    """
    traced: dict[str, Endpoint] = {}
    for name, member in task.served_tasks().items():
        # The default signature first: classify and regress signatures call its graph.
        default = DEFAULT_SIGNATURE
        listed = sorted(member.signatures(**options).items(), key=lambda x: x[0] != default)
        answer = None
        for key, signature in listed:
            if name and (signature.method != "predict" or key == "ids"):
                continue
            full = "_".join(part for part in (name, "" if name and key == default else key) if part)
            traced[full] = _endpoint(full, member, signature, weights, batching, answer)
            answer = answer or traced[full].function
    return traced


def _endpoint(
    name: str,
    task: Task,
    signature: Signature,
    weights: StoredWeights,
    batching: BatchingOptions | None,
    answer: Any,
) -> Endpoint:
    """Traces one signature; ``answer`` is the traced function of the task's default one."""
    limits = InputLimits()
    if signature.method == "predict":
        inputs = task.feature_specs if signature.inputs is None else signature.inputs
        function = _by_name(signature.function, tuple(inputs), weights)
        one_string_each = all(spec.shape.rank == 1 for spec in inputs.values())
        if batching is not None and (signature.inputs is None or one_string_each):
            function = batch_requests(function, name, batching)
        if signature.inputs is not None and signature.of_texts is None:
            limits = InputLimits(
                packed_value_counts(task), task.backbone.max_length, allow_empty=False
            )
    else:
        inputs = {EXAMPLES: tf.TensorSpec([None], tf.string, EXAMPLES)}
        function = _from_examples(signature.function, task, answer)
    function = with_input_checks(function, inputs, limits)
    traced = tf.function(function, list(inputs.values()), autograph=False)
    return Endpoint(traced.get_concrete_function(), inputs, signature, limits, task)


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
    """Returns texts that cover edge cases, in the task's form: input name to bytes, (6, …).

    They are the inputs on which an export is compared with its task.
    """
    texts = {}
    for shift, (name, spec) in enumerate(task.feature_specs.items()):
        count = int(np.prod(spec.shape[1:]))
        columns = [np.roll(np.array(_SAMPLES, object), shift + i) for i in range(count)]
        rows = np.stack(columns, axis=1).reshape(-1, *spec.shape[1:])
        texts[name] = rows if spec.dtype == tf.string else _column(spec, _SAMPLES)
    return texts


def _column(spec: tf.TensorSpec, texts: list[bytes]) -> np.ndarray:
    """A column of inputs (rows, …): of each row its text, or ones where inputs are numbers."""
    shape = (len(texts), *(size or 1 for size in spec.shape[1:]))
    if spec.dtype != tf.string:
        return np.ones(shape, spec.dtype.as_numpy_dtype)
    columns = np.array(texts, object).reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(columns, shape).copy()


def examples(texts: dict[str, np.ndarray]) -> list[bytes]:
    """Serializes texts (rows, …) as one tf.Example per row, with one feature for each input."""
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
