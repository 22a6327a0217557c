"""Which of Keras' losses and metrics take the labels and logits of a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import keras

_THRESHOLDS = (
    "Accuracy|F1Score|FBetaScore|Precision.*|Recall.*|Sensitivity.*|Specificity.*"
    "|(True|False)(Positives|Negatives)"
)


@dataclass(frozen=True, kw_only=True)
class Compatible:
    """The losses and metrics of Keras that take a task's labels and logits.

    Functions and classes of users, also subclasses of Keras', are never refused.

    Attributes:
        losses, metrics: a pattern of the names of Keras' classes that fit.
        decisions: whether metrics with ``thresholds=0.0``, such as ``Precision``, fit too.
        loss, metric: what an error tells users to write instead.
        instead: the same by the name of the class.
        accuracy: makes the metric ``"accuracy"``, with its name; None for Keras' choice.
        ignore_class: the label that losses must ignore; None if every label counts.
    """

    losses: str
    metrics: str
    loss: str = "None, the task's own loss"
    metric: str
    instead: Mapping[str, str] = field(default_factory=dict)
    accuracy: Callable[[str], keras.metrics.Metric] | None = None
    decisions: bool = False
    ignore_class: int | None = None

    def check(self, name: str, module: str, task: str) -> None:
        """Checks that a class of Keras fits.

        Args:
            name: its name.
            module: ``"losses"`` or ``"metrics"``.
            task: the name of the task, for the error.

        Raises:
            ValueError: if it does not.
        """
        fits, other = (
            (self.losses, self.loss) if module == "losses" else (self.metrics, self.metric)
        )
        if not re.fullmatch(fits, name):
            raise ValueError(
                f"keras.{module}.{name} does not fit the labels and logits of a {task}; use "
                f"{self.instead.get(name, other)}."
            )


def _for_two(name: str) -> str:
    return f'"{name.lower()}" or bertfam_tf.metrics.{name}, for two labels'


# Integers (...), and logits (..., classes).
CLASSES = Compatible(
    losses="SparseCategoricalCrossentropy",
    metrics=r"Sparse\w+|(Mean)?IoU|MeanMetricWrapper",
    loss='"sparse_categorical_crossentropy", or None, the task\'s own loss',
    metric='"accuracy"',
    instead={
        "AUC": _for_two("AUC"),
        "F1Score": _for_two("F1"),
        "FBetaScore": _for_two("F1"),
        "Precision": _for_two("Precision"),
        "Recall": _for_two("Recall"),
        "TopKCategoricalAccuracy": "keras.metrics.SparseTopKCategoricalAccuracy",
    },
    accuracy=keras.metrics.SparseCategoricalAccuracy,
)
# 0 and 1, and logits of the same shape.
DECISIONS = Compatible(
    losses=r"(?!Sparse|CTC|Circle|CategoricalGeneralized)\w+",
    metrics=rf"(?!Sparse|OneHot|({_THRESHOLDS}|(TopK)?Categorical(Accuracy|Hinge)|\w*IoU)$)\w+",
    metric='"micro_f1" or "accuracy"',
    decisions=True,
    accuracy=lambda name: keras.metrics.BinaryAccuracy(name, threshold=0.0),
)
# Numbers (batch,), and as many scores.
NUMBERS = Compatible(
    losses=r"(?!Sparse|Categorical|CTC|Circle|CosineSimilarity|KLDivergence)\w+",
    metrics=rf"(?!Sparse|TopK|Categorical|OneHot|CosineSimilarity|KL|({_THRESHOLDS}|\w*IoU)$)\w+",
    metric='"pearson" or "spearman"',
)
# Numbers for each of several documents, or one.
RELEVANCE = Compatible(
    losses=r"(?!Sparse|CTC|Circle|CategoricalGeneralized)\w+",
    metrics=rf"(?!Sparse|TopK|Categorical|OneHot|({_THRESHOLDS}|\w*IoU)$)\w+",
    metric='"ndcg_10" or "mrr_10"',
)
