"""What a task is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.heads import Head
from bertfam_tf.learner import Objective, SumAndCount
from bertfam_tf.tasks.preprocessing import Preprocessor

Tensors = dict[str, tf.Tensor]
NO_LABELS = "There are no labels beside the texts."


class Signature(NamedTuple):
    """One of an export's functions.

    Fields:
        function: tensors (batch, …) by name to answers, dim 0 of each the batch; widths do not
            depend on which examples stand in a batch. With another ``method`` than ``"predict"``
            it takes the answers of ``serving_default`` instead.
        inputs: what it takes; None for the task's texts, ``feature_specs``.
        method: which of TensorFlow Serving's calls it is for. Classify and Regress send
            tf.Examples with a feature for each text; ``"classify"`` answers ``classes``, string
            (batch, labels), and ``scores``, float32 (batch, labels), and ``"regress"``
            ``outputs``, float32 (batch,).
        repeatable: whether the same input gets the same answer.
    """

    function: Callable[[Tensors], Tensors]
    inputs: dict[str, tf.TensorSpec] | None = None
    method: Literal["predict", "classify", "regress"] = "predict"
    repeatable: bool = True


class Targets:
    """How labels become targets of the loss. This one takes them as they are, or none."""

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Texts and labels as users give them, as arrays or a data set of one shape."""
        return x, y

    def check(self, y: Any) -> None:
        """Raises ValueError for labels in arrays that are not valid; ``y`` is None without any."""

    def encode(self, labels: Any, encoded: dict[str, Any]) -> Any:
        """A batch's labels as targets, in the graph.

        Args:
            labels: as the data set has them; None where it has none.
            encoded: what the preprocessor made of the texts.

        Returns:
            the targets; or, where the data set's labels and weights are not read, a tuple of
            targets and weights.
        """
        return labels

    def weights(self, weights: tf.Tensor) -> tf.Tensor:
        """Sample weights (batch,) in a shape that goes with that of the losses."""
        return weights

    def class_weights(self, given: Mapping[Any, float]) -> dict[int, float]:
        """The weights that ``fit`` takes, by the labels' indices."""
        return dict(given)


class Evaluation(NamedTuple):
    """How ``evaluate`` scores answers, where it does not take Keras' loss and metrics.

    Fields:
        function: a batch ``(features, labels)``, traced, to what ``score`` reads.
        score: pairs of that, and of the batch, to scores by name.
        prepared: as ``Targets.prepared``.
    """

    function: Callable[..., Any]
    score: Callable[[Iterable[tuple[Any, tuple]]], dict[str, float]]
    prepared: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What tells one task from another.

    Attributes:
        inputs, outputs: of the Keras model, from packed token ids to the head's output.
        preprocessor: texts to packed token ids.
        postprocess: the model's outputs, and what the preprocessor returned, to answers, tensors
            whose dim 0 is the batch.
        to_python: answers, and the texts, to what ``predict`` returns: a list or an array with an
            entry for each example.
        head: None where nothing with weights stands on the backbone.
        source: the backbone's output that ``outputs`` depend on.
        forward: packed token ids to outputs; None for the model itself.
        answer_ids: outputs for packed token ids, and these, to answers. None for ``postprocess``:
            for tasks whose answers are not made of the texts.
        predicted: texts to answers, for ``to_python``; None for the function that is exported.
        training_preprocessor: for ``fit`` and ``evaluate``, where it is another.
        draws: whether that takes ``seeds`` too, int32 (batch, 2), for random numbers.
        targets: how labels become targets.
        loss: targets, outputs and sample weights to a sum of losses and their number; None where
            there is no default.
        objectives: what the model is trained for, where that is not ``loss``.
        metrics, weighted_metrics: make new metrics for ``compile``.
        evaluation: None for the loss and the metrics of Keras.
        signatures: makes further signatures of an export, or replaces some; its arguments are
            arguments of ``Task.export``.
        feature_counts: how many strings each example has of a feature, where it is not one.
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
    loss: Callable[[Any, Any, Any], SumAndCount] | None = None
    objectives: tuple[Objective, ...] = ()
    metrics: Callable[[], list[keras.metrics.Metric]] | None = None
    weighted_metrics: Callable[[], list[keras.metrics.Metric]] | None = None
    evaluation: Evaluation | None = None
    signatures: Callable[..., dict[str, Signature]] = lambda: {}
    feature_counts: Mapping[str, int] = field(default_factory=dict)


def as_text(values: Any) -> list[str]:
    """A vector of byte strings as Python strings."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).tolist()]
