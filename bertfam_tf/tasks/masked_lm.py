"""Masked language models: the most probable tokens at masks (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self, Unpack

import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.corpora import Masking
from bertfam_tf.data.inputs import TEXT, Fields
from bertfam_tf.metrics.compatible import Compatible
from bertfam_tf.models import Backbone
from bertfam_tf.names import truncated
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.objectives.predictions import counted, in_batch, vectors
from bertfam_tf.tasks.components import Signature, Targets, TaskComponents, Tensors
from bertfam_tf.tasks.likelihood import ScoresTexts
from bertfam_tf.tasks.options import LoadingArguments, OptionArguments, Options, option
from bertfam_tf.tasks.preprocessing import SingleRow, TextWindows
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import SingleLossTracker

_MAX_MASKS = 16
# Tokens in a forward pass of ``log_likelihood``.
_TOKENS = 16_384
# The mask tokens of BERT, and of RoBERTa, XLNet and MPNet.
_MASKS = (b"[MASK]", b"<mask>")


@dataclass(frozen=True, kw_only=True)
class MaskedOptions(Options):
    """Options of ``MaskedLM``."""

    top_k: int = option(5)
    mask_rate: float = option(0.15)
    mask_unit: str = option("piece")


class MaskedArguments(OptionArguments, total=False):
    """``MaskedOptions`` as keyword arguments."""

    top_k: int
    mask_rate: float
    mask_unit: str


class PretrainedMaskedArguments(MaskedArguments, LoadingArguments, total=False):
    """Keyword arguments of ``MaskedLM.from_pretrained``."""


class MaskedLM(ScoresTexts, Task):
    """Predicts masked tokens in texts such as ``"It [MASK] well."``; ``mask_token`` is the mask.

    ``fit`` and ``evaluate`` take texts without labels, and mask them (see ``objectives.Masking``):
    ``fit`` adapts a checkpoint to the language of a domain (arXiv 2004.10964), and
    ``save_pretrained`` writes one that other tasks start from. Masks are redrawn in each epoch;
    in ``evaluate`` and validation they are the same for the same batches. Texts that are
    longer than ``max_length`` are split into several examples. Metrics are the loss, the
    ``perplexity`` and the ``accuracy`` of masked tokens.

    ``predict`` returns what ``fill`` does. Masks that are truncated get no answer. The
    Keras model returns ``logits`` (batch, length, vocabulary) and the hidden states that they are
    computed from; training and answers only compute logits at masks.

    ``log_likelihood`` returns pseudo-log-likelihoods (Salazar et al. 2020, arXiv 1910.14659): each
    token is masked alone and predicted from the others, so that a text of n tokens takes n forward
    passes. Special tokens that frame a text are not counted.

    The exported model returns ``tokens``, string (batch, ``max_masks``, ``top_k``), the most
    probable first, each detokenized alone; ``scores``, their probabilities, float32;
    ``""`` and 0 if a text has fewer masks; and ``count``, int32 (batch,), the number of masks.
    ``max_masks`` is an argument of ``export``; ``count`` is larger if masks were omitted.

    Args:
        backbone: a backbone of a family that is trained to fill masks.
        tokenizer: its tokenizer, with a mask token that it finds in texts.
        top_k: the number of tokens in an answer for each mask.
        mask_rate: the fraction of a text's tokens that ``fit`` masks.
        mask_unit: the unit of masking: ``piece`` (a token), or ``word`` (whole-word masking).
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for a family without such a head, a tokenizer without a mask token or without
            ``special_tokens_in_text``, a ``top_k`` beyond the vocabulary; and as ``Task``.
    """

    options_type = MaskedOptions
    pipeline_tag = "fill-mask"
    head_name = "masked_lm"
    tracker = SingleLossTracker
    answer_name = "masks"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[MaskedArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, **options: Unpack[PretrainedMaskedArguments]
    ) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name)
        mask_id = tokenizer.mask_id
        if not tokenizer.get_config()["special_tokens_in_text"]:
            raise ValueError("tokenizer must have special_tokens_in_text=True, to find masks.")
        _check_top_k(options.top_k, tokenizer)

        def masked_logits(inputs: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
            masked = inputs["token_ids"] == mask_id
            if "padding_mask" in inputs:
                masked &= inputs["padding_mask"] == 1
            hidden = head.select(
                backbone(inputs, training=False, outputs=head.reads)
            )  # (batch, length, hidden)
            # The vocabulary is the widest matrix by far, and masks are few.
            logits = head.logits(tf.boolean_mask(hidden, masked))  # (masks, vocabulary)
            return logits, tf.reduce_sum(tf.cast(masked, tf.int32), axis=1)

        def read(outputs: Any, _: Any) -> Any:
            return {"logits": head(outputs), head.reads: outputs[head.reads]}

        def distributions(outputs: Any, inputs: Tensors, _: Any) -> tuple[Any, Any]:
            x = outputs[head.reads]  # (batch, length, width)
            mask = inputs["padding_mask"]
            positions = tf.cumsum(tf.ones_like(mask), axis=1) - 1
            weights, index = counted(mask, in_batch(positions, tf.shape(mask)[1]))
            return head.logits(vectors(x, index)), weights  # (tokens, vocabulary)

        inputs = backbone.token_inputs
        return TaskComponents(
            inputs=inputs,
            outputs=read(backbone(inputs, outputs=head.reads), inputs),
            read=read,
            distributions=distributions,
            objectives=(MaskedTokens(head),),
            training_preprocessor=_MaskedWindows(backbone, tokenizer, options, self.fields),
            draws=True,
            targets=_MaskedTokens(),
            head=head,
            source=head.reads,
            preprocessor=SingleRow(backbone, tokenizer, options, self.fields),
            forward=masked_logits,
            postprocess=self._most_probable,
            answer_ids=lambda outputs, _: {"logits": tf.cast(outputs["logits"], tf.float32)},
            predicted=self._fillings,
            to_python=self._filled_texts,
            signatures=self._signatures,
        )

    @property
    def mask_token(self) -> str:
        """The mask token, as it is written in texts."""
        return self.tokenizer.id_to_token(self.tokenizer.mask_id)

    def _log_likelihoods(self, features: Tensors) -> tf.Tensor:
        inputs, head = self.preprocess(features), self.components.head
        assert head is not None
        ids = inputs["token_ids"]  # (batch, length)
        # A text's own unknown tokens and masks are tokens as others are.
        frame = {i for role, i in self.tokenizer.special_ids.items() if role not in ("unk", "mask")}
        counted = tf.reduce_all(ids[..., None] != sorted(frame), axis=-1)
        places = tf.where(counted & (inputs["padding_mask"] == 1))  # (tokens, 2)
        count, rows = tf.shape(places)[0], _TOKENS // tf.maximum(tf.shape(ids)[1], 1)

        def add(start: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = places[start : start + tf.maximum(rows, 1)]
            numbers = tf.range(tf.shape(part, out_type=tf.int64)[0])
            index = tf.stack([numbers, part[:, 1]], axis=1)
            masked = {name: tf.gather(x, part[:, 0]) for name, x in inputs.items()}
            targets = tf.gather_nd(masked["token_ids"], index)
            mask = tf.fill(tf.shape(targets), self.tokenizer.mask_id)
            masked["token_ids"] = tf.tensor_scatter_nd_update(masked["token_ids"], index, mask)
            hidden = head.select(self.backbone(masked, training=False, outputs=head.reads))
            logits = tf.cast(head.logits(tf.gather_nd(hidden, index)), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            sums = tf.tensor_scatter_nd_sub(sums, part[:, :1], losses)
            return start + tf.maximum(rows, 1), sums

        # A long text has as many rows as tokens: not all at once.
        begin = tf.constant(0), tf.zeros(tf.shape(ids)[:1])
        return tf.while_loop(lambda start, _: start < count, add, begin, parallel_iterations=1)[1]

    # From text to answers --------------------------------------------------------------------

    def _top(
        self, outputs: tuple[tf.Tensor, tf.Tensor], top_k: int
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ids and probabilities, ragged (batch, (masks), top_k)."""
        logits, counts = outputs
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        scores = tf.nn.softmax(tf.cast(logits, tf.float32))[:, : self.tokenizer.vocab_size]
        scores, ids = tf.math.top_k(scores, top_k)  # (masks, top_k)
        return (
            tf.RaggedTensor.from_row_lengths(ids, counts, validate=False),
            tf.RaggedTensor.from_row_lengths(scores, counts, validate=False),
        )

    def _most_probable(self, outputs: Any, _: Any, max_masks: int | None = None) -> Tensors:
        ids, scores = self._top(outputs, self.top_k)
        tokens = ids.with_values(self._written(ids.values)[0])
        shape = [None, max_masks, self.top_k]
        return {
            "tokens": tf.ensure_shape(tokens.to_tensor(shape=shape), shape),
            "scores": tf.ensure_shape(scores.to_tensor(shape=shape), shape),
            "count": tf.cast(ids.row_lengths(), tf.int32),
        }

    def _signatures(self, max_masks: int = _MAX_MASKS) -> dict[str, Signature]:
        if max_masks < 1:
            raise ValueError(f"max_masks must be at least 1, got {max_masks}.")

        def answer(features: Tensors) -> Tensors:
            return self._most_probable(self.forward(self.encode(features)), None, max_masks)

        return {"serving_default": Signature(answer)}

    def _written(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Detokenizes int32 (masks, k), each token alone and as the continuation of a word."""
        flat = tf.reshape(ids, [-1])
        alone = self.tokenizer.detokenize(tf.expand_dims(flat, 1))
        # A token's text inside of a word is its addition to itself: "ing" for "##ing".
        twice = self.tokenizer.detokenize(tf.stack([flat, flat], axis=1))
        added = tf.strings.substr(twice, tf.strings.length(alone), tf.strings.length(twice))
        return tf.reshape(alone, tf.shape(ids)), tf.reshape(tf.strings.strip(added), tf.shape(ids))

    def fill(
        self,
        texts: str | Sequence[str],
        top_k: int | None = None,
        *,
        batch_size: int = 32,
        language: str | int | None = None,
    ) -> Any:
        """The most probable tokens of each mask in each text.

        Args:
            texts: one, or several; or data as ``predict`` takes it.
            top_k: how many tokens for each mask; None for the task's own number.
            batch_size: texts that are answered together.
            language: the same as for ``predict``.

        Returns:
            For each text, a list with an entry for each mask that is not truncated:
            ``top_k`` dicts, the most probable first, of ``token``, detokenized alone; ``score``,
            its probability; and ``text``, in which it replaces that mask, with white space and
            other masks unchanged. For a single text, its list.

        Raises:
            ValueError: for a ``top_k`` beyond the vocabulary, a text with another model's mask
                token and none of this one's, or as ``predict`` raises it.
        """
        k = self.top_k if top_k is None else _check_top_k(top_k, self.tokenizer)
        fillings = self._fillings if k == self.top_k else self._fillings_of(k)
        loop: dict[str, Any] = {"batch_size": batch_size, "language": language}
        filled = self._answered(fillings, self._filled_texts, texts, **loop)
        return filled[0] if isinstance(texts, str) else filled

    def forget_graphs(self) -> None:
        super().forget_graphs()
        # One function for each number, so that it is traced once.
        self._fillings_of: Callable = lru_cache(maxsize=8)(
            lambda top_k: partial(self._fillings, top_k=top_k)
        )

    def _fillings(self, features: Tensors, *, top_k: int | None = None) -> tuple:
        outputs = self.forward(self.encode(features))
        ids, scores = self._top(outputs, self.top_k if top_k is None else top_k)
        tokens, added = self._written(ids.values)
        return ids.with_values(tokens), ids.with_values(added), scores

    def _filled_texts(self, outputs: Any, features: Tensors) -> list[list[Any]]:
        mask, filled = self.mask_token.encode("utf-8"), []
        columns = (part.to_list() for part in outputs)
        for text, *of_text in zip(features[TEXT].numpy().tolist(), *columns, strict=True):
            _check_mask(text, mask)
            parts = text.split(mask)
            masks = list(zip(*of_text, strict=True))
            # A text that is too long has lost its last masks, or its first ones.
            left = self.tokenizer.layout.truncate_left
            first = max(len(parts) - 1 - len(masks), 0) if left else 0
            filled.append(
                [self._filled(parts, i, *of_mask) for i, of_mask in enumerate(masks, first)]
            )
        return filled

    def _filled(
        self, parts: list[bytes], i: int, tokens: list[bytes], added: list[bytes], scores: list
    ) -> list[dict[str, Any]]:
        mask = self.mask_token.encode("utf-8")
        before, after = mask.join(parts[: i + 1]), mask.join(parts[i + 1 :])
        return [
            {
                "token": token.decode("utf-8", "replace"),
                "score": score,
                "text": (before + more + after).decode("utf-8", "replace"),
            }
            for token, more, score in zip(tokens, added, scores, strict=True)
        ]


def _check_mask(text: bytes, mask: bytes) -> None:
    """Raises ``ValueError`` for a text with another model's mask token, and none of this one's."""
    other = next((token for token in _MASKS if token in text and token != mask), None)
    if other is not None and mask not in text:
        ours, theirs = mask.decode(), other.decode()
        example = text.replace(other, mask).decode("utf-8", "replace")
        raise ValueError(
            f"{theirs} is a word to this model, whose mask is {ours}. Write {truncated(example)!r}."
        )


class _MaskedWindows(TextWindows):
    """Texts of any length as masked windows that do not overlap."""

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, options: Any, fields: Fields):
        super().__init__(backbone, tokenizer, options, fields, 0)
        self.masking = Masking(tokenizer, options.mask_rate, options.mask_unit)

    def __call__(self, features: Tensors, seeds: tf.Tensor | None = None) -> dict[str, Any]:
        windows = super().__call__(features)
        if seeds is None:
            return windows
        # The seed of a window is its text's first number and its own index.
        seeds = tf.gather(seeds, windows["document"])
        index = tf.range(tf.shape(seeds)[0])
        seeds = tf.stack([seeds[:, 0], index], axis=1)
        masked = self.masking(windows["token_ids"], windows["padding_mask"], seeds)
        return {**windows, "token_ids": masked.token_ids, "masked": masked}


class _MaskedTokens(Targets):
    """The masked tokens and their positions, as ``objectives.MaskedTokens`` reads them."""

    compatible = Compatible(
        losses="", metrics="", metric="no metrics: it reports accuracy and perplexity"
    )

    def check(self, y: Any) -> None:
        if y is not None:
            raise ValueError(
                "A masked language model is trained on texts; y and sample_weight must be None."
            )

    def encode(self, labels: Any, encoded: dict[str, Any]) -> tuple[Tensors, tf.Tensor]:
        masked = encoded["masked"]
        return {"positions": masked.positions, "token_ids": masked.targets}, masked.weights


def _check_top_k(top_k: int, tokenizer: Tokenizer) -> int:
    size = tokenizer.vocab_size
    if not isinstance(top_k, int) or not 1 <= top_k <= size:
        raise ValueError(f"top_k must be an integer from 1 to {size}, got {top_k!r}.")
    return top_k
