"""Multiple choice: the best of several continuations of a text."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf import heads
from bertfam_tf.data import targets
from bertfam_tf.data.errors import checked
from bertfam_tf.data.inputs import TEXT, Fields, as_text
from bertfam_tf.data.labels import decoded, index_of, not_listed
from bertfam_tf.metrics.compatible import CLASSES
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.components import (
    Targets,
    TaskComponents,
    Tensors,
    batch_vector,
    label_vector,
)
from bertfam_tf.tasks.options import LoadingArguments, PairArguments, PairOptions, option
from bertfam_tf.tasks.preprocessing import MultiRow, rows_of
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.text_classifier import cross_entropy
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.packing import Truncation

_CHOICES = "choices"
_QUESTION = "question"


@dataclass(frozen=True)
class ChoiceOptions(PairOptions):
    """Options of ``MultipleChoice``."""

    num_choices: int = option(4, at_least=2)
    pair: bool | None = option(None, settable=True, kw_only=True)
    truncation: Truncation = option("only_first", kw_only=True)


class ChoiceArguments(PairArguments, total=False):
    """``ChoiceOptions`` as keyword arguments."""

    truncation: Truncation


class PretrainedChoiceArguments(ChoiceArguments, LoadingArguments, total=False):
    """Keyword arguments of ``MultipleChoice.from_pretrained``."""


class MultipleChoice(Task):
    """One of a fixed number of choices for each text (RACE, arXiv 1704.04683; SWAG, 1808.05326).

    An example has a ``text`` (RACE: the article; SWAG: the sentence), its ``choices``, a list of
    strings, and optionally a ``question``, which is put before each choice with a space (arXiv
    1909.11942). Each choice is read with the text, as a pair, and the head gives it one score.
    Labels are the indices of the right choices, from 0, or their letters, from A.

    ``predict`` takes ``{"text": …, "choices": …}``, and ``"question"``, a tuple in that order, or
    a data set of those. It returns for each example ``{"choice": int, "text": str, "scores":
    float32 array of all choices}``. ``evaluate`` returns the loss and the accuracy.

    The Keras model takes int32 (batch, choices, length) and returns logits (batch, choices).

    Args:
        backbone: an encoder, with the outputs that its family's head for choices reads.
        tokenizer: its tokenizer.
        num_choices: the number of choices of each example.
        pair: whether examples have a question; None decides by the first data.
        truncation: which of a text and a choice is truncated if they are too long, the same as for
            ``Packer``; by default the text.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for fewer than two choices, and as ``Task`` and ``heads.build`` raise it.
    """

    options_type = ChoiceOptions
    pipeline_tag = "multiple-choice"
    fields = Fields((TEXT, _CHOICES), (_QUESTION,))
    head_name = "choice"
    labels_type = targets.Choice

    @classmethod
    def options_of_data(cls, features: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
        options = super().options_of_data(features, labels)
        return {**options, "num_choices": features[_CHOICES].shape[0]}

    @classmethod
    def rows_per_example(cls, columns: Mapping[str, int]) -> int:
        return columns.get(_CHOICES, 1)

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        num_choices: int = 4,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[ChoiceArguments],
    ):
        super().__init__(
            backbone, tokenizer, num_choices, language_id=language_id, name=name, **options
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        num_choices: int = 4,
        **options: Unpack[PretrainedChoiceArguments],
    ) -> Self:
        return super().from_pretrained(path, num_choices, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name)
        count = options.num_choices
        # The batch is the first axis, so that Keras' loops and strategies can split it.

        def score(rows: dict[str, Any]) -> Any:
            return ops.reshape(head(backbone(rows, outputs=head.reads)), (-1, 1))

        inputs, scores = rows_of(backbone.token_inputs, score, count)

        def choose(logits: tf.Tensor, _: Any) -> Tensors:
            scores = tf.nn.softmax(tf.cast(logits, tf.float32))  # (batch, choices)
            return {"choice": tf.argmax(scores, axis=-1, output_type=tf.int32), "scores": scores}

        def answer(logits: tf.Tensor, encoded: dict[str, Any]) -> Tensors:
            chosen = choose(logits, encoded)
            text = tf.gather(encoded[_CHOICES], chosen["choice"], batch_dims=1)
            return {"choice": chosen["choice"], "text": text, "scores": chosen["scores"]}

        return TaskComponents(
            inputs=inputs,
            outputs=ops.squeeze(scores, -1),  # (batch, choices)
            head=head,
            source=head.reads,
            preprocessor=_PackedChoices(backbone, tokenizer, options, self.fields),
            postprocess=answer,
            answer_ids=choose,
            to_python=_to_python,
            targets=_ChoiceTargets(count),
            loss=cross_entropy,
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            feature_counts={_CHOICES: count},
        )


class _PackedChoices(MultiRow):
    """Packs the text with each choice, as ``MultiRow``; also returns the choices."""

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, options: Any, fields: Fields):
        super().__init__(backbone, tokenizer, options, fields, options.truncation)
        self.rows_per_example = options.num_choices

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        choices = written = self._checked(features[_CHOICES])
        if _QUESTION in features:
            # Joining does not broadcast.
            before = tf.repeat(
                tf.expand_dims(features[_QUESTION], 1), self.rows_per_example, axis=1
            )
            written = tf.strings.join([before, choices], separator=" ")
        language = self.languages.of(features)
        return {**self.pairs(features[TEXT], written, language), _CHOICES: choices}

    def _checked(self, choices: tf.Tensor) -> tf.Tensor:
        expected = f"Each example must have {self.rows_per_example} choices, got "
        if choices.shape.rank != 2:
            raise ValueError(
                f"choices must have the shape (examples, choices), got {choices.shape}."
            )
        if choices.shape[1] is not None:
            if choices.shape[1] != self.rows_per_example:
                raise ValueError(f"{expected}{choices.shape[1]}.")
            return choices
        number = tf.shape(choices)[1]
        choices = checked(choices, number == self.rows_per_example, expected, number, ".")
        return tf.ensure_shape(choices, [None, self.rows_per_example])


def _to_python(answers: Tensors, texts: Tensors) -> list[dict[str, Any]]:
    return [
        {"choice": choice, "text": text, "scores": scores}
        for choice, text, scores in zip(
            answers["choice"].numpy().tolist(),
            as_text(answers["text"]),
            answers["scores"].numpy(),
            strict=True,
        )
    ]


class _ChoiceTargets(Targets):
    """Indices or letters of the right choices, as int32 (batch,).

    Args:
        count: the number of choices.
    """

    compatible = CLASSES

    def __init__(self, count: int):
        self.count = count
        letters = list(string.ascii_uppercase[:count])
        # Accepted spellings of labels: indices, then letters, both in the order of the choices.
        self.known = list(map(str, range(count))) + (letters if len(letters) == count else [])

    def check(self, y: Any) -> None:
        values = label_vector(y, "example")
        texts = [str(decoded(value)) for value in values]
        wrong = [v for v in texts if v not in self.known]
        if wrong:
            raise ValueError(not_listed(wrong[0], self.known, "label"))

    def encode(self, labels: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        labels = batch_vector(labels)
        if labels.dtype != tf.string and not labels.dtype.is_integer:
            raise ValueError(f"labels must be strings or integers, got {labels.dtype.name}.")
        labels = labels if labels.dtype == tf.string else tf.strings.as_string(labels)
        return index_of(labels, self.known, "label") % self.count

    def class_weights(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        # Keras requires a weight for every class.
        weights = dict.fromkeys(range(self.count), 1.0)
        for label, weight in class_weight.items():
            if str(label) not in self.known:
                raise ValueError(not_listed(str(label), self.known, "label of class_weight"))
            weights[self.known.index(str(label)) % self.count] = float(weight)
        return weights
