"""Sparse embeddings over the vocabulary (SPLADE, arXiv 2109.10086)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf import heads
from bertfam_tf.data.inputs import TEXT, Fields
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.components import TaskComponents, Tensors
from bertfam_tf.tasks.options import LoadingArguments, OptionArguments, Options, option
from bertfam_tf.tasks.preprocessing import SingleRow, in_parts
from bertfam_tf.tasks.sentence_transformers import SparseEncoder
from bertfam_tf.tasks.task import Task
from bertfam_tf.text import Tokenizer

# Texts per call of the model: logits (texts, length, vocabulary) take much memory.
_ROWS_PER_CALL = 4


@dataclass(frozen=True, kw_only=True)
class SparseOptions(Options):
    """Options of ``SparseEmbedder``."""

    pooling: Literal["max", "sum"] = option("max", choices=("max", "sum"))
    max_pieces: int = option(256, settable=True, at_least=1)


class SparseArguments(OptionArguments, total=False):
    """``SparseOptions`` as keyword arguments."""

    pooling: Literal["max", "sum"]
    max_pieces: int


class PretrainedSparseArguments(SparseArguments, LoadingArguments, total=False):
    """Keyword arguments of ``SparseEmbedder.from_pretrained``."""


class SparseEmbedder(Task):
    """Sparse embeddings, compared by dot product, for inverted indexes (SPLADE).

    The weight of a vocabulary entry is the maximum over the text's tokens of log(1 + relu(logit))
    of the masked language model. ``predict`` returns for each text ``{"tokens": list of str,
    "weights": float32 array}``, the entries with positive weights, the largest first.
    ``from_pretrained`` reads, and ``save_pretrained`` writes, the files of sentence-transformers'
    ``SparseEncoder``; it also reads models that are only a masked language model.

    An export answers with ``tokens``, string, and ``weights``, float32, both (batch, max_pieces),
    filled up with "" and 0, and their ``count``, int32 (batch,). The signature ``ids`` and a
    ``.tflite`` answer with all weights, ``embedding``, float32 (batch, vocabulary).

    Args:
        backbone: an encoder of a family with a masked language model's head.
        tokenizer: its tokenizer.
        pooling: how the weights at a text's tokens are combined: ``max`` or ``sum``.
        max_pieces: the number of entries to keep for a text, those with the largest weights.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for a family without such a head, an unknown pooling, or ``max_pieces`` below 1;
            and as ``Task`` raises it.
        CheckpointError: from ``from_pretrained``, for stored modules that are not supported.
    """

    options_type = SparseOptions
    pipeline_tag = "feature-extraction"
    fields = Fields((TEXT,), (), labelled=False)
    head_name = "masked_lm"
    answer_name = "tokens"
    published_type = SparseEncoder

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[SparseArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, **options: Unpack[PretrainedSparseArguments]
    ) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name)
        inputs = backbone.token_inputs
        logits = head(backbone(inputs, outputs=head.reads))  # (batch, length, vocabulary)
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        weights = ops.relu(ops.cast(logits[..., : tokenizer.vocab_size], "float32"))
        if options.pooling == "max":  # weights grow with logits, so the maximum comes first
            weights = ops.log1p(ops.max(_real(weights, inputs), axis=1))
        else:
            weights = ops.sum(_real(ops.log1p(weights), inputs), axis=1)
        return TaskComponents(
            inputs=inputs,
            outputs=weights,  # (batch, vocabulary)
            head=head,
            source=head.reads,
            preprocessor=_FewTexts(backbone, tokenizer, options, self.fields),
            postprocess=self._largest,
            answer_ids=lambda outputs, _: {"embedding": outputs},
            to_python=_to_python,
        )

    def _largest(self, outputs: tf.Tensor, _: Any) -> Tensors:
        k = min(self.max_pieces, self.tokenizer.vocab_size)
        weights, ids = tf.math.top_k(outputs, k)
        above = weights > 0
        return {
            "tokens": tf.where(above, self.tokenizer.id_to_token(ids), ""),
            "weights": weights,
            "count": tf.reduce_sum(tf.cast(above, tf.int32), axis=1),
        }


def _real(weights: Any, inputs: Any) -> Any:
    """Weights (batch, length, vocabulary), 0 at padding."""
    mask = ops.expand_dims(inputs["padding_mask"], -1)
    return weights * ops.cast(mask, weights.dtype)


class _FewTexts(SingleRow):
    """As ``SingleRow``; the model gets a few texts at a time."""

    def run(self, model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return in_parts(model, inputs, _ROWS_PER_CALL)[: tf.shape(inputs["token_ids"])[0]]


def _to_python(answers: Tensors, _: Tensors) -> list[dict[str, Any]]:
    columns = (answers[name].numpy() for name in ("tokens", "weights", "count"))
    return [
        {"tokens": [t.decode("utf-8", "replace") for t in tokens[:n]], "weights": weights[:n]}
        for tokens, weights, n in zip(*columns, strict=True)
    ]
