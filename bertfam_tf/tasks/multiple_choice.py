"""The best of some texts that go on from another one."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf import heads
from bertfam_tf.data.batching import TEXT, Fields
from bertfam_tf.data.errors import MARK
from bertfam_tf.data.labels import index_of, not_listed
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.answering import AnsweringTask
from bertfam_tf.tasks.base import as_text
from bertfam_tf.tasks.pretrained import open_task
from bertfam_tf.text import Packer, Tokenizer
from bertfam_tf.text.packing import Truncation

_HEAD = "choice"
_CHOICES = "choices"
_QUESTION = "question"


class _Flat(keras.layers.Layer):
    """(batch, choices, length) to (batch * choices, length)."""

    def call(self, x):
        return ops.reshape(x, (-1, ops.shape(x)[2]))

    def compute_output_shape(self, shape):
        return (None, shape[2])


class MultipleChoice(AnsweringTask):
    """One of a fixed number of choices for each text (RACE, arXiv 1704.04683; SWAG, 1808.05326).

    A row has a ``text`` (RACE: the article; SWAG: the sentence), its ``choices``, and if wanted a
    ``question``, which is put before each choice with a space (arXiv 1909.11942). Each choice is
    read with the text, as a pair, and the head gives it one score. Labels are the places of the
    right choices, from 0, or their letters, from A.

    Args:
        backbone: an encoder, with the parts that its family's head for choices reads.
        tokenizer: its tokenizer.
        num_choices: how many each row has.
        pair: whether rows have a question; None decides at the first data seen.
        max_length: most tokens of a text with one choice; None for all positions.
        truncation: what is cut of a pair that is too long, as ``Packer`` takes it; by default the
            text.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    The Keras model takes int32 (batch, choices, length) and gives logits (batch, choices).

    Raises:
        ValueError: for fewer than two choices, and as ``Task`` and ``heads.build`` raise it.
    """

    fields = Fields((TEXT, _CHOICES), (_QUESTION,))

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        num_choices: int,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        truncation: Truncation = "only_first",
        language_id: int | None = None,
        **kwargs: Any,
    ):
        if num_choices < 2:
            raise ValueError(f"num_choices is 2 or more, not {num_choices!r}.")
        head = heads.build(backbone, _HEAD)
        # The batch is the first axis, so that Keras' loops and strategies can cut it.
        inputs = {
            name: keras.Input((num_choices, None), dtype=spec.dtype, name=name)
            for name, spec in backbone.row_inputs.items()
        }
        scores = head(backbone({name: _Flat()(x) for name, x in inputs.items()}))
        super().__init__(
            inputs,
            ops.reshape(scores, (-1, num_choices)),
            backbone=backbone,
            reads=head.source,
            tokenizer=tokenizer,
            pair=pair,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.head = head
        self.num_choices = num_choices
        self.truncation = truncation
        layout, ids = tokenizer.layout, tokenizer.special_ids
        self._packer = Packer(layout, ids, self.max_length, truncation)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        num_choices: int = 4,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        truncation: Truncation = "only_first",
        language: str | int | None = None,
        **overrides: Any,
    ) -> MultipleChoice:
        """A task on a published checkpoint, ready to ``fit`` (or to ``predict``).

        The checkpoint's own head is used where it has one; otherwise the head starts at random,
        and a log line says so.

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            num_choices, pair, max_length, truncation: as the constructor takes them.
            language: as ``TextClassifier.from_pretrained`` takes it.
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: as the constructor raises it, or when the tokenizer's files are not valid.
        """
        return open_task(
            cls,
            _HEAD,
            path,
            language=language,
            overrides=overrides,
            num_choices=num_choices,
            pair=pair,
            max_length=max_length,
            truncation=truncation,
        )

    # From text to answers ----------------------------------------------------------------------

    @property
    def feature_specs(self) -> dict[str, tf.TensorSpec]:
        specs = super().feature_specs
        return {**specs, _CHOICES: tf.TensorSpec([None, self.num_choices], tf.string, _CHOICES)}

    @tf.autograph.experimental.do_not_convert
    def preprocess(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Strings (batch,), choices (batch, choices), to int32 (batch, choices, longest row)."""
        choices = self._checked(features[_CHOICES])
        count = tf.shape(choices)[0]
        flat = tf.reshape(choices, [-1])
        if _QUESTION in self.feature_names:
            before = tf.repeat(features[_QUESTION], self.num_choices)
            flat = tf.strings.join([before, flat], separator=" ")
        # A text is split once, whatever the number of its choices.
        texts = self.tokenizer.tokenize(features[TEXT])
        texts = tf.gather(texts, tf.repeat(tf.range(count), self.num_choices))
        return self._by_rows(self._packer([texts, self.tokenizer.tokenize(flat)]))

    def _by_rows(self, packed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The model's inputs (batch, choices, length) of packed rows (batch * choices, length)."""
        rows, length = tf.unstack(tf.shape(packed["token_ids"]))
        shape = [rows // self.num_choices, self.num_choices, length]
        return {name: tf.reshape(x, shape) for name, x in self._model_inputs(packed).items()}

    @property
    def packed_specs(self) -> dict[str, tf.TensorSpec]:
        """Packed rows by name: int32 (batch, choices, length)."""
        return {
            name: tf.TensorSpec([None, self.num_choices, None], tf.int32, name)
            for name in super().packed_specs
        }

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """As ``Task.answer_ids``: ``choice`` and ``scores``, without the choices' texts."""
        batch, choices, length = tf.unstack(tf.shape(inputs["token_ids"]))
        flat = {name: tf.reshape(x, [batch * choices, length]) for name, x in inputs.items()}
        return self.postprocess(self(self._by_rows(flat), training=False))

    def _checked(self, choices: tf.Tensor) -> tf.Tensor:
        expected = f"expected {self.num_choices} of each row"
        if choices.shape.rank != 2:
            raise ValueError(f"Choices are strings (rows, choices), not of shape {choices.shape}.")
        if choices.shape[1] is not None:
            if choices.shape[1] != self.num_choices:
                raise ValueError(f"There are {choices.shape[1]} choices; {expected}.")
            return choices
        given = tf.shape(choices)[1]
        text = tf.strings.join(
            [MARK, "There are ", tf.strings.as_string(given), f" choices; {expected}."]
        )
        with tf.control_dependencies([tf.debugging.Assert(given == self.num_choices, [text])]):
            return tf.ensure_shape(tf.identity(choices), [None, self.num_choices])

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        answer = super().answer(features)
        text = tf.gather(features[_CHOICES], answer["choice"], batch_dims=1)
        return {"choice": answer["choice"], "text": text, "scores": answer["scores"]}

    def postprocess(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits (batch, choices) to ``choice``, int32 (batch,), and ``scores``, their softmax."""
        scores = tf.nn.softmax(tf.cast(outputs, tf.float32))
        return {"choice": tf.argmax(scores, axis=-1, output_type=tf.int32), "scores": scores}

    # Keras' verbs --------------------------------------------------------------------------------

    def predict(self, x: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """For each row ``{"choice": int, "text": str, "scores": float32 array of all choices}``.

        Args:
            x: ``{"text": …, "choices": …}``, and ``"question"``; a tuple in that order; or a data
                set of those. Choices are a list of lists of strings.
            **kwargs: ``batch_size`` and ``verbose``.

        Raises:
            ValueError: for data in another shape, another number of choices, or no data at all.
        """
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
        return [
            {"choice": choice, "text": text, "scores": scores}
            for choice, text, scores in zip(
                outputs["choice"].numpy().tolist(),
                as_text(outputs["text"]),
                outputs["scores"].numpy(),
                strict=True,
            )
        ]

    def _compile_defaults(self) -> dict[str, Any]:
        return {
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        }

    def _options(self) -> dict[str, Any]:
        own = {"num_choices": self.num_choices, "truncation": self.truncation}
        return {**super()._options(), **own}

    @property
    def _known(self) -> list[str]:
        """How a label may be written; of each way the places are in order."""
        letters = list(string.ascii_uppercase[: self.num_choices])
        numbers = [str(i) for i in range(self.num_choices)]
        return numbers + (letters if len(letters) == self.num_choices else [])

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no labels beside the texts.")
        values = np.asarray(y)
        if values.ndim != 1:
            raise ValueError(f"Labels are a vector, one for each row, not of shape {values.shape}.")
        given = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
        wrong = [v for v in given if v not in self._known]
        if wrong:
            raise ValueError(not_listed(wrong[0], self._known, "label"))

    def _encode_labels(self, y: tf.Tensor) -> tf.Tensor:
        if y.shape.rank != 1:
            raise ValueError(f"Labels are a vector in each batch, not of shape {y.shape}.")
        if y.dtype != tf.string and not y.dtype.is_integer:
            raise ValueError(f"Labels are strings or integers, not {y.dtype.name}.")
        y = y if y.dtype == tf.string else tf.strings.as_string(y)
        return index_of(y, self._known, "label") % self.num_choices
