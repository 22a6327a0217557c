"""Converts raw text and labels to training batches."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data import inputs
from bertfam_tf.data.batching import TokenBatches
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import LABEL, batches
from bertfam_tf.data.labels import summary
from bertfam_tf.data.reading import is_published, read_rows
from bertfam_tf.data.tables import Columns
from bertfam_tf.data.targets import Target
from bertfam_tf.tasks.components import TaskComponents, labels_apart
from bertfam_tf.tasks.inference import with_language
from bertfam_tf.tasks.preprocessing import token_counts
from bertfam_tf.tasks.text_learner import TextLearner, renamed

_COUNTED_AT_ONCE = 1024


class TaskTraining(TextLearner):
    """The part of a ``Task`` that trains: batches of raw text and labels, and Keras' steps."""

    fit_options = ("batch_tokens",)
    evaluate_options = ("language",)
    _parts: TaskComponents
    _settle_pair: Callable[[tf.data.Dataset], None]
    pair: bool | None
    file_labels: Callable[[], type[Target] | None]

    def examples(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        columns: Columns | None = None,
        prepare: inputs.Prepare | None = None,
    ) -> tuple[Any, Any, Any]:
        if isinstance(x, str) and is_published(x):
            x, columns = self._published(x, columns, labelled=y is None), None
        prepare = prepare or self._parts.targets.prepared
        return inputs.examples(x, y, sample_weight, self.fields, prepare, columns, self.pair)

    def _published(self, name: str, columns: Columns | None, *, labelled: bool) -> dict[str, Any]:
        """Returns the examples of a split of tensorflow-datasets, in memory."""
        kind = self.file_labels() if labelled else None
        names = self.class_names
        target = None if kind is None else kind(names or None)
        rows = read_rows(name, columns, target=target)  # type: ignore[arg-type]
        element: Any = next(rows.dataset().batch(rows.count).as_numpy_iterator())
        features = {key: values.tolist() for key, values in element[0].items()}
        return {**features, LABEL: element[1]} if len(element) > 1 else features

    def class_weights(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        return self._parts.targets.class_weights(class_weight)

    @property
    def class_names(self) -> list[str]:
        """Names of the labels or tags, in the order of the scores; empty if there are none."""
        return []

    def balanced_class_weights(self, x: Any, y: Any = None) -> dict[int, float]:
        targets = self._parts.targets
        if not targets.classes:
            return super().balanced_class_weights(x, y)
        if isinstance(x, types.GeneratorType):
            raise ValueError("class_weight='balanced' reads the labels twice, got a generator.")
        x, y, _ = self.examples(x, y)
        stream = batches(*targets.prepared(x, y), batch_size=_COUNTED_AT_ONCE, fields=self.fields)
        if stream.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError("class_weight='balanced' needs a data set that ends.")
        labels = stream.map(lambda _, labels, *weights: targets.encode(labels, {}))
        with as_value_errors():
            counts = np.sum([np.bincount(x, minlength=targets.classes) for x in labels], axis=0)
        average = counts.sum() / np.count_nonzero(counts)
        return {i: float(average / count) if count else 1.0 for i, count in enumerate(counts)}

    training_batches = renamed("training_batches", "text_batches")

    def _compile_defaults(self, steps: int | None = None) -> None:
        if self._parts.loss is None and not self._parts.objectives:
            raise ValueError(f"{type(self).__name__} has no default loss; call compile(loss=…).")
        super()._compile_defaults(steps)

    def count_tokens(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the number of tokens of each example in ``fit``: all windows, without padding.

        Args:
            features: string tensors (batch,) by name.

        Returns:
            int32 (batch,).
        """
        return token_counts(self._parts.training_preprocessor or self._parts.preprocessor, features)

    def text_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        batch_tokens: int | None = None,
        training: bool = False,
        seed: int | None = None,
        labelled: bool = True,
        language: str | int | None = None,
        extend: Callable[[dict[str, tf.Tensor], dict[str, Any], tuple], tuple] | None = None,
    ) -> tf.data.Dataset:
        """Returns batches for the Keras model: inputs; targets and weights if there are any.

        Args:
            x, y, sample_weight, batch_size, shuffle, batch_tokens: the same as for ``fit``.
            training: whether masks are redrawn in each epoch; otherwise they are always the same.
            seed: the random seed of masks, which are then the same in each epoch.
            labelled: whether examples must have labels.
            language: the same as for ``predict``.
            extend: maps texts, their result of ``encode``, and the batch to a new batch.

        Raises:
            ValueError: as for ``fit``.
        """
        targets = self._parts.targets
        x, y, sample_weight = self.examples(x, y, sample_weight)
        x, y = labels_apart(*targets.prepared(x, y))
        if y is not None:
            targets.check(y)
        if training:
            counts = None if y is None else targets.counts(y)
            self._label_summary = "" if not counts else summary(counts)
        stream = batches(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            by_tokens=None
            if batch_tokens is None
            else TokenBatches(batch_tokens, self.count_tokens),
            shuffle=shuffle,
            fields=self.fields,
        )
        if len(stream.element_spec) == 1 and labelled:
            targets.check(None)
        self._settle_pair(stream)
        preprocessor: Any = self._parts.training_preprocessor or self._parts.preprocessor
        language_id = None if language is None else preprocessor.languages.id_of(language)

        @tf.autograph.experimental.do_not_convert
        def encode(features, *rest, **drawn):
            features = with_language(features, language_id)
            encoded = preprocessor(features, **drawn)
            batch = (preprocessor.inputs(encoded), *labels_of(encoded, *(rest or (None,))))
            return batch if extend is None else extend(features, encoded, batch)

        def labels_of(encoded, labels, *weights):
            target = targets.encode(labels, encoded) if labels is not None or labelled else None
            if isinstance(target, tuple):
                if weights:
                    raise ValueError(
                        f"{type(self).__name__} takes no sample weights, got a data set with them."
                    )
                return target
            spread = [targets.weights(preprocessor.spread(weight, encoded)) for weight in weights]
            return (*([] if labels is None else [target]), *spread)

        if not self._parts.draws:
            return stream.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

        @tf.autograph.experimental.do_not_convert
        def encode_drawn(number, batch):
            count = tf.shape(tf.nest.flatten(batch)[0])[0]
            seeds = tf.stack([tf.fill([count], number), tf.range(count)], axis=1)
            return encode(*batch, seeds=seeds)

        numbers = tf.data.Dataset.random(
            0 if seed is None and not training else seed,
            rerandomize_each_iteration=training and seed is None,
        ).map(lambda number: tf.cast(number % (1 << 31), tf.int32))
        drawn = tf.data.Dataset.zip(numbers, stream)
        return drawn.map(encode_drawn, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
