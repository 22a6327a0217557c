"""Labels of words: tags, at the first token of each word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import checked
from bertfam_tf.data.inputs import TEXT
from bertfam_tf.data.labels import decoded, index_of, not_listed
from bertfam_tf.metrics.compatible import Compatible
from bertfam_tf.metrics.table import UNLABELLED
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import NO_LABELS, Targets, labels_apart, without_names
from bertfam_tf.text.splitting import Split
from bertfam_tf.training.learner import mean_loss

_SHOWN = 40
_WORDS = list | tuple | np.ndarray


@keras.saving.register_keras_serializable(package="bertfam_tf")
class WordAccuracy(keras.metrics.Mean):
    """Accuracy at labelled positions, the first token of each word."""

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        labels = keras.ops.cast(y_true, "int32")
        right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, axis=-1), "int32"), labels)
        weights = keras.ops.cast(keras.ops.not_equal(labels, UNLABELLED), "float32")
        if sample_weight is not None:
            weights = weights * keras.ops.cast(sample_weight, "float32")
        return super().update_state(keras.ops.reshape(right, -1), keras.ops.reshape(weights, -1))


class TagTargets(Targets):
    """The tag of each word at its first token, int32 (windows, longest), -1 elsewhere.

    Args:
        tags: their names, in order.
        split: the same as for ``_WordWindows``.
    """

    padding = UNLABELLED
    compatible = Compatible(
        losses="SparseCategoricalCrossentropy",
        metrics="MeanMetricWrapper",
        loss='"sparse_categorical_crossentropy", or None, the task\'s own loss',
        metric='"accuracy"',
        accuracy=WordAccuracy,
        ignore_class=UNLABELLED,
    )

    def __init__(self, tags: Sequence[str], split: Callable[[], Split]):
        self.tags = list(tags)
        self.split = split

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Joins lists of words, and lists of tags, to one string per text."""
        x, y = labels_apart(x, y)
        if isinstance(x, tf.data.Dataset):
            return x, y
        x = self._joined(x)
        if y is not None:
            y = [self._label_of(i, tags) for i, tags in enumerate(without_names(y))]
        return x, y

    def check(self, y: Any) -> None:
        if y is None:
            raise ValueError(NO_LABELS)

    def counts(self, y: Any) -> dict[str, int]:
        by_tag = dict.fromkeys(self.tags, 0)
        for tags in y:
            for tag in tags.split():
                by_tag[tag] += 1
        return by_tag

    def encode(self, labels: Any, encoded: dict[str, Any]) -> tf.Tensor:
        label = tf.concat([[UNLABELLED], word_labels(self.tags, encoded, labels)], 0)
        return tf.gather(label, encoded["word"] + 1)

    def weights(self, weights: tf.Tensor) -> tf.Tensor:
        # (windows, 1): one for all words of a text
        return tf.expand_dims(super().weights(weights), 1)

    def _label_of(self, row: int, tags: Any) -> str:
        tags = decoded(tags)
        if isinstance(tags, str):
            tags = tags.split()
        elif not isinstance(tags, _WORDS):
            raise ValueError(f"Example {row} of the labels must be a list of tags, got {tags!r}.")
        return " ".join(map(self._name_of, tags))

    def _name_of(self, tag: Any) -> str:
        if isinstance(tag, int | np.integer) and 0 <= tag < len(self.tags):
            return self.tags[tag]
        tag = decoded(tag)
        if tag not in self.tags:
            raise ValueError(not_listed(str(tag), self.tags, "tag"))
        return str(tag)

    def _joined(self, x: Any) -> Any:
        if isinstance(x, Mapping) and TEXT in x:
            return {**x, TEXT: self._joined(x[TEXT])}
        if not isinstance(x, list | tuple) or not x or isinstance(x[0], str | bytes):
            return x
        if not any(isinstance(words, _WORDS) for words in x):
            return x
        if self.split() != "spaces":
            raise ValueError(
                f"Lists of words are words already; with split={self.split()!r} texts are expected."
            )
        return [_sentence(number, words) for number, words in enumerate(x)]


def word_labels(names: Sequence[str], windows: dict[str, Any], labels: tf.Tensor) -> tf.Tensor:
    """Returns the tag index of each word of the batch, int32 (words,)."""
    if without_names(labels).dtype != tf.string or labels.shape.rank != 1:
        raise ValueError(
            "labels of a data set must be one string for each text, tags separated by spaces, "
            f"got {labels.dtype.name} of shape {labels.shape}."
        )
    tags = tf.strings.split(labels)
    expected, given = windows["words"].text.row_lengths(), tags.row_lengths()
    wrong = tf.where(expected != given)[:1, 0]
    begins = tf.strings.substr(tf.gather(windows[TEXT], wrong), 0, _SHOWN)
    values = checked(
        tags.values,
        tf.size(wrong) == 0,
        "Words and tags differ in number: ",
        tf.gather(expected, wrong),
        " and ",
        tf.gather(given, wrong),
        ", in the text that begins with '",
        tf.strings.regex_replace(begins, r"\s", " "),
        "'.",
    )
    return index_of(values, names, "tag")


def word_loss(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    """Cross-entropy at the first token of each word."""
    valid = keras.ops.not_equal(targets, UNLABELLED)
    safe = keras.ops.where(valid, targets, 0)
    losses = keras.ops.sparse_categorical_crossentropy(safe, logits, from_logits=True)
    return mean_loss(losses, weights, valid)


def of_words(logits: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Logits of each tagged word, at its first token; of all tokens without targets."""
    valid = inputs["padding_mask"] > 0 if targets is None else targets != UNLABELLED
    return logits, keras.ops.cast(valid, "float32")


def _sentence(number: int, words: Any) -> str:
    if not isinstance(words, _WORDS):
        raise ValueError(f"Example {number} is {words!r}; the others are lists of words.")
    texts = list(map(decoded, words))
    for place, word in enumerate(texts):
        if not isinstance(word, str) or word.split() != [word]:
            raise ValueError(
                f"Example {number} has {word!r} for word {place}, expected a string that is not "
                "empty and has no white space."
            )
    return " ".join(texts)
