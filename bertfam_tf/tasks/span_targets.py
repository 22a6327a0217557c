"""Targets of question answering: answers and their offsets as token positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import checked
from bertfam_tf.data.inputs import as_text
from bertfam_tf.data.targets import pairs_of
from bertfam_tf.metrics.compatible import Compatible
from bertfam_tf.tasks.components import Targets, labels_apart
from bertfam_tf.text.characters import Characters

QUESTION, CONTEXT = "question", "context"
ANSWER, START, GOLD = "answer", "answer_start", "answers"
SPACES = r"[\s\x{0B}\x{85}\pZ]+"


@keras.saving.register_keras_serializable(package="bertfam_tf")
class SpanAccuracy(keras.metrics.Mean):
    """The fraction of windows whose first and last positions are both right."""

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        right = keras.ops.equal(keras.ops.argmax(y_pred, axis=1), keras.ops.cast(y_true, "int64"))
        return super().update_state(keras.ops.all(right, axis=-1), sample_weight)


class SpanTargets(Targets):
    """Positions of the answer's first token and of its last, int32 (windows, 2)."""

    compatible = Compatible(
        losses="", metrics="MeanMetricWrapper", metric='"accuracy"', accuracy=SpanAccuracy
    )

    @staticmethod
    def with_gold(x: Any, y: Any) -> tuple[Any, Any]:
        """Texts and labels with all gold answers, as ``evaluate`` reads them."""
        x, y = labels_apart(x, y)
        return x, None if y is None else _arrays(y)

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        x, y = labels_apart(x, y)
        if y is None:
            return x, None
        # Training takes the first gold answer alone.
        return x, {name: values for name, values in _arrays(y).items() if name != GOLD}

    def check(self, y: Any) -> None:
        if y is None:
            raise ValueError("No answers were given with the questions.")
        _check_names(y, ANSWER, START)

    def encode(self, labels: Any, encoded: dict[str, Any]) -> tf.Tensor:
        _check_names(labels, ANSWER, START)
        answer, start = labels[ANSWER], labels[START]
        if answer.dtype != tf.string or not start.dtype.is_integer:
            raise ValueError(
                f"{ANSWER!r} and {START!r} are {answer.dtype.name} and {start.dtype.name}, "
                "expected strings and integers."
            )
        if not answer.shape.rank == start.shape.rank == 1:
            raise ValueError(
                f"{ANSWER!r} and {START!r} have shapes {answer.shape} and {start.shape}, "
                "expected one answer for each question."
            )
        begin, after = _bytes_of_answer(encoded, answer, tf.cast(start, tf.int32))
        begin, after = (
            tf.expand_dims(tf.gather(at, encoded["document"]), 1) for at in (begin, after)
        )
        covers = (encoded["piece"] >= 0) & (encoded["end"] > begin) & (encoded["start"] < after)
        # Each token of the document has most context in one window, so these are counted once.
        once = tf.reduce_sum(tf.cast(covers & encoded["max_context"], tf.int32), axis=1)
        all_tokens = tf.math.unsorted_segment_sum(once, encoded["document"], tf.size(answer))
        here = tf.reduce_sum(tf.cast(covers, tf.int32), axis=1)
        complete = (here > 0) & (here == tf.gather(all_tokens, encoded["document"]))
        positions = tf.stack([first_true(covers), last_true(covers)], axis=1)
        null = tf.expand_dims(encoded["null"], 1)
        return tf.where(tf.expand_dims(complete, 1), positions, null)


def gold_answers(labels: Any) -> list[list[str]]:
    """The gold answers of each question of a batch."""
    if not isinstance(labels, Mapping) or not {ANSWER, GOLD} & {*labels}:
        raise ValueError(f"labels must be a dict with {GOLD!r} or {ANSWER!r}.")
    values = labels[GOLD if GOLD in labels else ANSWER]
    if isinstance(values, tf.RaggedTensor):
        values = values.to_tensor()
    if values.shape.rank != (2 if GOLD in labels else 1):
        raise ValueError(
            f"Gold answers must have the shape (questions, answers), got {values.shape}."
        )
    return [as_text(row) for row in values.numpy().reshape(len(values), -1)]


def first_true(flags: tf.Tensor) -> tf.Tensor:
    """The first true position of each row, int32 (rows,); 0 where there is none."""
    return tf.argmax(flags, axis=1, output_type=tf.int32)


def last_true(flags: tf.Tensor) -> tf.Tensor:
    """The last true position of each row, int32 (rows,)."""
    return tf.shape(flags)[1] - 1 - first_true(tf.reverse(flags, [1]))


def _bytes_of_answer(
    features: dict[str, tf.Tensor], answer: tf.Tensor, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The bytes of the context that the answers cover.

    Args:
        features: string tensors (batch,), as ``_QuestionWindows`` returns them.
        answer: string (batch,).
        start: int32 (batch,), in characters.

    Returns:
        int32 (batch,), the first bytes and the bytes after the last; 0 and 0 for no answer.

    Raises:
        InvalidArgumentError: at run time, as ``checked``, for the first answer that is not in its
            context.
    """
    context = features[CONTEXT]
    bare = tf.strings.regex_replace(answer, f"^{SPACES}|{SPACES}$", "")
    length = tf.strings.length(bare)
    at = Characters(context).to_bytes(tf.expand_dims(start, 1))[:, 0]
    rest = tf.strings.substr(context, at, tf.strings.length(context) - at)
    from_word = tf.strings.regex_replace(rest, f"^{SPACES}", "")
    at += tf.strings.length(rest) - tf.strings.length(from_word)
    there = tf.strings.substr(from_word, tf.zeros_like(length), length)
    none = length == 0
    right = none | ((there == bare) & (start >= 0))
    wrong = tf.where(~right)[:1, 0]
    begin = checked(
        tf.where(none, 0, at),
        right,
        "The answer '",
        tf.gather(answer, wrong),
        "' to '",
        tf.gather(features[QUESTION], wrong),
        "' is not at character ",
        tf.gather(start, wrong),
        " of its context, where '",
        tf.gather(there, wrong),
        "' was found.",
    )
    return begin, tf.where(none, 0, begin + length)


def _check_names(labels: Any, *expected: str) -> None:
    if not isinstance(labels, Mapping):
        raise ValueError(
            f"labels must be a dict with {ANSWER!r} and {START!r}, got a {type(labels).__name__}."
        )
    if not {*expected} <= {*labels}:
        names = " and ".join(map(repr, expected))
        raise ValueError(f"labels must have {names}, got {sorted(labels)}.")


def _of_answers(rows: Any) -> dict[str, Any]:
    """The labels of questions from the answers of each, as ``pairs_of`` takes them."""
    answers_by_row = []
    for row, answers in enumerate(rows):
        try:
            answers_by_row.append([(text, int(start)) for text, start in pairs_of(answers) if text])
        except (ValueError, TypeError):
            raise ValueError(
                f"Example {row} of the labels must be answers, such as {{'text': ['a film'], "
                f"'answer_start': [0]}}, got {answers!r:.200}."
            ) from None
    first = [answers[0] if answers else ("", -1) for answers in answers_by_row]
    return {
        ANSWER: [text for text, _ in first],
        START: np.array([start for _, start in first], "int32"),
        GOLD: [[text for text, _ in answers] for answers in answers_by_row],
    }


def _arrays(labels: Any) -> dict[str, np.ndarray]:
    """Labels in lists as arrays: strings as bytes, gold answers padded with ""."""
    if isinstance(labels, list | tuple) and not all(isinstance(x, str | bytes) for x in labels):
        labels = _of_answers(labels)
    _check_names(labels)
    arrays = {}
    for name, values in labels.items():
        if name == GOLD:
            most = max([len(row) for row in values], default=0)
            rows = [[*row, *[""] * (most - len(row))] for row in values]
            arrays[name] = np.array(
                [[_encoded(text, i, name) for text in row] for i, row in enumerate(rows)], object
            ).reshape(len(rows), most)
        elif name == ANSWER:
            encoded = [_encoded(text, i, name) for i, text in enumerate(values)]
            arrays[name] = np.array(encoded, object)
        else:
            arrays[name] = np.asarray(values)
    return arrays


def _encoded(text: Any, row: int, name: str) -> bytes:
    if not isinstance(text, str | bytes):
        raise ValueError(f"Example {row} of {name!r} must be a string, got {text!r}.")
    return text.encode("utf-8", "replace") if isinstance(text, str) else text
