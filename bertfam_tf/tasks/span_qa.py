"""Extractive question answering, as in SQuAD."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import LABEL, Fields, as_text
from bertfam_tf.metrics import exact_match, f1
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import Evaluation, TaskComponents, Tensors
from bertfam_tf.tasks.options import FeatureArguments, FeatureOptions, LoadingArguments, option
from bertfam_tf.tasks.preprocessing import WindowedPreprocessor
from bertfam_tf.tasks.span_targets import (
    ANSWER,
    CONTEXT,
    GOLD,
    QUESTION,
    SPACES,
    START,
    SpanAccuracy,
    SpanTargets,
    first_true,
    gold_answers,
    last_true,
)
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.characters import Characters
from bertfam_tf.training.learner import mean_loss

_MAX_LENGTH, _STRIDE, _MAX_QUESTION = 384, 128, 64
# Logits where no answer can be: far below any other, and finite, for sums with infinities may be
# NaN.
_NOWHERE = -1e9


@dataclass(frozen=True, kw_only=True)
class SpanOptions(FeatureOptions):
    """Options of ``SpanQA``."""

    stride: int | None = option(None)
    max_question: int | None = option(None)
    max_answer: int = option(30, at_least=1)
    n_best: int = option(5, at_least=1)
    null_threshold: float | None = option(None, settable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.null_threshold is not None:
            if math.isnan(self.null_threshold):
                raise ValueError("null_threshold must be a number or None, got NaN.")
            object.__setattr__(self, "null_threshold", float(self.null_threshold))

    def resolved(self, backbone: Backbone) -> SpanOptions:
        length = self.max_length
        if length is None:
            length = min(_MAX_LENGTH, backbone.max_length or _MAX_LENGTH)
        values: dict[str, Any] = {"max_length": length}
        if self.stride is None:
            values["stride"] = min(_STRIDE, length // 3)
        if self.max_question is None:
            values["max_question"] = min(_MAX_QUESTION, length // 6)
        return dataclasses.replace(self, **values)


def span_loss(targets: Any, logits: Any, weights: Any = None) -> SumAndCount:
    """Cross-entropy over the tokens of a window, the mean of an answer's start and its end.

    Padding is never an answer; the loss of transformers includes it, and so depends on the other
    examples of the batch.

    Args:
        targets: int32 (windows, 2), the positions of the answer's first token and of its last.
        logits: (windows, length, 2).
        weights: (windows,), or None.
    """
    by_position = keras.ops.transpose(logits, (0, 2, 1))  # (windows, 2, length)
    losses = keras.ops.sparse_categorical_crossentropy(targets, by_position, from_logits=True)
    return mean_loss(keras.ops.mean(losses, axis=-1), weights)


def _without_padding(logits: Any, inputs: Any) -> Any:
    """Logits (windows, length, 2), with ``_NOWHERE`` at padding."""
    real = keras.ops.expand_dims(inputs["padding_mask"] > 0, -1)
    return keras.ops.where(real, logits, keras.ops.cast(_NOWHERE, logits.dtype))


def _starts_and_ends(logits: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Over the tokens of a window: logits (windows, 2, length)."""
    # Logits that a distillation reads from files are padded with zeros.
    scores = keras.ops.transpose(_without_padding(logits, inputs), (0, 2, 1))
    return scores, keras.ops.ones_like(scores[..., 0], dtype="float32")


class SpanArguments(FeatureArguments, total=False):
    """``SpanOptions`` as keyword arguments."""

    stride: int | None
    max_question: int | None
    max_answer: int
    n_best: int
    null_threshold: float | None


class PretrainedSpanArguments(SpanArguments, LoadingArguments, total=False):
    """Keyword arguments of ``SpanQA.from_pretrained``."""


class SpanQA(Task):
    """Extracts the span of a context that answers a question (BERT on SQuAD, arXiv 1810.04805).

    A context of any length is read in overlapping windows. The answer is the span with the highest
    sum of start and end logits over all windows, for every start token, in the window where it has
    the most context, and every length up to ``max_answer``.

    ``predict`` returns for each question ``{"answer", "start", "end", "score", "no_answer_score",
    "n_best"}``. ``answer`` is ``context[start:end]``, a str, of which ``start`` and ``end`` are
    offsets in characters; bytes of a context that are not UTF-8 count as
    ``bytes.decode("utf-8", "replace")`` reads them. ``score`` is the softmax over the ``n_best``
    spans and, with a ``null_threshold``, no answer; ``no_answer_score`` is the logit of no answer
    minus the best span's. ``n_best`` is a list of up to ``n_best`` entries ``{"answer",
    "start", "end", "score"}``, the best first. No answer is "", -1, -1; a context without tokens
    has no answer, and a ``no_answer_score`` of 1e9.

    The exported model returns the same as tensors: ``answer`` string, ``start`` and ``end``
    int32, ``score`` and ``no_answer_score`` float32, all (batch,); ``n_best_answers``,
    ``n_best_starts``, ``n_best_ends`` and ``n_best_scores`` (batch, n_best), padded with "", -1, -1
    and 0, and ``n_best_count``, int32 (batch,), their number.

    Labels are a dict: ``"answer"``, strings, parts of the context, and ``"answer_start"``, their
    offsets in characters (code points), as in SQuAD's files; white space around an answer does not
    count. "" (and -1) is for questions without an answer. A window without the whole answer is
    trained to the position of the cls token, or to the first where the tokenizer's layout has none.

    ``evaluate`` returns SQuAD's exact match and F1, in percent, against the best of each question's
    gold answers: ``"answers"`` of the labels, strings (questions, answers) padded with "", or a
    list of lists; else ``"answer"``.

    With a ``null_threshold``, the answer is "" if ``no_answer_score`` exceeds the threshold (SQuAD
    2.0, arXiv 1806.03822). The logit of no answer is the lowest one of the cls token over all
    windows. ``metrics.best_threshold`` finds a good threshold; ``null_threshold`` may be set at any
    time.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        max_length: maximum number of tokens of a window. None for 384, or the backbone's number of
            positions if that is less.
        feature_layers, combine_layers: the same as for ``TokenTagger``.
        stride: the number of tokens by which windows overlap; None for 128, or a third of
            ``max_length`` if that is less.
        max_question: maximum number of tokens of a question; longer ones are truncated. None for
            64, or a sixth of ``max_length`` if that is less.
        max_answer: maximum number of tokens of an answer.
        n_best: the number of answers to return for a question.
        null_threshold: the margin by which the logit of no answer must exceed the best span's; None
            if every question has an answer.
        padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for a ``max_answer`` or ``n_best`` below 1, a ``null_threshold`` that is NaN, a
            ``max_length`` that leaves no room for a context; and as ``Task`` raises it.
    """

    options_type = SpanOptions
    pipeline_tag = "question-answering"
    fields = Fields((QUESTION, CONTEXT), (), aliases=((LABEL, GOLD), (LABEL, (ANSWER, START))))
    head_name = "span"
    labels_type = targets.Answers

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[SpanArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Unpack[PretrainedSpanArguments]) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name, **options.head_input)
        inputs = backbone.token_inputs

        def read(outputs: Any, inputs: Any) -> Any:
            return _without_padding(head(outputs), inputs)  # (windows, length, 2)

        return TaskComponents(
            inputs=inputs,
            outputs=read(backbone(inputs, outputs=head.reads), inputs),
            read=read,
            distributions=_starts_and_ends,
            head=head,
            source=head.reads,
            preprocessor=_QuestionWindows(
                backbone, tokenizer, options, self.fields, options.stride, options.max_question
            ),
            postprocess=self._best_answers,
            answer_ids=_start_and_end_logits,
            to_python=_to_python,
            targets=SpanTargets(),
            loss=span_loss,
            metrics=lambda: [SpanAccuracy()],
            evaluation=Evaluation(
                lambda features, *rest: self.answer(features), _scores, SpanTargets.with_gold
            ),
        )

    def _best_answers(self, outputs: Any, windows: dict[str, Any]) -> Tensors:
        """Answers as the class describes them, of logits (windows, length, 2)."""
        logits = tf.cast(outputs, tf.float32)
        context = windows[CONTEXT]
        best, first, after = self._best_spans(logits, windows, tf.size(context))
        has_span = best > _NOWHERE / 2
        null = tf.reduce_sum(tf.gather(logits, windows["null"], axis=1, batch_dims=1), axis=-1)
        null = tf.math.unsorted_segment_min(null, windows["document"], tf.size(context))
        no_answer_score = tf.where(has_span[:, 0], null - best[:, 0], -_NOWHERE)

        chances = tf.where(has_span, best, _NOWHERE)
        if self.null_threshold is None:
            scores = tf.nn.softmax(chances)
            withheld = tf.zeros_like(has_span[:, 0])
        else:
            chances = tf.concat([chances, tf.expand_dims(null, 1)], 1)
            scores = tf.nn.softmax(chances)
            withheld = no_answer_score > self.null_threshold
        score = tf.where(withheld, scores[:, -1], scores[:, 0])
        scores = tf.where(has_span, scores[:, : self.n_best], 0.0)

        texts, starts, ends = _extracted(context, first, after, has_span)
        return {
            "answer": tf.where(withheld, "", texts[:, 0]),
            "start": tf.where(withheld, -1, starts[:, 0]),
            "end": tf.where(withheld, -1, ends[:, 0]),
            "score": tf.where(withheld | has_span[:, 0], score, 0.0),
            "no_answer_score": no_answer_score,
            "n_best_answers": texts,
            "n_best_starts": starts,
            "n_best_ends": ends,
            "n_best_scores": scores,
            "n_best_count": tf.reduce_sum(tf.cast(has_span, tf.int32), axis=1),
        }

    def _best_spans(
        self, logits: tf.Tensor, windows: dict[str, tf.Tensor], documents: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The documents' best spans.

        Returns:
            float32 (documents, n_best), sums of logits; and int32, first bytes and the bytes
            after the last. ``_NOWHERE`` or less where there are not so many.
        """
        length = tf.shape(logits)[1]
        start = tf.where(windows["max_context"], logits[..., 0], _NOWHERE)
        end = tf.where(windows["piece"] >= 0, logits[..., 1], _NOWHERE)
        end = tf.pad(end, [[0, 0], [0, self.max_answer - 1]], constant_values=_NOWHERE)
        ends = tf.expand_dims(tf.range(length), 1) + tf.range(self.max_answer)
        sums = tf.expand_dims(start, 2) + tf.gather(end, ends, axis=1)
        sums = tf.reshape(sums, [tf.shape(sums)[0], length * self.max_answer])
        sums = tf.pad(sums, [[0, 0], [0, self.n_best]], constant_values=2 * _NOWHERE)
        best, place = tf.math.top_k(sums, self.n_best)
        place = tf.where(best > _NOWHERE / 2, place, 0)
        first = place // self.max_answer
        last = tf.minimum(first + place % self.max_answer, length - 1)

        def of_documents(values: tf.Tensor, default: Any) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_value_rowids(
                values, windows["document"], tf.cast(documents, tf.int32), validate=False
            )
            rows = ragged.to_tensor(default)
            most = tf.shape(rows)[1] * self.n_best
            return tf.reshape(rows, [documents, most])

        sums = of_documents(best, 2 * _NOWHERE)
        # A batch without documents has no windows to choose from.
        sums = tf.pad(sums, [[0, 0], [0, self.n_best]], constant_values=2 * _NOWHERE)
        best, place = tf.math.top_k(sums, self.n_best)

        def chosen(bytes_: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
            values = of_documents(tf.gather(bytes_, at, axis=1, batch_dims=1), 0)
            values = tf.pad(values, [[0, 0], [0, self.n_best]])
            return tf.gather(values, place, axis=1, batch_dims=1)

        return best, chosen(windows["start"], first), chosen(windows["end"], last)


class _QuestionWindows(WindowedPreprocessor):
    """Windows with ``null``, int32 (windows,), the position for no answer, and the texts.

    Broken bytes of a context become U+FFFD, as the tokenizers read them, so that offsets count what
    Python counts, and answers are UTF-8.
    """

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        for name in self.names:
            if features[name].shape.rank != 1:
                raise ValueError(
                    f"{name!r} has shape {features[name].shape}, expected one string for each "
                    "example."
                )
        context = tf.strings.unicode_transcode(features[CONTEXT], "UTF-8", "UTF-8")
        features = {**features, CONTEXT: context}
        windows = super().__call__(features)
        texts = {name: features[name] for name in self.names}
        return {**windows, **texts, "null": self._null_position(windows)}

    def _null_position(self, windows: dict[str, tf.Tensor]) -> tf.Tensor:
        """The cls token's position. Ids are not enough: a question may contain the cls token."""
        entries = self.tokenizer.layout.pair
        if "cls" not in entries:
            return first_true(windows["padding_mask"] > 0)
        special = (windows["padding_mask"] > 0) & (windows["piece"] < 0)
        special &= windows["token_ids"] == self.tokenizer.special_ids["cls"]
        return (
            first_true(special) if entries.index("cls") < entries.index("a") else last_true(special)
        )


def _start_and_end_logits(logits: tf.Tensor, _: Any) -> Tensors:
    """Splits logits (batch, length, 2) into start and end logits, float32 (batch, length)."""
    logits = tf.cast(logits, tf.float32)
    return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


def _to_python(outputs: Tensors, texts: Tensors) -> list[dict[str, Any]]:
    columns = {
        name: as_text(value) if value.dtype == tf.string else value.numpy().tolist()
        for name, value in outputs.items()
        if not name.startswith("n_best")
    }
    best = {
        name: outputs[f"n_best_{name}s"].numpy() for name in ("answer", "start", "end", "score")
    }
    rows = []
    for i in range(len(columns[ANSWER])):
        parts = {name: values[i].tolist() for name, values in best.items()}
        parts["answer"] = as_text(best["answer"][i])
        count = sum(start >= 0 for start in parts["start"])
        n_best = [{name: parts[name][j] for name in parts} for j in range(count)]
        rows.append({**{name: columns[name][i] for name in columns}, "n_best": n_best})
    return rows


def _scores(answered: Iterable[tuple[Any, tuple]]) -> dict[str, float]:
    """Mean exact match and F1, in percent, of answers and batches with gold answers."""
    pairs = [
        (row[ANSWER], gold)
        for outputs, (features, labels, *_) in answered
        for row, gold in zip(_to_python(outputs, features), gold_answers(labels), strict=True)
    ]
    return {
        "exact_match": 100 * float(np.mean([exact_match(*pair) for pair in pairs])),
        "f1": 100 * float(np.mean([f1(*pair) for pair in pairs])),
    }


def _extracted(
    context: tf.Tensor, first: tf.Tensor, after: tf.Tensor, has_span: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Extracts byte ranges of contexts as texts, without surrounding white space.

    Args:
        context: string (batch,).
        first, after: int32 (batch, n).
        has_span: bool (batch, n), whether there is anything to extract.

    Returns:
        (batch, n): strings, and int32 where they begin and end, in characters; "", -1 and -1 where
        there is nothing.
    """
    first, after = tf.where(has_span, first, 0), tf.where(has_span, after, 0)
    contexts = tf.expand_dims(context, 1)
    spans = tf.strings.substr(tf.tile(contexts, [1, tf.shape(first)[1]]), first, after - first)
    text = tf.strings.regex_replace(spans, f"^{SPACES}", "")
    first += tf.strings.length(spans) - tf.strings.length(text)
    text = tf.strings.regex_replace(text, f"{SPACES}$", "")
    after = first + tf.strings.length(text)
    characters = Characters(context)
    start, end = (
        tf.where(has_span, characters.from_bytes(offsets), -1) for offsets in (first, after)
    )
    return text, start, end
