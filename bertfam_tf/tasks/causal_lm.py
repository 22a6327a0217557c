"""Language models that read from left to right, and go on writing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import generation, heads, layers, registry
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.data.batching import TEXT, batches
from bertfam_tf.generation import Options
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.tasks.answering import AnsweringTask
from bertfam_tf.tasks.base import Signature, as_text
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.text.packing import A_THEN_B, Frame
from bertfam_tf.text.windows import Windows

_HEAD = "causal_lm"
_PROMPT = replace(A_THEN_B, pad_left=True)
_REPLACEMENT = "\ufffd"


class Perplexity(keras.metrics.Mean):
    """exp of the mean loss of a token, over all tokens that weigh anything."""

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        losses = keras.ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        # Flat, because Keras takes means of rows first, and rows differ in length.
        weights = keras.ops.ones_like(losses) if sample_weight is None else sample_weight
        return super().update_state(keras.ops.reshape(losses, -1), keras.ops.reshape(weights, -1))

    def result(self) -> Any:
        return keras.ops.exp(super().result())


class CausalLM(AnsweringTask):
    """The next token of a text, and so the probability of texts, and new ones.

    ``fit`` and ``evaluate`` take texts alone. One that is longer than ``max_length`` becomes
    several rows, of which each begins with the last token of the one before: every token but a
    text's first is predicted once. Nothing is put around a text; one that ends with the tokenizer's
    end-of-text token, as it is written, teaches the model to end.

    XLNet, which predicts in any order, does so from left to right here; when it writes, it reads
    what stands before from both sides.

    Args:
        backbone: of a family that reads from left to right, or in any order.
        tokenizer: its tokenizer.
        max_length: most tokens of a row, prompt and continuation together; None for all
            positions.

    Raises:
        ValueError: for a backbone of another family; and as ``Task`` raises it.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        **kwargs: Any,
    ):
        name = _head_of(backbone.family)
        head = heads.build(backbone, name)
        inputs = backbone.row_inputs
        if name == _HEAD:
            logits = head(backbone(inputs))
        else:
            hidden, targets = layers.CausalPermutation()(inputs["token_ids"])
            logits = head(backbone({**inputs, "perm_mask": hidden, "target_mapping": targets}))
            # Made for each token, and not for the one behind it.
            logits = keras.ops.roll(logits, -1, axis=1)
        super().__init__(
            inputs,
            logits,
            backbone=backbone,
            reads=head.source,
            tokenizer=tokenizer,
            pair=False,
            max_length=max_length,
            **kwargs,
        )
        self.head = head
        self._windows = Windows(A_THEN_B, tokenizer.special_ids, self.max_length, stride=1)
        self._prompts = Frame(_PROMPT, tokenizer.special_ids)
        self._step = generation.decoder(backbone, head.logits)

    def _forget_graphs(self) -> None:
        super()._forget_graphs()
        self._compiled_loop = lru_cache(maxsize=8)(self._make_loop)
        self._compiled_steps = lru_cache(maxsize=8)(self._make_steps)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, max_length: int | None = None, **overrides: Any
    ) -> CausalLM:
        """A language model from a published checkpoint.

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            max_length: most tokens of a row.
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: for a family that does not read from left to right.
        """
        checkpoint = Checkpoint(path, **overrides)
        tokenizer = load_tokenizer(checkpoint.directory)
        task = cls(checkpoint.backbone(), tokenizer, max_length=max_length)
        checkpoint.fill_head(task.head, _head_of(checkpoint.family.name))
        return task

    # Probabilities of texts --------------------------------------------------------------------

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        inputs = self.preprocess(features)
        return self._scores(inputs, self(inputs, training=False))

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        inputs = self._model_inputs(inputs)
        return self._scores(inputs, self(inputs, training=False))

    @staticmethod
    def _scores(inputs: dict[str, tf.Tensor], logits: tf.Tensor) -> dict[str, tf.Tensor]:
        targets, weights = _shifted(inputs)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            targets, tf.cast(logits, tf.float32)
        )
        return {
            "log_likelihood": 0.0 - tf.reduce_sum(losses * weights, axis=1),
            "tokens": tf.cast(tf.reduce_sum(weights, axis=1), tf.int32),
        }

    def predict(self, x: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """For each text ``{"log_likelihood": float, "tokens": int}``, in nats.

        Of the first ``max_length`` tokens; ``tokens`` were predicted, all but the first. The same
        rows as the exported model answers over HTTP. Arguments and errors as for ``Task.predict``.
        """
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
        columns = [value.numpy().tolist() for value in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]

    def perplexity(self, x: Any, *, batch_size: int = 8) -> float:
        """exp of the mean loss of all tokens but each text's first; long texts in windows.

        Raises:
            ValueError: for no data, or data in a shape that is not known.
        """
        return self.evaluate(x, batch_size=batch_size, verbose=0, return_dict=True)["perplexity"]

    def _encoded(
        self, x: Any, y: Any = None, weight: Any = None, batch_size: int = 32, shuffle: bool = False
    ) -> tf.data.Dataset:
        if y is not None or weight is not None:
            raise ValueError(
                "A language model learns from texts alone; there are labels or weights."
            )
        stream = batches(x, batch_size=batch_size, shuffle=shuffle)
        self._settle_pair(stream)

        @tf.autograph.experimental.do_not_convert
        def encode(features, *_):
            inputs = self._windows([self.tokenizer.tokenize(features[TEXT])])
            inputs = {name: inputs[name] for name in self.backbone.row_inputs}
            return (inputs, *_shifted(inputs))

        return stream.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _compile_defaults(self) -> dict[str, Any]:
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        return {"loss": loss, "weighted_metrics": [Perplexity()]}

    # New texts -----------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        stop_tokens: Sequence[str | int] | None = None,
        seed: int | None = None,
        callback: Callable[[list[str]], Any] | None = None,
        **options: Any,
    ) -> str | list[str]:
        """Goes on writing where each prompt ends.

        Args:
            prompts: one text, or several that are continued together. Of a long one the last
                ``max_length - max_new_tokens`` tokens are read; an empty one begins with the
                tokenizer's bos token (or eos or unknown token, the first that it has).
            stop_tokens: tokens, as pieces or ids, before which a continuation ends; None for the
                tokenizer's eos token, where it has one.
            seed: of what is drawn; the same seed draws the same. None for another each time.
            callback: called for each token with the pieces of text that it adds, one for each
                prompt ("" where a character is not whole yet, or a row has ended).
            **options: ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``num_beams``
                and ``length_penalty``, as ``bertfam_tf.generation.Options`` takes them.

        Returns:
            The continuation, without the prompt and the stop token; a list for a list.

        Raises:
            ValueError: for an option that is not known or out of range, no prompt, a stop token
                that the tokenizer does not have, more new tokens than ``max_length`` leaves, or a
                callback with beam search, whose tokens are only known at the end.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"Prompts are one string or several, not {prompts!r}.")
        chosen = self._generation_options(options)
        stops = self._stop_ids(stop_tokens)
        given = tf.constant([text.encode("utf-8", "replace") for text in texts])
        numbers = _seed(seed)
        if callback is None:
            found = as_text(self._compiled_loop(chosen, stops)(given, numbers))
        else:
            if chosen.num_beams > 1:
                raise ValueError("Beam search has no text before its end: no callback.")
            found = self._stream(given, numbers, chosen, stops, callback)
        return found[0] if isinstance(prompts, str) else found

    def _generation_options(self, given: dict[str, Any]) -> Options:
        fields = Options.__dataclass_fields__
        for name in given:
            if name not in fields:
                raise ValueError(unknown("option of generation", name, fields))
        options = Options(**given)
        if options.max_new_tokens >= self.max_length:
            raise ValueError(
                f"max_new_tokens {options.max_new_tokens} leaves no room for a prompt; prompt and "
                f"continuation have {self.max_length} tokens."
            )
        return options

    def _stop_ids(self, tokens: Sequence[str | int] | None) -> tuple[int, ...]:
        if tokens is None:
            return tuple({i for role, i in self.tokenizer.special_ids.items() if role == "eos"})
        if isinstance(tokens, str):
            raise ValueError(f"stop_tokens is a list of tokens, not {tokens!r}.")
        token_to_id = self.tokenizer.token_to_id
        ids = {token_to_id(t) if isinstance(t, str) else int(t) for t in tokens}
        wrong = [i for i in ids if not 0 <= i < self.tokenizer.vocab_size]
        if wrong:
            raise ValueError(
                f"The stop token {wrong[0]} is outside the vocabulary, 0 to "
                f"{self.tokenizer.vocab_size - 1}."
            )
        return tuple(sorted(ids))

    def _read(self, prompts: tf.Tensor, room: int) -> dict[str, tf.Tensor]:
        """The last tokens of each prompt, padded on the left."""
        pieces = self.tokenizer.tokenize(prompts)
        ids = self.tokenizer.special_ids
        first = next((ids[role] for role in ("bos", "eos", "unk") if role in ids), 0)
        empty = tf.cast(pieces.row_lengths() == 0, tf.int32)
        begin = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(empty)], first), empty)
        pieces = tf.concat([begin.with_row_splits_dtype(pieces.row_splits.dtype), pieces], axis=1)
        lengths = tf.cast(pieces.row_lengths(), tf.int32)
        counts = tf.minimum(lengths, room)
        starts = tf.cast(pieces.row_splits[1:], tf.int32) - counts
        return self._prompts.fill([pieces.values], [starts], [counts]).inputs

    def _continued(
        self, prompts: tf.Tensor, seed: tf.Tensor, options: Options, stops: tuple[int, ...]
    ) -> tf.Tensor:
        """String (batch,) to the texts that follow, string (batch,)."""
        inputs = self._read(prompts, self.max_length - options.max_new_tokens)
        tokens = generation.generate(
            self._step, inputs["token_ids"], inputs["padding_mask"], options, stops, seed=seed
        )
        return self._written(tokens, stops)

    def _written(self, tokens: tf.Tensor, stops: tuple[int, ...]) -> tf.Tensor:
        """Text up to the first stop token, of int32 (rows, new tokens)."""
        stopped = tf.cumsum(tf.cast(generation.among(tokens, stops), tf.int32), axis=1) > 0
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        no_text = tokens >= self.tokenizer.vocab_size
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(tokens, ~(stopped | no_text)))

    def _make_loop(self, options: Options, stops: tuple[int, ...]) -> Any:
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([2], tf.int32)],
            autograph=False,
        )
        def loop(prompts, seed):
            return self._continued(prompts, seed, options, stops)

        return loop.get_concrete_function()

    def _make_steps(self, options: Options, stops: tuple[int, ...]) -> Any:
        """What reads the prompts, what chooses one more token, what writes: for streaming."""
        read = tf.TensorSpec([None], tf.string), tf.TensorSpec([2], tf.int32)

        @tf.function(input_signature=read, autograph=False)
        def begin(prompts, seed):
            inputs = self._read(prompts, self.max_length - options.max_new_tokens)
            ids, mask = inputs["token_ids"], inputs["padding_mask"]
            return generation.begin(self._step, ids, mask, options, stops, seed)

        begun = begin.get_concrete_function()

        @tf.function(
            input_signature=[generation.growing(begun.structured_outputs), read[1]], autograph=False
        )
        def advance(progress, seed):
            return generation.advance(self._step, progress, options, stops, 0, seed)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
        def write(tokens):
            return self._written(tokens, stops)

        return begun, advance.get_concrete_function(), write.get_concrete_function()

    def _stream(
        self,
        prompts: tf.Tensor,
        seed: tf.Tensor,
        options: Options,
        stops: tuple[int, ...],
        callback: Callable[[list[str]], Any],
    ) -> list[str]:
        begin, advance, write = self._compiled_steps(options, stops)
        progress = begin(prompts, seed)
        told = [""] * prompts.shape[0]
        for left in reversed(range(options.max_new_tokens)):
            texts = as_text(write(progress.new_tokens))
            last = not left or bool(tf.reduce_all(progress.finished))
            # What does not end with a whole character may still change.
            known = [text if last else text.rstrip(_REPLACEMENT) for text in texts]
            callback([text[len(before) :] for text, before in zip(known, told, strict=True)])
            told = [max(text, before, key=len) for text, before in zip(known, told, strict=True)]
            if last:
                break
            progress = advance(progress, seed)
        return texts

    @property
    def published_inputs(self) -> tuple[str, ...]:
        # What is read and written is one segment; theirs cannot go on writing with any.
        return tuple(name for name in super().published_inputs if name != "segment_ids")

    # Storing -------------------------------------------------------------------------------------

    def signatures(self, **options: Any) -> dict[str, Signature]:
        """As ``Task.signatures``, and ``generate``: texts to their continuations, ``text``.

        Args:
            **options: as for ``generate``, but ``callback``; they are fixed in the export.
        """
        stops = self._stop_ids(options.pop("stop_tokens", None))
        seed = options.pop("seed", None)
        chosen = self._generation_options(options)

        def generate(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            numbers = _drawn() if seed is None else _seed(seed)
            return {"text": self._continued(features[TEXT], numbers, chosen, stops)}

        repeatable = seed is not None or not chosen.samples
        return {**super().signatures(), "generate": Signature(generate, repeatable=repeatable)}

    def _options(self) -> dict[str, Any]:
        return {"max_length": self.max_length}


def _head_of(family: str) -> str:
    """The head that says the next token.

    Raises:
        ValueError: for a family that does not read from left to right, and not in any order.
    """
    card = registry.get(family)
    if "permutation_lm" in card.heads:
        return "permutation_lm"
    if "clm" not in card.objectives or _HEAD not in card.heads:
        raise ValueError(f"{family} does not read from left to right.")
    return _HEAD


def _shifted(inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The token behind each, and 1.0 where there is one."""
    mask = inputs["padding_mask"]
    targets = tf.roll(inputs["token_ids"], -1, axis=1)
    there = tf.concat([mask[:, 1:], tf.zeros_like(mask[:, :1])], axis=1)
    return targets, tf.cast(there, tf.float32)


def _seed(seed: int | None) -> tf.Tensor:
    """Two numbers; the second counts on with the tokens."""
    if seed is not None and not isinstance(seed, int):
        raise ValueError(f"seed is a whole number or None, not {seed!r}.")
    if seed is None:
        return tf.constant(np.random.default_rng().integers(2**30, size=2), tf.int32)
    return tf.constant([seed % 2**31, 0], tf.int32)


def _drawn() -> tf.Tensor:
    return tf.random.uniform([2], maxval=2**30, dtype=tf.int32)
