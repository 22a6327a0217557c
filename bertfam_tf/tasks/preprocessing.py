"""Converts texts to the inputs of a model: packed token ids, or overlapping windows."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from bertfam_tf import layers
from bertfam_tf.data.inputs import Fields
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.languages import LANGUAGES, Languages, repeated
from bertfam_tf.tasks.options import Options
from bertfam_tf.text import Packer, Tokenizer, Windows, spans_of
from bertfam_tf.text.packing import Truncation
from bertfam_tf.text.special_tokens import TEXTS, Layout

# 1 at the tokens to pool, in models that exclude the prompt.
POOLED = "pooling_mask"
PACKED = ("token_ids", "padding_mask", "segment_ids", POOLED)
# Rows per call of the model: attention scores of a hundred windows would take gigabytes.
_ROWS_PER_CALL = 32


class Preprocessor:
    """Converts texts to packed token ids.

    Args:
        backbone: the backbone that reads the inputs.
        tokenizer: splits texts.
        options: the task's options.

    Attributes:
        languages: the languages of the texts, with the tokenizer.
        rows_per_example: the number of rows of token ids that an example becomes; None if it
            depends on the example.
    """

    rows_per_example: int | None = None

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, options: Options):
        self.backbone = backbone
        self.languages = Languages(backbone, tokenizer, options.language_id, options.languages)

    @property
    def tokenizer(self) -> Tokenizer:
        """Splits texts."""
        return self.languages.tokenizer

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        """Converts string tensors (batch,) to packed token ids and further inputs of answers.

        The feature ``language`` is the same as for ``Languages.of``.
        """
        raise NotImplementedError

    def inputs(self, encoded: dict[str, Any]) -> dict[str, tf.Tensor]:
        """The model's inputs for packed token ids."""
        language = encoded.get(LANGUAGES, self.languages.language_id)
        return model_inputs(self.backbone, language, encoded)

    def run(self, model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """The outputs of a Keras model for these inputs."""
        return model(inputs, training=False)

    def spread(self, values: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        """Values (batch, …) of the examples, repeated for each of the model's inputs."""
        return values

    def in_language(
        self, encoded: dict[str, Any], language: int | tf.Tensor | None
    ) -> dict[str, Any]:
        """Adds the language of each of the model's inputs.

        Args:
            encoded: packed token ids.
            language: the language of each example, from ``Languages.of``.
        """
        if language is None:
            return encoded
        if isinstance(language, tf.Tensor):
            return {**encoded, LANGUAGES: self.spread(language, encoded)}
        return {**encoded, LANGUAGES: tf.constant(language)}


class SingleRow(Preprocessor):
    """One row of token ids for each example.

    Args:
        backbone: whose inputs are made.
        tokenizer: the tokenizer.
        options: the task's options.
        fields: names of the texts.
        truncation: which of two texts is truncated, as for ``Packer``.
        prompt: the prefix of the first text.
        pool_prompt: whether the prompt's tokens, and special tokens before it, are pooled. If not,
            the model has the input ``pooling_mask``.
        layout: special tokens and segments; None for the tokenizer's.

    Call:
        features: string tensors (batch,).

    Returns:
        ``token_ids``, ``padding_mask`` and ``segment_ids``, and ``pooling_mask`` unless
        ``pool_prompt``, int32 (batch, longest); token ids have the axes of
        ``Tokenizer.token_shape`` in addition. ``longest``, here and below, is the longest row, or
        the length that the option ``padding`` selects.
    """

    rows_per_example: int | None = 1

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        options: Options,
        fields: Fields,
        truncation: Truncation = "longest_first",
        prompt: str = "",
        pool_prompt: bool = True,
        layout: Layout | None = None,
    ):
        assert options.max_length is not None
        super().__init__(backbone, tokenizer, options)
        self.names = (*fields.required, *fields.optional)
        self.prompt = prompt
        self.pool_prompt = pool_prompt
        ids = tokenizer.special_ids
        layout = tokenizer.layout if layout is None else layout
        self.packer = Packer(layout, ids, options.max_length, truncation, options.padding)

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        texts = [features[name] for name in self.names if name in features]
        if self.prompt:
            texts[0] = tf.strings.join([self.prompt, texts[0]])
        return self.packed(texts, self.prompt_tokens, self.languages.of(features))

    def packed(
        self,
        texts: list[tf.Tensor],
        prompt_tokens: Any,
        language: int | tf.Tensor | None,
    ) -> dict[str, Any]:
        """Packs texts that begin with their prompt.

        Args:
            texts: string (batch,), one or two.
            prompt_tokens: the ``prompt_tokens`` of the prompt, or of each row, int32 (batch, 1).
            language: the result of ``Languages.of``.
        """
        packed = self.in_language(self._pack(texts, language), language)
        if not self.pool_prompt:
            real = packed["padding_mask"]
            packed[POOLED] = tf.where(tf.cumsum(real, axis=1) > prompt_tokens, real, 0)
        return packed

    def _pack(
        self, texts: list[tf.Tensor], language: int | tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        tokenizer = self.languages.tokenizer_of(language)
        return self.packer([tokenizer.tokenize(text) for text in texts])

    def with_prompt(self, prompt: str) -> Self:
        """Returns this preprocessor with another prompt; both share their languages."""
        other = copy.copy(self)
        other.prompt = prompt
        vars(other).pop("prompt_tokens", None)  # the cached one is the old prompt's
        return other

    @functools.cached_property
    def prompt_tokens(self) -> int:
        """The prompt's tokens and the special tokens around it, except one after it."""
        if not self.prompt:
            return 0
        with tf.init_scope():
            prompt = self._pack([tf.constant([self.prompt])], self.languages.language_id)
            count = int(tf.reduce_sum(prompt["padding_mask"]))
        return count - (self.tokenizer.layout.entries(1)[-1][0] not in TEXTS)

    def inputs(self, encoded: dict[str, Any]) -> dict[str, tf.Tensor]:
        inputs = super().inputs(encoded)
        if not self.pool_prompt:
            pooled = encoded.get(POOLED, encoded["padding_mask"])
            inputs[POOLED] = tf.ensure_shape(pooled, [None, None])
        return inputs


class MultiRow(SingleRow):
    """A row of token ids for each of several texts of an example, with the example's first text.

    Call:
        features: string tensors; the first (batch,), the second (batch, texts).

    Returns:
        As ``SingleRow``, int32 (batch, texts, longest).
    """

    rows_per_example: int | None = None

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        first, second = (features[name] for name in self.names[:2])
        return self.pairs(first, second, self.languages.of(features))

    def pairs(
        self, texts: tf.Tensor, others: tf.Tensor, language: int | tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        """Packs texts with each of several others.

        Args:
            texts: string (batch,).
            others: string (batch, texts).
            language: the result of ``Languages.of``.
        """
        batch, count = tf.unstack(tf.shape(others))
        count = self.rows_per_example or count
        # The first text is tokenized once, whatever the number of second texts.
        first = self.languages.tokenizer_of(language).tokenize(texts)
        first = tf.gather(first, tf.repeat(tf.range(batch), count))
        tokenizer = self.languages.tokenizer_of(repeated(language, count))
        packed = self.packer([first, tokenizer.tokenize(tf.reshape(others, [-1]))])
        shape = [batch, count, tf.shape(packed["padding_mask"])[1]]
        packed = {name: tf.reshape(x, [*shape, *x.shape[2:]]) for name, x in packed.items()}
        return self.in_language(packed, language)

    def inputs(self, encoded: dict[str, Any]) -> dict[str, tf.Tensor]:
        batch, count, length = tf.unstack(tf.shape(encoded["padding_mask"]))
        count = self.rows_per_example or count
        packed = {name: encoded[name] for name in PACKED if name in encoded}
        rows = [batch * count, length]
        packed = {name: tf.reshape(x, [*rows, *x.shape[3:]]) for name, x in packed.items()}
        language = encoded.get(LANGUAGES, self.languages.language_id)
        if language is not None:
            ranked = isinstance(language, tf.Tensor) and language.shape.rank == 1
            packed[LANGUAGES] = repeated(language, count) if ranked else language
        shape = [batch, count, length]
        return {
            name: tf.reshape(x, [*shape, *x.shape[2:]])
            for name, x in super().inputs(packed).items()
        }


class WindowedPreprocessor(Preprocessor):
    """Overlapping windows of each document; a text before it is included in every window.

    Args:
        backbone, tokenizer, options: the same as for ``SingleRow``.
        fields: names of the texts; the last one is the document.
        stride: the number of tokens by which consecutive windows overlap.
        max_question: maximum number of tokens of the text before the document; as ``Windows``.
        layout: the same as for ``SingleRow``.

    Call:
        features: string tensors (batch,).

    Returns:
        The result of ``Windows``, and the byte offsets of each token in the document: ``start``
        and ``end``, int32 (windows, longest), -1 where ``piece`` is -1.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        options: Options,
        fields: Fields,
        stride: int,
        max_question: int | None = None,
        layout: Layout | None = None,
    ):
        assert options.max_length is not None
        super().__init__(backbone, tokenizer, options)
        self.names = fields.required
        layout = tokenizer.layout if layout is None else layout
        ids, padding = tokenizer.special_ids, options.padding
        self.windows = Windows(layout, ids, options.max_length, stride, max_question, padding)

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        *before, document = self.names
        language = self.languages.of(features)
        tokenizer = self.languages.tokenizer_of(language)
        pieces, starts, ends = tokenizer.tokenize_with_offsets(features[document])
        texts = [tokenizer.tokenize(features[name]) for name in before]
        windows = self.windows([*texts, pieces])
        start, end = spans_of(windows, starts, ends)
        return {**self.in_language(windows, language), "start": start, "end": end}

    def run(self, model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return in_parts(model, inputs)  # (windows, longest, …)

    def spread(self, values: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        return tf.gather(values, encoded["document"])


class TextWindows(WindowedPreprocessor):
    """As ``WindowedPreprocessor``, of a single text, and without the offsets of its tokens."""

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        language = self.languages.of(features)
        [text] = self.names
        tokens = self.languages.tokenizer_of(language).tokenize(features[text])
        return self.in_language(self.windows([tokens]), language)


def in_parts(
    model: keras.Model, inputs: dict[str, tf.Tensor], size: int = _ROWS_PER_CALL
) -> tf.Tensor:
    """Runs a Keras model on any number of rows, ``size`` at a time, and concatenates outputs."""
    # At least one call, also for 0 rows: an empty list cannot be concatenated.
    count = tf.maximum(tf.shape(inputs["token_ids"])[0], 1)
    dtype, shape = model.output.dtype, model.output_shape
    parts = tf.TensorArray(dtype, -(-count // size), infer_shape=False, element_shape=shape)

    def step(i: tf.Tensor, done: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        part = {name: x[i * size : (i + 1) * size] for name, x in inputs.items()}
        part = {n: tf.ensure_shape(x, [None, *inputs[n].shape[1:]]) for n, x in part.items()}
        return i + 1, done.write(i, tf.cast(model(part, training=False), dtype))

    _, parts = tf.while_loop(lambda i, _: i * size < count, step, (0, parts), parallel_iterations=1)
    return tf.ensure_shape(parts.concat(), shape)


def rows_of(
    specs: Mapping[str, Any], model: Callable[[dict[str, Any]], Any], count: int | None = None
) -> tuple[dict[str, Any], Any]:
    """Turns a function on rows into one on several rows for each example.

    Args:
        specs: Keras tensors (rows, length, …), the inputs of ``model`` by name.
        model: maps such inputs to outputs (rows, …).
        count: the number of rows of an example, if it is fixed.

    Returns:
        Keras inputs (batch, count, length, …), by name; and outputs (batch, count, …).
    """
    inputs = {
        name: keras.Input((count, *spec.shape[1:]), dtype=spec.dtype, name=name)
        for name, spec in specs.items()
    }
    outputs = model({name: layers.MergeRows()(x) for name, x in inputs.items()})
    return inputs, layers.SplitRows()(outputs, inputs["token_ids"])


def run_rows(model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Runs a model of ``rows_of`` on a limited number of rows at a time.

    Args:
        model: a function of (batch, count, length) that returns (batch, count, …).
        inputs: int32 (batch, count, length, …), by name.
    """
    batch, count, length = tf.unstack(tf.shape(inputs["padding_mask"]))
    shape = [batch * count, 1, length]
    rows = {n: tf.reshape(x, [*shape, *x.shape[3:]]) for n, x in inputs.items()}
    # Drops the row that in_parts adds to 0 rows.
    outputs = in_parts(model, rows)[: batch * count]
    return tf.reshape(outputs, [batch, count, *model.output_shape[2:]])


def token_counts(preprocessor: Preprocessor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the number of tokens of each example, over all of its rows, int32 (batch,)."""
    count = tf.shape(next(iter(features.values())))[0]
    encoded = preprocessor(features)
    mask = encoded["padding_mask"]  # (rows, …, length)
    tokens = tf.reduce_sum(mask, axis=list(range(1, mask.shape.rank)))
    example = preprocessor.spread(tf.range(count), encoded)
    return tf.math.unsorted_segment_sum(tokens, example, count)


def model_inputs(
    backbone: Backbone, language: int | tf.Tensor | None, packed: dict[str, Any]
) -> dict[str, tf.Tensor]:
    """The backbone's inputs.

    Args:
        backbone: the model.
        language: the id of all rows, or int32 (rows,); None if the backbone has no languages.
        packed: packed token ids.

    Returns:
        int32 (rows, longest), by name.
    """
    inputs = {name: packed[name] for name in PACKED if name in packed and name != POOLED}
    if language is not None:
        rows = tf.reshape(language, [-1, 1])
        inputs[LANGUAGES] = tf.broadcast_to(rows, tf.shape(inputs["padding_mask"]))
    inputs = backbone.complete(inputs)
    # Grappler loses ranks in tokenizers' functions and in loops, and then warns for every softmax
    # that it cannot estimate the cost.
    return {
        name: tf.ensure_shape(inputs[name], [None, *spec.shape[1:]])
        for name, spec in backbone.token_inputs.items()
    }
