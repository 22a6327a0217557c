"""The components of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.inputs import LABEL
from bertfam_tf.heads import Head
from bertfam_tf.metrics.compatible import Compatible
from bertfam_tf.names import NO_CLASS_WEIGHT, ONE_WEIGHT
from bertfam_tf.objectives.objective import Objective, SumAndCount
from bertfam_tf.tasks.preprocessing import Preprocessor

Tensors = dict[str, tf.Tensor]
NO_LABELS = "No labels were given with the texts."


class Signature(NamedTuple):
    """A signature of an exported SavedModel.

    Attributes:
        function: maps tensors (batch, …) by name to answers (batch, …), whose other dimensions do
            not depend on the batch. If ``method`` is not ``"predict"``, it takes the answers of
            ``serving_default`` instead.
        inputs: the input specs; None for the task's texts, ``feature_specs``.
        method: the method of TensorFlow Serving's API that calls it. Classify and Regress send
            tf.Examples with a feature for each text; ``"classify"`` returns ``classes``, string
            (batch, labels), and ``scores``, float32 (batch, labels), and ``"regress"``
            ``outputs``, float32 (batch,).
        repeatable: whether equal inputs get equal answers.
        of_texts: converts the task's texts, name to array of bytes (rows, …), to ``inputs``, for
            sample requests; None if the inputs are the task's texts.
        answer: the task's function whose answers ``function`` returns among others; None if it is
            ``function`` itself.
    """

    function: Callable[[Tensors], Tensors]
    inputs: dict[str, tf.TensorSpec] | None = None
    method: Literal["predict", "classify", "regress"] = "predict"
    repeatable: bool = True
    of_texts: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    answer: Callable[[Tensors], Tensors] | None = None


def label_vector(labels: Any, of: str = "text") -> np.ndarray:
    """Returns labels as an array (examples,); raises ValueError for any other shape."""
    if labels is None:
        raise ValueError(NO_LABELS)
    values = np.asarray(without_names(labels))
    if values.ndim != 1:
        raise ValueError(f"labels must be a vector, one for each {of}, got shape {values.shape}.")
    return values


def batch_vector(labels: Any) -> Any:
    """Returns labels (batch,) of a data set; raises ValueError for any other shape."""
    if without_names(labels).shape.rank != 1:
        raise ValueError(f"labels must be a vector in each batch, got shape {labels.shape}.")
    return labels


def without_names(labels: Any) -> Any:
    """Returns labels; raises ValueError for a dict of them."""
    if isinstance(labels, Mapping):
        raise ValueError(
            f"labels must be one array or tensor, or a dict of one with the name {LABEL!r}, got a "
            f"dict with {sorted(labels)}."
        )
    return labels


def labels_apart(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns texts and labels, which may have been a column of the texts."""
    if y is not None or not isinstance(x, Mapping) or LABEL not in x:
        return x, y
    return {name: values for name, values in x.items() if name != LABEL}, x[LABEL]


class Targets:
    """Converts labels to targets of the loss. This base class returns labels unchanged.

    Attributes:
        padding: the value at padding, for targets with a value for each token.
        classes: the number of classes, of which each example has one; 0 for other targets.
        compatible: the losses and metrics of Keras that take the targets; None for any.
    """

    padding: int = 0
    classes: int = 0
    compatible: ClassVar[Compatible | None] = None

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Converts the texts and labels of users to arrays or a data set of a single structure."""
        return x, y

    def check(self, y: Any) -> None:
        """Raises ValueError if labels in arrays are invalid; ``y`` is None without labels."""

    def counts(self, y: Any) -> Mapping[str, int]:
        """Counts the examples of each label in arrays that ``check`` accepted; empty if there are
        no names to count."""
        return {}

    def encode(self, labels: Any, encoded: dict[str, Any]) -> Any:
        """Converts a batch's labels to targets, in the graph.

        Args:
            labels: the same as in the data set; None if it has none.
            encoded: the preprocessor's output for the texts.

        Returns:
            The targets; or a tuple of targets and weights, which replace the data set's weights.
        """
        return labels

    def weights(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns sample weights (batch,) in a shape that broadcasts to the losses.

        Raises:
            ValueError: for another shape.
        """
        return one_per_example(weights)

    def class_weights(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Converts ``class_weight`` of ``fit`` to weights by label index.

        Raises:
            ValueError: for an unknown label, or targets that are not one label of each example.
        """
        raise ValueError(NO_CLASS_WEIGHT)


def one_per_example(weights: tf.Tensor) -> tf.Tensor:
    """Returns sample weights (batch,); raises ValueError for another shape."""
    if weights.shape.rank != 1:
        raise ValueError(f"{ONE_WEIGHT}, got shape {weights.shape} in a batch.")
    return weights


class Evaluation(NamedTuple):
    """How ``evaluate`` scores answers, for tasks that do not use Keras' loss and metrics.

    Attributes:
        function: maps a batch ``(features, labels)`` to outputs, as a ``tf.function``.
        score: maps pairs of outputs and their batch to scores by name.
        prepared: the same as ``Targets.prepared``.
    """

    function: Callable[..., Any]
    score: Callable[[Iterable[tuple[Any, tuple]]], dict[str, float]]
    prepared: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class TaskComponents:
    """The components that define a task.

    Attributes:
        inputs, outputs: the Keras model's inputs, packed token ids, and the head's output.
        preprocessor: converts texts to packed token ids.
        postprocess: maps the model's outputs and the preprocessor's output to answers, tensors
            whose dimension 0 is the batch.
        to_python: maps answers and texts to what ``predict`` returns: a list or an array with an
            entry for each example.
        head: the head on the backbone; None if the task has no head with weights.
        source: the name of the backbone's output that ``outputs`` depend on.
        forward: maps packed token ids to outputs; None for the model itself.
        answer_ids: maps outputs and their packed token ids to answers. None for ``postprocess``, if
            answers do not contain parts of the texts.
        predicted: maps texts to answers, for ``to_python``; None for the function that is exported.
        training_preprocessor: the preprocessor for ``fit`` and ``evaluate``; None for the same.
        draws: whether ``training_preprocessor`` takes random seeds, int32 (batch, 2), as well.
        targets: converts labels to targets.
        read: maps outputs of the backbone, by name and among them ``source``, and the model's
            inputs to ``outputs``; None if the model is more than a backbone and its head.
        distributions: maps outputs, the model's inputs and targets (or None) to logits (…,
            classes), and float32 weights (…), 0 for positions that do not count; for a regression,
            ``classes`` is 1. None if the task has no logits.
        loss: maps targets, outputs and sample weights to the sum of losses and their count; None if
            the task has no default loss.
        objectives: the training objectives, if they are not ``loss``.
        metrics, weighted_metrics: create metrics for ``compile``.
        evaluation: scores answers in ``evaluate``; None for the loss and the metrics of Keras.
        signatures: returns additional or replaced signatures of an export; takes keyword
            arguments of ``Task.export``.
        feature_counts: the number of strings per example, for features that have several.
    """

    inputs: dict[str, Any]
    outputs: Any
    preprocessor: Preprocessor
    postprocess: Callable[[Any, dict[str, Any]], Tensors]
    to_python: Callable[[Any, Tensors], list[Any] | np.ndarray]
    head: Head | None = None
    source: str = "sequence_output"
    forward: Callable[[Tensors], Any] | None = None
    answer_ids: Callable[[Any, Tensors], Tensors] | None = None
    predicted: Callable[[Tensors], Any] | None = None
    training_preprocessor: Preprocessor | None = None
    draws: bool = False
    targets: Targets = field(default_factory=Targets)
    read: Callable[[Mapping[str, Any], Tensors], Any] | None = None
    distributions: Callable[[Any, Tensors, Any], tuple[Any, Any]] | None = None
    loss: Callable[[Any, Any, Any], SumAndCount] | None = None
    objectives: tuple[Objective, ...] = ()
    metrics: Callable[[], list[keras.metrics.Metric]] | None = None
    weighted_metrics: Callable[[], list[keras.metrics.Metric]] | None = None
    evaluation: Evaluation | None = None
    signatures: Callable[..., dict[str, Signature]] = lambda: {}
    feature_counts: Mapping[str, int] = field(default_factory=dict)
