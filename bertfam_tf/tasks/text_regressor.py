"""A number for texts and for pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.labels import no_number, numbers_of
from bertfam_tf.metrics import Pearson, Spearman
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Signature
from bertfam_tf.tasks.pretrained import open_task
from bertfam_tf.tasks.sequence import HEAD, SequenceTask
from bertfam_tf.text import Tokenizer


class TextRegressor(SequenceTask):
    """One number for each text or pair of texts, such as how alike two sentences are (STS-B).

    Labels are numbers, or strings that write them. The loss is the mean squared error (BERT's
    fine-tuning of STS-B, arXiv 1810.04805, appendix B.1), the metrics are Pearson's and
    Spearman's correlation.

    Args:
        backbone, tokenizer, pair, max_length, language_id: as for ``TextClassifier``.

    Raises:
        ValueError: as ``SequenceTask`` raises it.
    """

    answer_name = "score"
    problem_type = "regression"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            backbone,
            tokenizer,
            1,
            pair=pair,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> TextRegressor:
        """A regressor on a published checkpoint, ready to ``fit`` (or to ``predict``).

        The checkpoint's own head is used when it gives one number; otherwise the head starts at
        random, and a log line says so. Arguments and errors as for
        ``TextClassifier.from_pretrained``.
        """
        return open_task(
            cls,
            HEAD,
            path,
            width=1,
            language=language,
            overrides=overrides,
            pair=pair,
            max_length=max_length,
        )

    def postprocess(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The head's outputs (batch, 1) to ``score`` (batch,), float32."""
        return {"score": tf.cast(outputs[:, 0], tf.float32)}

    def signatures(self) -> dict[str, Signature]:
        """As ``Task.signatures``, and ``regress``, the same scores."""
        regress = Signature(lambda answer: {"outputs": answer["score"]}, method="regress")
        return {**super().signatures(), "regress": regress}

    def predict(self, x: Any, **kwargs: Any) -> np.ndarray:
        """Scores (texts,), float32. Arguments and errors as for ``Task.predict``."""
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> np.ndarray:
        return outputs["score"].numpy()

    def _compile_defaults(self) -> dict[str, Any]:
        return {"loss": keras.losses.MeanSquaredError(), "metrics": [Pearson(), Spearman()]}

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no labels beside the texts.")
        values = np.asarray(y)
        if values.ndim != 1:
            raise ValueError(
                f"Labels are a vector, one for each text, not of shape {values.shape}."
            )
        if values.dtype.kind in "iuf":
            wrong = values[~np.isfinite(values)]
        else:
            wrong = np.array([v for v in values if not isinstance(v, str | bytes | float)], object)
        if wrong.size:
            raise ValueError(no_number(str(wrong[0]), "label"))

    def _encode_labels(self, y: tf.Tensor) -> tf.Tensor:
        if y.shape.rank != 1:
            raise ValueError(f"Labels are a vector in each batch, not of shape {y.shape}.")
        return numbers_of(y, "label")
