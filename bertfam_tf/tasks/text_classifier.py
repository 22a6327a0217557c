"""Labels for texts and for pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.labels import index_of, not_listed
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Signature, as_text
from bertfam_tf.tasks.pretrained import checked_labels, open_labelled_task
from bertfam_tf.tasks.sequence import HEAD, SequenceTask
from bertfam_tf.text import Tokenizer


class TextClassifier(SequenceTask):
    """One label of a fixed list for each text or pair of texts.

    Args:
        backbone: an encoder; with a pooler where its family classifies with that.
        tokenizer: its tokenizer.
        labels: names of the classes; their order is that of the scores.
        pair: whether an input is two texts; None decides at the first data seen.
        max_length: most tokens of an input; longer ones are cut. None for all positions.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    ``compile`` takes ``"f1"`` and ``"matthews"`` among the metrics of two labels.

    Raises:
        ValueError: for fewer than two labels, a repeated one, or a backbone without the pooler that
            it classifies with.
    """

    problem_type = "single_label_classification"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        labels = checked_labels(labels)
        super().__init__(
            backbone,
            tokenizer,
            len(labels),
            pair=pair,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.labels = labels

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        labels: Sequence[str] | None = None,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> TextClassifier:
        """A classifier on a published checkpoint, ready to ``fit`` (or to ``predict``).

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            labels: names of the classes; None takes those stored with the checkpoint's head.
            pair: whether an input is two texts; None decides at the first data seen.
            max_length: most tokens of an input.
            language: code of the texts' language, such as ``"de"``, for checkpoints of XLM, or its
                number where they name none; None for their tokenizer's.
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        The checkpoint's own head is used when it has one for the same labels; otherwise the head
        starts at random, and a log line says so.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: when ``labels`` are needed or not valid, or the tokenizer's files are not.
        """
        return open_labelled_task(
            cls,
            HEAD,
            path,
            labels,
            language=language,
            overrides=overrides,
            pair=pair,
            max_length=max_length,
        )

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        class_weight: Mapping[str | int, float] | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """As ``Task.fit``.

        Args:
            class_weight: how much a row of each label counts, by its name or number; 1 for those
                that are left out.

        Raises:
            ValueError: as ``Task.fit``, for a weight of a label that is not in the list, and for
                sample weights beside class weights.
        """
        if class_weight is not None:
            kwargs["class_weight"] = self._weights_in_order(class_weight)
        return super().fit(x, y, **kwargs)

    def _weights_in_order(self, given: Mapping[str | int, float]) -> dict[int, float]:
        # Keras wants a weight for every number.
        weights = dict.fromkeys(range(len(self.labels)), 1.0)
        for label, weight in given.items():
            known = self._known("i" if isinstance(label, int) else "U")
            if str(label) not in known:
                raise ValueError(not_listed(str(label), known, "label of class_weight"))
            weights[known.index(str(label))] = float(weight)
        return weights

    def postprocess(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits (batch, labels) to ``label`` (batch,) string and ``scores``, their softmax."""
        scores = tf.nn.softmax(tf.cast(outputs, tf.float32))
        label = tf.gather(tf.constant(self.labels), tf.argmax(scores, axis=-1))
        return {"label": label, "scores": scores}

    def signatures(self) -> dict[str, Signature]:
        """As ``Task.signatures``, and ``classify``, the scores of all labels."""
        return {**super().signatures(), "classify": Signature(self._classes, method="classify")}

    def _classes(self, answer: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        scores = answer["scores"]
        return {"classes": tf.broadcast_to(self.labels, tf.shape(scores)), "scores": scores}

    @property
    def class_names(self) -> list[str]:
        return self.labels

    def predict(self, x: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """For each text ``{"label": str, "scores": float32 array in the order of labels}``.

        The same rows as the exported model answers over HTTP. Arguments and errors as for
        ``Task.predict``.
        """
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
        names = as_text(outputs["label"])
        return [
            {"label": label, "scores": scores}
            for label, scores in zip(names, outputs["scores"].numpy(), strict=True)
        ]

    def _compile_defaults(self) -> dict[str, Any]:
        return {
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        }

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "labels": self.labels}

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no labels beside the texts.")
        values = np.asarray(y)
        if values.ndim != 1:
            raise ValueError(
                f"Labels are a vector, one for each text, not of shape {values.shape}."
            )
        if values.dtype.kind == "b":
            wrong = [] if self._names_of_bools else [values[0]]
        elif values.dtype.kind in "iu":
            wrong = values[(values < 0) | (values >= len(self.labels))].tolist()
        else:
            given = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
            wrong = [v for v in given if v not in set(self.labels)]
        if wrong:
            raise ValueError(not_listed(str(wrong[0]), self._known(values.dtype.kind), "label"))

    @property
    def _names_of_bools(self) -> list[str]:
        """The labels that False and True stand for, where they do: of two, the first and second."""
        names = ["False", "True"]
        if set(names) <= set(self.labels):
            return names
        return self.labels if len(self.labels) == 2 else []

    def _known(self, kind: str) -> list[str]:
        return [str(i) for i in range(len(self.labels))] if kind in "iu" else self.labels

    def _encode_labels(self, y: tf.Tensor) -> tf.Tensor:
        if y.shape.rank != 1:
            raise ValueError(f"Labels are a vector in each batch, not of shape {y.shape}.")
        if y.dtype == tf.bool and self._names_of_bools:
            y = tf.where(y, *self._names_of_bools[::-1])
        if y.dtype.is_integer:
            return index_of(tf.strings.as_string(y), self._known("i"), "label")
        if y.dtype == tf.string:
            return index_of(y, self.labels, "label")
        raise ValueError(f"Labels are strings or integers, not {y.dtype.name}.")
