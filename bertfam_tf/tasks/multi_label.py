"""Multi-label classification of texts and of pairs of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data import targets
from bertfam_tf.data.labels import decoded, index_of, not_listed
from bertfam_tf.metrics import MicroF1
from bertfam_tf.metrics.compatible import DECISIONS
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import (
    NO_LABELS,
    Targets,
    TaskComponents,
    Tensors,
    labels_apart,
    without_names,
)
from bertfam_tf.tasks.options import LoadingArguments, PairArguments, option
from bertfam_tf.tasks.text_classifier import (
    ClassifierOptions,
    TextClassifier,
    classify_signature,
    sequence_parts,
)
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import mean_loss
from bertfam_tf.validation import check

_SHAPES = (
    "a matrix of 0 and 1 (texts, labels), a pandas.DataFrame of them with a column for each "
    "label, a list of names for each text, or strings of names joined by ','"
)


@dataclass(frozen=True)
class MultiLabelOptions(ClassifierOptions):
    """Options of ``MultiLabelClassifier``."""

    threshold: float = option(0.5, settable=True, kw_only=True, at_least=0, at_most=1)


class MultiLabelArguments(PairArguments, total=False):
    """``MultiLabelOptions`` as keyword arguments."""

    threshold: float


class PretrainedMultiLabelArguments(MultiLabelArguments, LoadingArguments, total=False):
    """Keyword arguments of ``MultiLabelClassifier.from_pretrained``."""


class MultiLabelClassifier(TextClassifier):
    """Any number of labels of a fixed list for each text or pair of texts, each independent.

    ``predict`` returns for each text ``{"labels": list of str, "scores": float32 array of all
    labels}``. Labels are given as a matrix of 0 and 1 (texts, labels), a ``pandas.DataFrame`` of
    them with a column for each label, a list of lists of names, or strings of names joined by
    ``","`` (``""`` for none), the last two in data sets as well. The loss is the binary
    cross-entropy of each label, the metric the micro-averaged F1.

    Args:
        backbone: an encoder; with a pooler if its family classifies with it.
        tokenizer: its tokenizer.
        labels: names of the classes, in the order of the scores; or their number, for
            ``LABEL_0``, ``LABEL_1`` and so on.
        pair: whether an example has the optional text; None decides by the first data.
        threshold: the lowest score of a label that is chosen.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: as ``TextClassifier`` raises it, and for a threshold outside of 0 to 1.
    """

    options_type = MultiLabelOptions
    labels_type = targets.Names  # type: ignore[assignment]
    problem_type = "multi_label_classification"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str] | int,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[MultiLabelArguments],
    ):
        super().__init__(  # type: ignore[misc]  # has no temperature
            backbone, tokenizer, labels, language_id=language_id, name=name, **options
        )

    @classmethod
    def from_pretrained(  # type: ignore[override]  # has no temperature
        cls,
        path: str | Path,
        labels: Sequence[str] | int | None = None,
        **options: Unpack[PretrainedMultiLabelArguments],
    ) -> Self:
        return super().from_pretrained(path, labels, **options)  # type: ignore[misc]

    @property
    def threshold(self) -> float:
        """The lowest score of a label that is chosen. A micro-averaged F1 that was compiled with
        the same threshold changes with it."""
        return self.options.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        options = dataclasses.replace(self.options, threshold=float(value))
        check(options)
        chosen = self._compile_metrics
        compiled = chosen and (chosen._user_metrics, chosen._user_weighted_metrics)
        for metric in keras.tree.flatten(compiled):
            if isinstance(metric, MicroF1) and metric.threshold == self.threshold:
                metric.threshold = options.threshold
        self.options = options
        # Their graphs have the threshold of the metric as a constant.
        self.train_function = self.test_function = None
        self.forget_graphs()

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        labels = options.labels

        def answer(logits: tf.Tensor, encoded: dict[str, Any]) -> Tensors:
            scores = tf.sigmoid(tf.cast(logits, tf.float32))  # (batch, labels)
            return {"scores": scores, "chosen": scores >= self.options.threshold}

        def to_python(answers: Tensors, texts: Tensors) -> list[dict[str, Any]]:
            columns = answers["chosen"].numpy(), answers["scores"].numpy()
            return [
                {
                    "labels": [name for name, yes in zip(labels, chosen, strict=True) if yes],
                    "scores": scores,
                }
                for chosen, scores in zip(*columns, strict=True)
            ]

        return sequence_parts(
            backbone,
            tokenizer,
            options,
            self,
            len(labels),
            postprocess=answer,
            to_python=to_python,
            targets=MultiLabelTargets(labels),
            distributions=_by_label,
            loss=_binary_cross_entropy,
            metrics=lambda: [MicroF1(self.options.threshold)],
            signatures=lambda: classify_signature(labels),
        )


def _by_label(logits: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """One binary distribution per label: logits (batch, labels, 2), and weights of 1."""
    both = keras.ops.stack([logits, keras.ops.zeros_like(logits)], axis=-1)
    return both, keras.ops.ones_like(logits, dtype="float32")


def _binary_cross_entropy(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    targets = keras.ops.cast(targets, logits.dtype)
    losses = keras.ops.binary_crossentropy(targets, logits, from_logits=True)  # (batch, labels)
    return mean_loss(keras.ops.mean(losses, axis=-1), weights)


class MultiLabelTargets(Targets):
    """Labels in any of the shapes that the class lists, as float32 0 and 1 (batch, labels).

    Args:
        labels: their names, in order.
    """

    compatible = DECISIONS

    def __init__(self, labels: Sequence[str]):
        self.labels = list(labels)

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        # Lists of names differ in length, which arrays cannot.
        x, y = labels_apart(x, y)
        if isinstance(y, Mapping):  # a DataFrame's columns
            missing = [label for label in self.labels if label not in y]
            if missing or len(y) > len(self.labels):
                raise ValueError(f"Columns must be the labels, {self.labels}, got {list(y)}.")
            y = np.stack([np.asarray(y[label]) for label in self.labels], axis=1)
        lists = list | tuple | np.ndarray
        if isinstance(y, list | tuple) and any(isinstance(row, lists) for row in y):
            y = self._matrix(y)
        return x, y

    def check(self, y: Any) -> None:
        if y is None:
            raise ValueError(NO_LABELS)
        values = np.asarray(y)
        if values.ndim == 2 and values.dtype.kind in "biuf":
            if values.shape[1] != len(self.labels) or not np.isin(values, (0, 1)).all():
                raise ValueError(f"labels must be {_SHAPES}, got a matrix of {values.shape}.")
        elif values.ndim != 1 or not all(isinstance(v, str | bytes) for v in values):
            raise ValueError(f"labels must be {_SHAPES}, got {values.dtype.name} {values.shape}.")

    def counts(self, y: Any) -> dict[str, int]:
        if np.ndim(y) != 2:
            return {}
        return dict(zip(self.labels, np.sum(y, axis=0).astype(int).tolist(), strict=True))

    def encode(self, labels: Any, encoded: dict[str, Any]) -> tf.Tensor:
        count = len(self.labels)
        if without_names(labels).dtype == tf.string and labels.shape.rank == 1:
            return self._of_names(tf.strings.split(labels, ","))
        if isinstance(labels, tf.RaggedTensor) and labels.dtype == tf.string:
            return self._of_names(labels)
        shape = labels.shape
        if labels.dtype == tf.string or shape.rank != 2 or shape[1] not in (None, count):
            raise ValueError(
                f"labels must be {_SHAPES}, got {labels.dtype.name} {shape} in a batch."
            )
        return tf.cast(labels, tf.float32)

    def _matrix(self, examples: Sequence[Any]) -> np.ndarray:
        """A list of lists as a matrix: of names, or of 0 and 1."""
        by_name = any(isinstance(value, str | bytes) for labels in examples for value in labels)
        if not by_name and any(map(len, examples)):
            same_length = len(set(map(len, examples))) == 1
            return np.array(examples, "float32") if same_length else np.array([[2]])
        places = {label: i for i, label in enumerate(self.labels)}
        vectors = np.zeros((len(examples), len(places)), "float32")
        for row, names in zip(vectors, examples, strict=True):
            for name in names:
                name = decoded(name)
                if name not in places:
                    raise ValueError(not_listed(str(name), self.labels, "label"))
                row[places[name]] = 1
        return vectors

    def _of_names(self, names: tf.RaggedTensor) -> tf.Tensor:
        """Ragged (batch, (names)) to 0 and 1, float32 (batch, labels)."""
        texts = tf.strings.strip(names.values)
        is_name = texts != ""
        index = index_of(tf.boolean_mask(texts, is_name), self.labels, "label")
        rows = tf.cast(tf.boolean_mask(names.value_rowids(), is_name), tf.int32)
        shape = [tf.cast(names.nrows(), tf.int32), len(self.labels)]
        counts = tf.scatter_nd(tf.stack([rows, index], 1), tf.ones_like(index, tf.float32), shape)
        return tf.minimum(counts, 1.0)
