"""Causal language models: the probability of texts, and their continuation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import generation, heads, layers, registry
from bertfam_tf.data.inputs import TEXT, as_text
from bertfam_tf.generation import Options as GenerationOptions
from bertfam_tf.hints import hint
from bertfam_tf.metrics.compatible import CLASSES
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.objectives import next_tokens
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.objectives.predictions import counted, in_batch, vectors
from bertfam_tf.tasks.components import Signature, Targets, TaskComponents, Tensors
from bertfam_tf.tasks.generation_config import GenerationConfig
from bertfam_tf.tasks.likelihood import ScoresTexts
from bertfam_tf.tasks.options import OptionArguments, PretrainedArguments
from bertfam_tf.tasks.preprocessing import SingleRow, TextWindows
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.packing import Frame
from bertfam_tf.text.special_tokens import A_THEN_B

_HEAD = "causal_lm"
_PROMPT = replace(A_THEN_B, pad_left=True)
_REPLACEMENT = "\ufffd"


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Perplexity(keras.metrics.Mean):
    """Perplexity: exp of the mean cross-entropy per token, over tokens with a nonzero weight.

    NaN without such tokens.
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        losses = keras.ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        # Flattened, because Keras averages each row first, and rows differ in length.
        weights = keras.ops.ones_like(losses) if sample_weight is None else sample_weight
        return super().update_state(keras.ops.reshape(losses, -1), keras.ops.reshape(weights, -1))

    def result(self) -> Any:
        # Keras' mean of nothing is 0, which would be the best perplexity of all.
        return keras.ops.where(self.count > 0, keras.ops.exp(super().result()), float("nan"))


class CausalLM(ScoresTexts, Task):
    """A causal language model: the likelihood of texts, and text generation.

    ``fit`` and ``evaluate`` take texts without labels. A text longer than ``max_length`` is split
    into several examples, each of which begins with the last token of the previous one: every token
    except a text's first is predicted once. No special tokens are added to a text; texts that end
    with the tokenizer's end-of-text token train the model to end a text.

    ``predict`` returns for each text ``{"log_likelihood": float, "tokens": int}``, in nats, of its
    first ``max_length`` tokens; ``tokens`` is the number of predicted tokens, all except the first.
    ``log_likelihood`` counts the first token too, after the tokenizer's bos token, or its eos token
    if it has no other; not with a tokenizer that has neither, or that pads on the left, as XLNet's
    does. ``evaluate`` returns the loss and the perplexity. ``export`` takes the arguments of
    ``generate``, except ``callback``; they are fixed in the signature ``generate``, which returns
    the continuations, ``text``. ``from_pretrained`` warns of settings in a checkpoint's
    ``generation_config.json``, which ``generate`` only takes as arguments.

    XLNet predicts from left to right here; in generation, the previous tokens attend to each other
    in both directions.

    Args:
        backbone: a causal model, or a permutation language model (XLNet).
        tokenizer: its tokenizer.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for a backbone of another family; and as ``Task`` raises it.
    """

    needs_head = True
    pipeline_tag = "text-generation"
    published_type = GenerationConfig
    # Prompt and continuation are one segment; in transformers' pipelines they cannot have any.
    unpublished_inputs = ("segment_ids",)

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[OptionArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Unpack[PretrainedArguments]) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        name = self.head_of(backbone.family)
        head = heads.build(backbone, name)
        # The tokenizer may add special tokens in other tasks, as XLNet's does.
        plain = A_THEN_B
        inputs = backbone.token_inputs
        causal = name == _HEAD
        if causal:
            logits = head(backbone(inputs, outputs=head.reads))
        else:
            of_padding = ("pad_left", "pad_segment")
            plain = replace(plain, **{n: getattr(tokenizer.layout, n) for n in of_padding})
            hidden, targets = layers.CausalPermutation()(inputs["token_ids"])
            inputs_and_masks = {**inputs, "perm_mask": hidden, "target_mapping": targets}
            logits = head(backbone(inputs_and_masks, outputs=head.reads))
            # These logits predict the token at their own position, not the next one.
            logits = keras.ops.roll(logits, -1, axis=1)
        return TaskComponents(
            inputs=inputs,
            outputs=logits,  # (batch, length, vocabulary)
            read=(lambda outputs, _: head(outputs)) if causal else None,
            distributions=_of_next_tokens if causal else None,
            head=head,
            source=head.reads,
            preprocessor=SingleRow(backbone, tokenizer, options, self.fields, layout=plain),
            # Windows overlap by the token that predicts the first one of the next.
            training_preprocessor=TextWindows(
                backbone, tokenizer, options, self.fields, 1, layout=A_THEN_B
            ),
            postprocess=_sums,
            answer_ids=_sums,
            to_python=_to_python,
            targets=_NextTokens(),
            loss=_token_loss,
            weighted_metrics=lambda: [Perplexity()],
            signatures=self._signatures,
        )

    @classmethod
    def head_of(cls, family: str) -> str:
        """Returns the name of the head that predicts the next token.

        Raises:
            ValueError: if the family is neither causal nor a permutation language model.
        """
        record = registry.get(family)
        if "permutation_lm" in record.heads:
            return "permutation_lm"
        if not record.is_causal:
            raise ValueError(f"{family} is not causal: its tokens attend to later ones.")
        return _HEAD

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        if kwargs.get("metrics"):
            raise ValueError(
                f"metrics of a {type(self).__name__} would count padding, got "
                f"{kwargs['metrics']}; pass weighted_metrics."
            )
        super().compile(optimizer, loss, **kwargs)

    def forget_graphs(self) -> None:
        super().forget_graphs()
        self._compiled_loop = lru_cache(maxsize=8)(self._make_loop)
        self._compiled_steps = lru_cache(maxsize=8)(self._make_steps)
        self._prompts = Frame(_PROMPT, self.tokenizer.special_ids)
        self._step = generation.decoder(self.backbone, self.head.logits_of_few)

    def perplexity(self, x: Any, *, batch_size: int = 8) -> float:
        """Returns the perplexity of texts: exp of the mean cross-entropy per token.

        The first token of each text is not counted; long texts are split into windows. NaN if no
        text has two tokens.

        Raises:
            ValueError: if there is no data, or its structure is unknown.
        """
        return self.evaluate(x, batch_size=batch_size, verbose=0, return_dict=True)["perplexity"]

    def _log_likelihoods(self, features: Tensors) -> tf.Tensor:
        inputs = dict(self.preprocess(features))
        ids = self.tokenizer.special_ids
        first = next((ids[role] for role in ("bos", "eos") if role in ids), None)
        padded_left = self.tokenizer.layout.pad_left and self.head_of(self.backbone.family) != _HEAD
        if first is not None and not padded_left:
            length = self.max_length - 1
            for name, x in inputs.items():
                begin = x[:, :1]
                if name == "token_ids":
                    begin = tf.fill(tf.shape(begin), first)
                elif name == "padding_mask":
                    begin = tf.ones_like(begin)
                inputs[name] = tf.concat([begin, x[:, :length]], axis=1)
        return _sums(self(inputs, training=False), inputs)["log_likelihood"]

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
        """Continues each prompt.

        Args:
            prompts: one text, or several that form a batch. Long ones are truncated to their last
                ``max_length - max_new_tokens`` tokens; an empty one begins with the
                tokenizer's bos token (or eos or unknown token, the first that it has).
            stop_tokens: tokens, as strings or ids, before which a continuation ends; None for the
                tokenizer's eos token, if it has one.
            seed: the random seed of sampling; None for a different one in each call.
            callback: called after each token with the text that it adds to each prompt ("" if a
                character is not complete yet, or the continuation has ended).
            **options: ``max_new_tokens``, ``min_new_tokens``, ``temperature``, ``top_k``,
                ``top_p``, ``min_p``, ``num_beams``, ``length_penalty``, ``repetition_penalty`` and
                ``no_repeat_ngram_size``, as ``bertfam_tf.generation.Options`` takes them;
                ``max_new_tokens`` is at most half of ``max_length`` by default.

        Returns:
            The continuation, without the prompt and the stop token; a list for a list.

        Raises:
            ValueError: for an unknown option or a value out of range, an empty list of prompts, a
                stop token outside the vocabulary, ``max_new_tokens`` of ``max_length`` or more, or
                a callback with beam search, whose tokens are only known at the end.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"prompts must be a string or a list of strings, got {prompts!r}.")
        chosen = self._generation_options(options)
        stops = self._stop_ids(stop_tokens)
        encoded = tf.constant([text.encode("utf-8", "replace") for text in texts])
        numbers = _seed(seed)
        self._forget_graphs_without_lora()
        if callback is None:
            written = as_text(self._compiled_loop(chosen, stops)(encoded, numbers))
        else:
            if chosen.num_beams > 1:
                raise ValueError(
                    "callback must be None with beam search, which has no text before its end."
                )
            written = self._stream(encoded, numbers, chosen, stops, callback)
        return written[0] if isinstance(prompts, str) else written

    def _generation_options(self, changes: dict[str, Any]) -> GenerationOptions:
        fields = GenerationOptions.__dataclass_fields__
        for name in changes:
            if name not in fields:
                line = hint([name, f"generate.{name}"])
                raise ValueError(unknown("option of generation", name, fields, line))
        # Leaves room for a prompt, also in models with few positions.
        default = min(GenerationOptions.max_new_tokens, max(self.max_length // 2, 1))
        options = GenerationOptions(**{"max_new_tokens": default, **changes})
        if options.max_new_tokens >= self.max_length:
            raise ValueError(
                f"max_new_tokens must be below max_length, {self.max_length}, to leave room for a "
                f"prompt, got {options.max_new_tokens}."
            )
        return options

    def _stop_ids(self, tokens: Sequence[str | int] | None) -> tuple[int, ...]:
        if tokens is None:
            return tuple({i for role, i in self.tokenizer.special_ids.items() if role == "eos"})
        if isinstance(tokens, str):
            raise ValueError(f"stop_tokens must be a list of tokens, got {tokens!r}.")
        token_to_id = self.tokenizer.token_to_id
        try:
            ids = {token_to_id(t) if isinstance(t, str) else operator.index(t) for t in tokens}
        except TypeError:
            raise ValueError(f"stop_tokens must be strings or integers, got {tokens!r}.") from None
        wrong = [i for i in ids if not 0 <= i < self.tokenizer.vocab_size]
        if wrong:
            raise ValueError(
                f"The stop token {wrong[0]} is outside the vocabulary, 0 to "
                f"{self.tokenizer.vocab_size - 1}."
            )
        return tuple(sorted(ids))

    def _prompt_ids(self, prompts: tf.Tensor, room: int) -> dict[str, tf.Tensor]:
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
        self,
        prompts: tf.Tensor,
        seed: tf.Tensor,
        options: GenerationOptions,
        stops: tuple[int, ...],
    ) -> tf.Tensor:
        """String (batch,) to the texts that follow, string (batch,)."""
        inputs = self._prompt_ids(prompts, self.max_length - options.max_new_tokens)
        tokens = generation.generate(
            self._step, inputs["token_ids"], inputs["padding_mask"], options, stops, seed=seed
        )
        return self._written(tokens, stops)

    def _written(self, tokens: tf.Tensor, stops: tuple[int, ...]) -> tf.Tensor:
        """Text up to the first stop token, of int32 (rows, new tokens)."""
        stopped = tf.cumsum(tf.cast(generation.is_one_of(tokens, stops), tf.int32), axis=1) > 0
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        no_text = tokens >= self.tokenizer.vocab_size
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(tokens, ~(stopped | no_text)))

    def _make_loop(self, options: GenerationOptions, stops: tuple[int, ...]) -> Any:
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([2], tf.int32)],
            autograph=False,
        )
        def loop(prompts, seed):
            return self._continued(prompts, seed, options, stops)

        return loop.get_concrete_function()

    def _make_steps(self, options: GenerationOptions, stops: tuple[int, ...]) -> Any:
        """Functions that encode prompts, make room, choose one more token, and decode."""
        read = tf.TensorSpec([None], tf.string), tf.TensorSpec([2], tf.int32)

        @tf.function(input_signature=read, autograph=False)
        def begin(prompts, seed):
            inputs = self._prompt_ids(prompts, self.max_length - options.max_new_tokens)
            ids, mask = inputs["token_ids"], inputs["padding_mask"]
            return generation.begin(self._step, ids, mask, options, stops, seed)

        begun = begin.get_concrete_function()
        progress = generation.progress_spec(begun.structured_outputs)

        @tf.function(input_signature=[progress], autograph=False)
        def with_room(progress):
            return generation.with_room(self._step, progress, options)

        @tf.function(input_signature=[progress, read[1]], autograph=False)
        def advance(progress, seed):
            return generation.advance(self._step, progress, options, stops, 0, seed)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
        def write(tokens):
            return self._written(tokens, stops)

        return begun, *(f.get_concrete_function() for f in (with_room, advance, write))

    def _stream(
        self,
        prompts: tf.Tensor,
        seed: tf.Tensor,
        options: GenerationOptions,
        stops: tuple[int, ...],
        callback: Callable[[list[str]], Any],
    ) -> list[str]:
        begin, with_room, advance, write = self._compiled_steps(options, stops)
        progress = begin(prompts, seed)
        sent = [""] * prompts.shape[0]
        for done in range(options.max_new_tokens):
            texts = as_text(write(progress.new_tokens))
            last = done == options.max_new_tokens - 1 or bool(tf.reduce_all(progress.finished))
            # An incomplete character at the end may still change.
            known = [text if last else text.rstrip(_REPLACEMENT) for text in texts]
            callback([text[len(before) :] for text, before in zip(known, sent, strict=True)])
            sent = [max(text, before, key=len) for text, before in zip(known, sent, strict=True)]
            if last:
                break
            if done % generation.block_length(options) == 0:
                progress = with_room(progress)
            progress = advance(progress, seed)
        return texts

    def _signatures(self, **options: Any) -> dict[str, Signature]:
        stops = self._stop_ids(options.pop("stop_tokens", None))
        seed = options.pop("seed", None)
        chosen = self._generation_options(options)

        def generate(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            numbers = _drawn() if seed is None else _seed(seed)
            return {"text": self._continued(features[TEXT], numbers, chosen, stops)}

        repeatable = seed is not None or not chosen.samples
        return {"generate": Signature(generate, repeatable=repeatable)}


class _NextTokens(Targets):
    """The token after each, int32 (windows, length), weighted by 1.0 where there is one."""

    compatible = CLASSES

    def check(self, y: Any) -> None:
        if y is not None:
            raise ValueError(
                "A language model is trained on texts; y and sample_weight must be None."
            )

    def encode(self, labels: Any, encoded: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        return next_tokens(encoded["token_ids"], encoded["padding_mask"])


def _token_loss(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    """Cross-entropy of the tokens, over their weights."""
    losses = keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    losses = keras.ops.cast(losses, "float32")
    return keras.ops.sum(losses * weights), keras.ops.sum(weights)


def _of_next_tokens(logits: Any, inputs: Tensors, _: Any) -> tuple[Any, Any]:
    """Logits (tokens, vocabulary) where a token follows, and their weights."""
    _, weights = next_tokens(inputs["token_ids"], inputs["padding_mask"])
    positions = tf.cumsum(tf.ones_like(inputs["token_ids"]), axis=1) - 1
    weights, index = counted(weights, in_batch(positions, tf.shape(positions)[1]))
    return vectors(logits, index), weights


def _sums(logits: tf.Tensor, inputs: dict[str, Any]) -> Tensors:
    """Logits (batch, length, vocabulary) to sums over each text."""
    targets, weights = next_tokens(inputs["token_ids"], inputs["padding_mask"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    return {
        "log_likelihood": 0.0 - tf.reduce_sum(losses * weights, axis=1),
        "tokens": tf.cast(tf.reduce_sum(weights, axis=1), tf.int32),
    }


def _to_python(answers: Tensors, texts: Tensors) -> list[dict[str, Any]]:
    columns = [value.numpy().tolist() for value in answers.values()]
    return [dict(zip(answers, values, strict=True)) for values in zip(*columns, strict=True)]


def _seed(seed: int | None) -> tf.Tensor:
    """Two numbers; the second counts the tokens."""
    if seed is not None and not isinstance(seed, int | np.integer):
        raise ValueError(f"seed must be an integer or None, got {seed!r}.")
    if seed is None:
        return tf.constant(np.random.default_rng().integers(2**30, size=2), tf.int32)
    return tf.constant([int(seed) % 2**31, 0], tf.int32)


def _drawn() -> tf.Tensor:
    return tf.random.uniform([2], maxval=2**30, dtype=tf.int32)
