"""Zero-shot classification: labels are passed with the texts (arXiv 1909.00161)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.data.errors import checked
from bertfam_tf.data.inputs import TEXT, Fields
from bertfam_tf.data.tables import Columns
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.components import Signature, TaskComponents, Tensors
from bertfam_tf.tasks.options import LoadingArguments, OptionArguments, Options, classes, option
from bertfam_tf.tasks.preprocessing import MultiRow, rows_of, run_rows
from bertfam_tf.tasks.pretrained import checked_labels
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.text_classifier import labels_and_scores
from bertfam_tf.tasks.text_learner import arguments, refuse
from bertfam_tf.text import Tokenizer

_LABELS = "labels"
# Beginnings of names of the two classes; models for two classes have GLUE's "not_entailment".
_ENTAILED = ("entail",)
_REFUTED = ("contradict", "not_entail")


@dataclass(frozen=True)
class ZeroShotOptions(Options):
    """Options of ``ZeroShotClassifier``."""

    labels: Sequence[str] = option()
    nli_labels: Sequence[str] = classes()
    template: str = option("This example is {}.", settable=True, kw_only=True)
    multi_label: bool = option(False, settable=True, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _texts(self.labels))
        object.__setattr__(self, "nli_labels", checked_labels(self.nli_labels))
        if self.template.count("{}") != 1:
            raise ValueError(f"template must have {{}} once, got {self.template!r}.")
        _class_of(_ENTAILED, self.nli_labels)
        if self.multi_label:
            _class_of(_REFUTED, self.nli_labels)


class ZeroShotArguments(OptionArguments, total=False):
    """``ZeroShotOptions`` as keyword arguments."""

    template: str
    multi_label: bool


class PretrainedZeroShotArguments(ZeroShotArguments, LoadingArguments, total=False):
    """Keyword arguments of ``ZeroShotClassifier.from_pretrained``."""


class ZeroShotClassifier(Task):
    """Classifies texts by arbitrary labels with a model for natural language inference.

    Each label becomes a hypothesis, and the model predicts whether the text entails it. ``predict``
    returns for each text ``{"label": str, "scores": float32 array in the order of the labels}``.
    The task has no ``fit``: train a ``TextClassifier`` on pairs with the labels of NLI, and load
    the result of its ``save_pretrained``.

    An export's ``serving_default`` scores the labels of the option ``labels``; the signature
    ``zero_shot`` takes them: ``text``, string (batch,), and ``labels``, string (batch, labels), one
    or more, to ``label``, string (batch,), and ``scores``, float32 (batch, labels).

    The Keras model takes int32 (batch, labels, length) and returns logits (batch, labels, classes).

    Args:
        backbone: an encoder; with a pooler if its family classifies with it.
        tokenizer: its tokenizer.
        labels: the default labels.
        nli_labels: names of the model's own classes, in the order of its scores; one begins with
            ``entail``, and with ``multi_label`` one with ``contradict`` or ``not_entail``.
        template: the hypothesis of a label, with ``{}`` for the label.
        multi_label: whether each label has an independent probability, of entailment against
            contradiction; otherwise the probabilities of all labels add up to 1. A single label
            has an independent probability if ``nli_labels`` has the class for it.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for no labels, a template without ``{{}}``, ``nli_labels`` without the class
            that is needed, a backbone without the pooler that it classifies with; and as ``Task``
            raises it.
    """

    options_type = ZeroShotOptions
    pipeline_tag = "zero-shot-classification"
    head_name = "sequence"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        nli_labels: Sequence[str],
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[ZeroShotArguments],
    ):
        super().__init__(
            backbone, tokenizer, labels, nli_labels, language_id=language_id, name=name, **options
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        labels: Sequence[str],
        nli_labels: Sequence[str] | None = None,
        **options: Unpack[PretrainedZeroShotArguments],
    ) -> Self:
        return super().from_pretrained(path, labels, nli_labels, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name, len(options.nli_labels))
        inputs, logits = rows_of(
            backbone.token_inputs, lambda rows: head(backbone(rows, outputs=head.reads))
        )

        def answer(logits: tf.Tensor, encoded: dict[str, Any]) -> Tensors:
            scores = self._scores(logits)
            best = tf.argmax(scores, axis=-1, output_type=tf.int32)
            label = tf.gather(encoded[_LABELS], best, batch_dims=1)
            return {"label": label, "scores": scores}

        return TaskComponents(
            inputs=inputs,
            outputs=logits,  # (batch, labels, classes)
            head=head,
            source=head.reads,
            preprocessor=_PackedLabels(backbone, tokenizer, options, self),
            postprocess=answer,
            answer_ids=lambda logits, _: {"scores": self._scores(logits)},
            to_python=labels_and_scores,
            signatures=lambda: {
                "zero_shot": Signature(self.answer, _ZERO_SHOT, of_texts=_labelled)
            },
        )

    def _scores(self, logits: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(logits, tf.float32)  # (batch, labels, classes)
        entailed = logits[..., _class_of(_ENTAILED, self.nli_labels)]
        scores = tf.nn.softmax(entailed)
        if not self.multi_label and len(_classes_of(_REFUTED, self.nli_labels)) != 1:
            return scores
        contradicted = logits[..., _class_of(_REFUTED, self.nli_labels)]
        independent = tf.sigmoid(entailed - contradicted)
        # The softmax of a single label is 1, whatever the text.
        return (
            independent
            if self.multi_label
            else tf.where(tf.shape(scores)[1] == 1, independent, scores)
        )

    def predict(
        self,
        x: Any,
        labels: Sequence[str] | None = None,
        *,
        batch_size: int = 32,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        language: str | int | None = None,
        columns: Columns | None = None,
        **others: Any,
    ) -> Any:
        """Returns the label and the scores of each text.

        Args:
            x, batch_size, verbose, steps, callbacks, language, columns: the same as for
                ``Task.predict``.
            labels: texts, one or more; None for the option ``labels``.

        Returns:
            For each text ``{"label": str, "scores": float32 (labels,)}``.

        Raises:
            ValueError: for no labels; and as ``Task.predict`` raises it.
            TypeError: for an argument that does not exist.
        """
        refuse("predict", others, arguments(ZeroShotClassifier.predict))
        loop: dict[str, Any] = dict(
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
            language=language,
            columns=columns,
        )
        if labels is None:
            return super().predict(x, **loop)
        names = tf.constant(_texts(labels))

        def extend(features: Tensors, *rest: Any) -> tuple:
            return {**features, _LABELS: _repeated(names, features[TEXT])}, *rest

        # As features, so that the graph is traced once, whatever the labels.
        return self._answered(self.answer, self._parts.to_python, x, extend=extend, **loop)


_NO_LABELS = "labels must have at least one label for each text, got none."
_ZERO_SHOT = {
    TEXT: tf.TensorSpec([None], tf.string, TEXT),
    _LABELS: tf.TensorSpec([None, None], tf.string, _LABELS),
}


def _labelled(texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of ``zero_shot``: two labels for each text."""
    labels = np.stack([np.roll(texts[TEXT], 1), np.roll(texts[TEXT], 2)], axis=1)
    return {TEXT: texts[TEXT], _LABELS: labels}


def _texts(labels: Sequence[str]) -> list[str]:
    texts = [labels] if isinstance(labels, str) else list(labels)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"labels must be one or more texts, got {labels!r}.")
    return texts


def _repeated(labels: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Labels (labels,) for each of the texts, (batch, labels)."""
    return tf.tile(tf.expand_dims(labels, 0), [tf.shape(texts)[0], 1])


class _PackedLabels(MultiRow):
    """Packs the text with the hypothesis of each label.

    Call:
        features: the text, string (batch,); and labels, string (batch, labels), by default
            the labels of the options.

    Returns:
        as ``MultiRow``; and the labels.
    """

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, options: Any, task: Any):
        super().__init__(backbone, tokenizer, options, Fields((TEXT,), ()), "only_first")
        self.task = task
        self.labels = options.labels

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        texts = features[TEXT]
        labels = features.get(_LABELS)
        if labels is None:
            labels = _repeated(tf.constant(self.labels), texts)
        labels = checked(labels, tf.shape(labels)[1] > 0, _NO_LABELS)
        before, after = self.task.template.split("{}")
        sentences = tf.strings.join([before, labels, after])
        return {**self.pairs(texts, sentences, self.languages.of(features)), _LABELS: labels}

    def run(self, model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return run_rows(model, inputs)


def _classes_of(begins: tuple[str, ...], labels: Sequence[str]) -> list[int]:
    return [i for i, label in enumerate(labels) if label.lower().startswith(begins)]


def _class_of(begins: tuple[str, ...], labels: Sequence[str]) -> int:
    matching = _classes_of(begins, labels)
    if len(matching) != 1:
        expected = " or ".join(map(repr, begins))
        raise ValueError(
            f"nli_labels must have one class that begins with {expected}, got {list(labels)!r}."
        )
    return matching[0]
