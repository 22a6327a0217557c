"""Any number of labels for texts and for pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.batching import LABEL
from bertfam_tf.data.labels import index_of, not_listed
from bertfam_tf.metrics import MicroF1
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.text_classifier import TextClassifier
from bertfam_tf.text import Tokenizer

_SHAPES = (
    "a matrix of 0 and 1 (texts, labels), a pandas.DataFrame of them with a column for each "
    "label, a list of names for each text, or strings of names joined by ','"
)


class MultiLabelClassifier(TextClassifier):
    """Those labels of a fixed list that hold for each text or pair of texts; each on its own.

    What is given as labels is a matrix of 0 and 1 (texts, labels), a ``pandas.DataFrame`` of them
    with a column for each label, a list of lists of names, or
    strings of names joined by ``","`` (``""`` for none), the last two in data sets as well. The
    loss is the binary cross-entropy of each label, the metric the micro-averaged F1.

    Args:
        backbone, tokenizer, labels, pair, max_length, language_id: as for ``TextClassifier``.
        threshold: the least score of a label that is chosen.

    Raises:
        ValueError: as ``TextClassifier`` raises it, and for a threshold outside of 0 to 1.
    """

    problem_type = "multi_label_classification"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        threshold: float = 0.5,
        **kwargs: Any,
    ):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is a probability, not {threshold!r}.")
        super().__init__(backbone, tokenizer, labels, **kwargs)
        self.threshold = threshold

    def postprocess(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits (batch, labels) to ``scores``, float32, and ``chosen``, bool, of that shape."""
        scores = tf.sigmoid(tf.cast(outputs, tf.float32))
        return {"scores": scores, "chosen": scores >= self.threshold}

    def predict(self, x: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """For each text ``{"labels": list of str, "scores": float32 array of all labels}``.

        Arguments and errors as for ``Task.predict``.
        """
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
        return [
            {
                "labels": [n for n, yes in zip(self.labels, chosen, strict=True) if yes],
                "scores": scores,
            }
            for chosen, scores in zip(
                outputs["chosen"].numpy(), outputs["scores"].numpy(), strict=True
            )
        ]

    def _compile_defaults(self) -> dict[str, Any]:
        return {
            "loss": keras.losses.BinaryCrossentropy(from_logits=True),
            "metrics": [MicroF1(self.threshold)],
        }

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "threshold": self.threshold}

    def _encoded(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        # Lists of names differ in length, which arrays cannot.
        if y is None and isinstance(x, Mapping) and LABEL in x:
            x, y = {k: v for k, v in x.items() if k != LABEL}, x[LABEL]
        if isinstance(y, Mapping):  # a DataFrame's columns
            missing = [label for label in self.labels if label not in y]
            if missing or len(y) > len(self.labels):
                raise ValueError(f"Columns are the labels, {self.labels}, not {list(y)}.")
            y = np.stack([np.asarray(y[label]) for label in self.labels], axis=1)
        if isinstance(y, list | tuple) and any(isinstance(row, list | tuple) for row in y):
            y = self._matrix(y)
        return super()._encoded(x, y, *args, **kwargs)

    def _matrix(self, rows: Sequence[Any]) -> np.ndarray:
        """A list of lists as a matrix: of names, or of 0 and 1."""
        if not any(isinstance(value, str | bytes) for row in rows for value in row) and any(rows):
            return np.array(rows, "float32") if len(set(map(len, rows))) == 1 else np.array([[2]])
        places = {label: i for i, label in enumerate(self.labels)}
        found = np.zeros((len(rows), len(places)), "float32")
        for row, names in zip(found, rows, strict=True):
            for name in names:
                name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
                if name not in places:
                    raise ValueError(not_listed(str(name), self.labels, "label"))
                row[places[name]] = 1
        return found

    def _weights_in_order(self, given: Any) -> Any:
        raise ValueError("class_weight is for one label of each text; there may be several here.")

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no labels beside the texts.")
        values = np.asarray(y)
        if values.ndim == 2 and values.dtype.kind in "biuf":
            if values.shape[1] != len(self.labels) or not np.isin(values, (0, 1)).all():
                raise ValueError(f"Labels are {_SHAPES}; not this matrix of {values.shape}.")
        elif values.ndim != 1 or not all(isinstance(v, str | bytes) for v in values):
            raise ValueError(f"Labels are {_SHAPES}, not {values.dtype.name} {values.shape}.")

    def _encode_labels(self, y: tf.Tensor) -> tf.Tensor:
        if y.dtype == tf.string and y.shape.rank == 1:
            return self._of_names(tf.strings.split(y, ","))
        if isinstance(y, tf.RaggedTensor) and y.dtype == tf.string:
            return self._of_names(y)
        if y.dtype == tf.string or y.shape.rank != 2 or y.shape[1] not in (None, len(self.labels)):
            raise ValueError(f"Labels are {_SHAPES}, not {y.dtype.name} {y.shape} in a batch.")
        return tf.cast(y, tf.float32)

    def _of_names(self, names: tf.RaggedTensor) -> tf.Tensor:
        """Ragged (batch, (names)) to 0 and 1, float32 (batch, labels)."""
        texts = tf.strings.strip(names.values)
        there = texts != ""
        index = index_of(tf.boolean_mask(texts, there), self.labels, "label")
        rows = tf.cast(tf.boolean_mask(names.value_rowids(), there), tf.int32)
        shape = [tf.cast(names.nrows(), tf.int32), len(self.labels)]
        counts = tf.scatter_nd(tf.stack([rows, index], 1), tf.ones_like(index, tf.float32), shape)
        return tf.minimum(counts, 1.0)
