"""Regression on texts and on pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data import targets
from bertfam_tf.data.labels import floats_of, not_a_number, numbers_of
from bertfam_tf.metrics import Pearson, Spearman
from bertfam_tf.metrics.compatible import NUMBERS
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import (
    Targets,
    TaskComponents,
    batch_vector,
    label_vector,
    labels_apart,
)
from bertfam_tf.tasks.options import PairArguments, PairOptions, PretrainedPairArguments
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.text_classifier import regress_signature, sequence_parts
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import mean_loss


class TextRegressor(Task):
    """One number for each text or pair of texts, such as the similarity of two sentences (STS-B).

    ``predict`` returns the scores (texts,), float32. Labels are numbers, or strings that contain
    numbers. The loss is the mean squared error (BERT's fine-tuning of STS-B, arXiv 1810.04805,
    appendix B.1), the metrics are Pearson's and Spearman's correlation.

    Args:
        backbone: an encoder; with a pooler if its family classifies with it.
        tokenizer: its tokenizer.
        pair: whether an example has the optional text; None decides by the first data.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for a backbone without the pooler that its family classifies with; and as
            ``Task`` raises it.
    """

    options_type = PairOptions
    pipeline_tag = "text-classification"
    head_name = "sequence"
    answer_name = "score"
    labels_type = targets.Number
    problem_type = "regression"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[PairArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Unpack[PretrainedPairArguments]) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        return sequence_parts(
            backbone,
            tokenizer,
            options,
            self,
            1,
            postprocess=lambda scores, _: {"score": tf.cast(scores[:, 0], tf.float32)},
            to_python=lambda answers, _: answers["score"].numpy(),
            targets=NumberTargets(),
            loss=_squared_error,
            metrics=lambda: [Pearson(), Spearman()],
            signatures=regress_signature,
        )


def _squared_error(targets: Any, scores: Any, weights: Any) -> SumAndCount:
    difference = keras.ops.cast(scores[:, 0], "float32") - targets  # (batch,)
    return mean_loss(keras.ops.square(difference), weights)


class NumberTargets(Targets):
    """Numbers, or strings of them, as float32 (batch,)."""

    compatible = NUMBERS

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        x, y = labels_apart(x, y)
        return x, floats_of(y)

    def check(self, y: Any) -> None:
        values = label_vector(y)
        if values.dtype.kind in "iuf":
            wrong = values[~np.isfinite(values)]
        else:
            wrong = np.array([v for v in values if not isinstance(v, str | bytes | float)], object)
        if wrong.size:
            raise ValueError(not_a_number(str(wrong[0]), "label"))

    def encode(self, labels: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        return numbers_of(batch_vector(labels), "label")
