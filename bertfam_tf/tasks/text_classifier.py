"""Classification of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import as_text
from bertfam_tf.data.labels import decoded, index_of, not_listed
from bertfam_tf.metrics.compatible import CLASSES
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import (
    Signature,
    Targets,
    TaskComponents,
    Tensors,
    batch_vector,
    label_vector,
)
from bertfam_tf.tasks.options import (
    LoadingArguments,
    Options,
    PairArguments,
    PairOptions,
    classes,
    names,
    option,
)
from bertfam_tf.tasks.preprocessing import SingleRow
from bertfam_tf.tasks.pretrained import checked_labels
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import mean_loss
from bertfam_tf.user_warnings import warn


@dataclass(frozen=True)
class ClassifierOptions(PairOptions):
    """Options of tasks with labels for a text."""

    labels: Sequence[str] | int = classes()

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", checked_labels(self.labels))


@dataclass(frozen=True)
class SingleLabelOptions(ClassifierOptions):
    """Options of ``TextClassifier``."""

    temperature: float = option(1.0, settable=True, kw_only=True, above=0)


class SingleLabelArguments(PairArguments, total=False):
    """``SingleLabelOptions`` as keyword arguments."""

    temperature: float


class PretrainedSingleLabelArguments(SingleLabelArguments, LoadingArguments, total=False):
    """Keyword arguments of ``TextClassifier.from_pretrained``."""


class TextClassifier(Task):
    """One label of a fixed list for each text or pair of texts.

    ``predict`` returns for each text ``{"label": str, "scores": float32 array in the order of
    labels}``, as the exported model answers over HTTP. ``fit`` takes labels by name or index; with
    two labels, False and True are the first and the second. ``evaluate`` returns the loss and the
    accuracy, and ``compile`` accepts the metrics ``"f1"`` and ``"matthews"`` for two labels.

    Args:
        backbone: an encoder; with a pooler if its family classifies with it.
        tokenizer: its tokenizer.
        labels: names of the classes, in the order of the scores; or their number, for
            ``LABEL_0``, ``LABEL_1`` and so on.
        temperature: divides the logits before the softmax, which calibrates the scores (Guo et al.
            2017, arXiv 1706.04599); see ``calibrate``.
        pair: whether an example has the optional text; None decides by the first data.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for fewer than two labels, a repeated one, or a backbone without the pooler that
            it classifies with; and for the reasons of ``Task``.
    """

    options_type: ClassVar[type[Options]] = SingleLabelOptions
    pipeline_tag = "text-classification"
    head_name: ClassVar[str | None] = "sequence"
    labels_type = targets.Name
    problem_type = "single_label_classification"
    ranked_scores = True

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str] | int,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[SingleLabelArguments],
    ):
        super().__init__(backbone, tokenizer, labels, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        labels: Sequence[str] | int | None = None,
        **options: Unpack[PretrainedSingleLabelArguments],
    ) -> Self:
        return super().from_pretrained(path, labels, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        labels = options.labels
        return sequence_parts(
            backbone,
            tokenizer,
            options,
            self,
            len(labels),
            **class_answers(self, labels),
            targets=ClassTargets(labels),
            loss=cross_entropy,
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            signatures=lambda: classify_signature(labels),
        )

    def calibrate(self, x: Any, y: Any = None, *, batch_size: int = 32) -> float:
        """Sets ``temperature`` to the one with the lowest cross-entropy on held-out examples.

        Labels stay the same. ``save`` and ``export`` keep it; ``save_pretrained`` leaves it out,
        because transformers has no such option.

        Args:
            x, y: held-out labelled examples, as ``evaluate`` takes them.
            batch_size: examples in a batch.

        Returns:
            The temperature, from 0.05 to 20.

        Raises:
            ValueError: for a task with several labels per text; and as for ``evaluate``.
        """
        if "temperature" not in names(self.options_type):
            raise ValueError(f"{type(self).__name__} has no temperature.")
        logits_of = tf.function(lambda inputs: self(inputs, training=False), autograph=False)
        logits, labels = [], []
        for batch in self.text_batches(x, y, batch_size=batch_size):
            logits.append(np.asarray(logits_of(batch[0]), "float64"))
            labels.append(np.asarray(batch[1]))
        self.temperature = best_temperature(np.concatenate(logits), np.concatenate(labels))
        return self.temperature


def best_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature with the lowest cross-entropy, from 0.05 to 20.

    Args:
        logits: float (examples, classes).
        labels: int (examples,).
    """

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        shifted = scaled - scaled.max(axis=1, keepdims=True)
        normalizer = np.log(np.exp(shifted).sum(axis=1))
        return float((normalizer - shifted[np.arange(len(labels)), labels]).mean())

    # The loss has one minimum in the reciprocal of the temperature: golden-section search.
    low, high = np.log(0.05), np.log(20.0)
    ratio = (np.sqrt(5) - 1) / 2
    while high - low > 1e-4:
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, second) if loss(first) < loss(second) else (first, high)
    return float(np.exp((low + high) / 2))


def sequence_parts(
    backbone: Backbone, tokenizer: Tokenizer, options: Any, task: Task, scores: int, **parts: Any
) -> TaskComponents:
    """Returns the components of a task with one vector of scores per text or pair of texts.

    Args:
        backbone, tokenizer, options: the same as for ``Task.parts``.
        task: the task, which names the head.
        scores: the number of the head's outputs.
        **parts: the other components.
    """
    head = heads.build(backbone, task.head_name or "", scores)
    inputs = backbone.token_inputs
    return TaskComponents(
        inputs=inputs,
        outputs=head(backbone(inputs, outputs=head.reads)),  # (batch, scores)
        read=lambda outputs, _: head(outputs),
        head=head,
        source=head.reads,
        preprocessor=SingleRow(backbone, tokenizer, options, task.fields),
        **{"distributions": one_distribution, **parts},
    )


def class_answers(task: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Returns the components ``postprocess`` and ``to_python`` of a task with one label for a text.

    Args:
        task: the task, whose ``options.temperature`` divides the logits.
        labels: their names, in order.
    """

    def answer(logits: tf.Tensor, encoded: dict[str, Any]) -> Tensors:
        logits = tf.cast(logits, tf.float32) / task.options.temperature
        scores = tf.nn.softmax(logits)  # (batch, labels)
        return {"label": tf.gather(labels, tf.argmax(scores, axis=-1)), "scores": scores}

    return {"postprocess": answer, "to_python": labels_and_scores}


def labels_and_scores(answers: Tensors, texts: Tensors) -> list[dict[str, Any]]:
    """Returns answers ``label`` and ``scores`` as a dict for each text."""
    pairs = zip(as_text(answers["label"]), answers["scores"].numpy(), strict=True)
    return [{"label": label, "scores": scores} for label, scores in pairs]


def one_distribution(logits: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Returns the logits (batch, classes) unchanged, and weights of 1."""
    return logits, keras.ops.ones_like(logits[:, 0], dtype="float32")


def classify_signature(labels: Sequence[str]) -> dict[str, Signature]:
    """Returns the signature ``classify``, the scores of all labels, for TF Serving's Classify."""

    def view(answer: Tensors) -> Tensors:
        scores = answer["scores"]
        return {"classes": tf.broadcast_to(labels, tf.shape(scores)), "scores": scores}

    return {"classify": Signature(view, method="classify")}


def regress_signature() -> dict[str, Signature]:
    """Returns the signature ``regress``, the score, for TF Serving's Regress."""

    def view(answer: Tensors) -> Tensors:
        return {"outputs": answer["score"]}

    return {"regress": Signature(view, method="regress")}


def cross_entropy(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    """Cross-entropy of integer targets (batch,) and logits (batch, classes)."""
    losses = keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    return mean_loss(losses, weights)


class ClassTargets(Targets):
    """Labels by name or index, as int32 (batch,).

    Args:
        labels: their names, in order.
    """

    compatible = CLASSES

    def __init__(self, labels: Sequence[str]):
        self.labels = list(labels)
        self.classes = len(self.labels)

    def check(self, y: Any) -> None:
        values = label_vector(y)
        if not len(values):
            return  # An empty data set has an error of its own.
        if values.dtype.kind == "b":
            wrong = [] if self._names_of_bools else [values[0]]
        elif values.dtype.kind == "f":
            raise ValueError(
                f"labels must be names or indices, got the {values.dtype.name} {values[0]}; "
                "convert whole numbers with astype(int)."
            )
        elif values.dtype.kind in "iu":
            wrong = values[(values < 0) | (values >= len(self.labels))].tolist()
        else:
            known = set(self.labels)
            wrong = [v for v in map(decoded, values) if v not in known]
        if wrong:
            raise ValueError(not_listed(str(wrong[0]), self._known(values.dtype.kind), "label"))
        for index in np.unique(values).tolist() if values.dtype.kind in "iu" else ():
            if str(index) in self.labels and self.labels[index] != str(index):
                warn(
                    f"The integer {index} is read as the index of the label "
                    f"{self.labels[index]!r}; the name {str(index)!r} is a string."
                )
                break

    def counts(self, y: Any) -> dict[str, int]:
        names, numbers = np.unique(np.asarray(y), return_counts=True)
        by_label = dict.fromkeys(self.labels, 0)
        for name, number in zip(names.tolist(), numbers.tolist(), strict=True):
            by_label[self._name_of(name)] += number
        return by_label

    def _name_of(self, label: Any) -> str:
        if isinstance(label, bool):
            return self._names_of_bools[label]
        if isinstance(label, int):
            return self.labels[label]
        return str(decoded(label))

    def encode(self, labels: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        labels = batch_vector(labels)
        if labels.dtype == tf.bool and self._names_of_bools:
            labels = tf.where(labels, *self._names_of_bools[::-1])
        if labels.dtype.is_integer:
            return index_of(tf.strings.as_string(labels), self._known("i"), "label")
        if labels.dtype == tf.string:
            return index_of(labels, self.labels, "label")
        raise ValueError(f"labels must be strings or integers, got {labels.dtype.name}.")

    def class_weights(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        # Keras requires a weight for every class.
        weights = dict.fromkeys(range(len(self.labels)), 1.0)
        for label, weight in class_weight.items():
            if isinstance(label, bool | np.bool_) and self._names_of_bools:
                label = self._names_of_bools[int(label)]
            known = self._known("i" if isinstance(label, int | np.integer) else "U")
            if str(label) not in known:
                raise ValueError(not_listed(str(label), known, "label of class_weight"))
            weights[known.index(str(label))] = float(weight)
        return weights

    @property
    def _names_of_bools(self) -> list[str]:
        """The labels for False and True: labels of these names, else the only two labels."""
        names = ["False", "True"]
        if set(names) <= set(self.labels):
            return names
        return self.labels if len(self.labels) == 2 else []

    def _known(self, kind: str) -> list[str]:
        return [str(i) for i in range(len(self.labels))] if kind in "iu" else self.labels
