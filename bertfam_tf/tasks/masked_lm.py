"""The tokens that were masked in a text (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.data.batching import TEXT, batches, texts_of
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.answering import AnsweringTask
from bertfam_tf.tasks.base import Signature, compiled
from bertfam_tf.tasks.pretrained import open_task
from bertfam_tf.text import Tokenizer

_HEAD = "masked_lm"
_MAX_MASKS = 16


class MaskedLM(AnsweringTask):
    """Fills the masks in texts, as ``"It [MASK] well."``; ``mask_token`` is how one is written.

    The Keras model gives logits (batch, length, vocabulary). Answers take those at masks alone.

    Args:
        backbone: of a family that is trained to fill masks.
        tokenizer: its tokenizer, with a mask token that it finds in texts.
        top_k: how many tokens an answer has for each mask.
        max_length: most tokens of a text; longer ones are cut, and masks behind the cut get no
            answer. None for all positions.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    Raises:
        ValueError: for a family without such a head, a tokenizer without a mask token or one that
            does not look for it, a ``top_k`` beyond the vocabulary; and as ``Task`` raises it.
    """

    answer_name = "masks"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        top_k: int = 5,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        head = heads.build(backbone, _HEAD)
        mask = tokenizer.mask_id
        if not tokenizer.get_config()["special_tokens_in_text"]:
            raise ValueError("This tokenizer does not look for special tokens, so for no mask.")
        inputs = backbone.row_inputs
        super().__init__(
            inputs,
            head(backbone(inputs)),
            backbone=backbone,
            reads=head.source,
            tokenizer=tokenizer,
            pair=False,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.head = head
        self.top_k = self._checked_top_k(top_k)
        self._mask_id = mask

    def _forget_graphs(self) -> None:
        super()._forget_graphs()
        self._compiled_fill: dict[int, Any] = {}

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        top_k: int = 5,
        max_length: int | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> MaskedLM:
        """A task on a published checkpoint with its head.

        A head that the checkpoint does not have starts at random, and a log line says so.

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            top_k, max_length: as the constructor takes them.
            language: as ``TextClassifier.from_pretrained`` takes it.
            **overrides: config fields of the backbone.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: as the constructor raises it.
        """
        return open_task(
            cls,
            _HEAD,
            path,
            language=language,
            overrides=overrides,
            top_k=top_k,
            max_length=max_length,
        )

    @property
    def mask_token(self) -> str:
        """How a mask is written in a text."""
        return self.tokenizer.id_to_token(self._mask_id)

    # From text to answers ------------------------------------------------------------

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The likeliest tokens of each mask.

        Returns:
            ``tokens``, string (batch, most masks, top_k), the likeliest first, written as if they
            were a text alone; ``scores``, their probabilities, float32; ``""`` and 0 where a text
            has fewer masks; ``count``, int32 (batch,), how many it has.
        """
        return self._answer(features)

    def _answer(
        self, features: dict[str, tf.Tensor], max_masks: int | None = None
    ) -> dict[str, tf.Tensor]:
        ids, scores = self._found(features, self.top_k)
        tokens = ids.with_values(self._written(ids.values)[0])
        shape = [None, max_masks, self.top_k]
        return {
            "tokens": tf.ensure_shape(tokens.to_tensor(shape=shape), shape),
            "scores": tf.ensure_shape(scores.to_tensor(shape=shape), shape),
            "count": tf.cast(ids.row_lengths(), tf.int32),
        }

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Packed rows to ``logits``, float32 (batch, length, vocabulary)."""
        return {"logits": tf.cast(self(self._model_inputs(inputs), training=False), tf.float32)}

    def signatures(self, max_masks: int = _MAX_MASKS) -> dict[str, Signature]:
        """As ``Task.signatures``; ``serving_default`` is ``answer`` of one width for all texts.

        Args:
            max_masks: masks in an answer. ``count`` says how many a text has, and is more where
                those behind were cut from the answer.

        Raises:
            ValueError: for a number below 1.
        """
        if max_masks < 1:
            raise ValueError(f"max_masks is {max_masks}, expected 1 or more.")
        return {
            **super().signatures(),
            "serving_default": Signature(partial(self._answer, max_masks=max_masks)),
        }

    def _found(
        self, features: dict[str, tf.Tensor], top_k: int
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ids and probabilities, ragged (batch, (masks), top_k)."""
        inputs = self.preprocess(features)
        masked = inputs["token_ids"] == self._mask_id
        if "padding_mask" in inputs:
            masked &= inputs["padding_mask"] == 1
        outputs = self.backbone(inputs, training=False)
        # The vocabulary is the widest matrix by far, and masks are few.
        vectors = tf.boolean_mask(self.head.select(outputs), masked)
        logits = self.head.logits(vectors)
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        chances = tf.nn.softmax(tf.cast(logits, tf.float32))[:, : self.tokenizer.vocab_size]
        scores, ids = tf.math.top_k(chances, top_k)
        counts = tf.reduce_sum(tf.cast(masked, tf.int32), axis=1)
        return (
            tf.RaggedTensor.from_row_lengths(ids, counts, validate=False),
            tf.RaggedTensor.from_row_lengths(scores, counts, validate=False),
        )

    def _written(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokens int32 (masks, k) as a text alone, and as they go on from a text; strings."""
        flat = tf.reshape(ids, [-1])
        alone = self.tokenizer.detokenize(tf.expand_dims(flat, 1))
        # What a piece adds to itself is written as inside of a text: "ing" of "##ing".
        twice = self.tokenizer.detokenize(tf.stack([flat, flat], axis=1))
        added = tf.strings.substr(twice, tf.strings.length(alone), tf.strings.length(twice))
        return tf.reshape(alone, tf.shape(ids)), tf.reshape(tf.strings.strip(added), tf.shape(ids))

    # Keras' verbs ------------------------------------------------------------

    def fill(
        self, texts: str | Sequence[str], top_k: int | None = None, *, batch_size: int = 32
    ) -> Any:
        """The likeliest tokens of each mask in each text.

        Args:
            texts: one, or several; or data as ``predict`` takes it.
            top_k: how many tokens for each mask; None for the task's own number.
            batch_size: texts that are read at once.

        Returns:
            For each text a list with an entry for each of its masks (up to ``max_length`` tokens):
            ``top_k`` dicts, the likeliest first, of ``token``, written as a text alone; ``score``,
            its probability; and ``text``, in which it stands for that mask, with the white space
            and the other masks as they were. Of one text its list alone.

        Raises:
            ValueError: for a ``top_k`` beyond the vocabulary, or as ``predict`` raises it.
        """
        k = self.top_k if top_k is None else self._checked_top_k(top_k)
        stream = batches(texts_of(texts, self.fields), batch_size=batch_size, fields=self.fields)
        found = self._fill(stream, k)
        return found[0] if isinstance(texts, str) else found

    def _fill(self, stream: tf.data.Dataset, top_k: int, verbose: Any = 0) -> list[Any]:
        if top_k not in self._compiled_fill:
            self._compiled_fill[top_k] = compiled(partial(self._fillings, top_k=top_k))
        found: list[Any] = []
        fill = self._compiled_fill[top_k]
        for answer, (features, *_) in self._run(fill, stream, verbose):
            tokens, added, scores = (part.to_list() for part in answer)
            for text, *of_text in zip(
                features[TEXT].numpy().tolist(), tokens, added, scores, strict=True
            ):
                parts = text.split(self.mask_token.encode("utf-8"))
                found.append(
                    [
                        self._filled(parts, i, *of_mask)
                        for i, of_mask in enumerate(zip(*of_text, strict=True))
                    ]
                )
        return found

    def _fillings(self, features: dict[str, tf.Tensor], top_k: int) -> tuple:
        ids, scores = self._found(features, top_k)
        tokens, added = self._written(ids.values)
        return ids.with_values(tokens), ids.with_values(added), scores

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

    def predict(self, x: Any, **kwargs: Any) -> list[list[list[dict[str, Any]]]]:
        """As ``fill`` of several texts; labels in a data set are passed over.

        Args:
            x: texts, or a data set of them.
            **kwargs: ``batch_size`` and ``verbose``.

        Raises:
            ValueError: for data in a shape that is not known, or no data at all.
        """
        return super().predict(x, **kwargs)

    def _predicted(self, stream: tf.data.Dataset, verbose: Any) -> list[Any]:
        return self._fill(stream, self.top_k, verbose)

    def _check_trainable(self) -> None:
        raise ValueError(
            "MaskedLM fills masks and has no objective of its own to fit texts; call "
            "compile(loss=…) for one that takes logits (batch, length, vocabulary)."
        )

    def _checked_top_k(self, top_k: int) -> int:
        size = self.tokenizer.vocab_size
        if not isinstance(top_k, int) or not 1 <= top_k <= size:
            raise ValueError(f"top_k is a number from 1 to {size}, not {top_k!r}.")
        return top_k

    def _options(self) -> dict[str, Any]:
        options = {**super()._options(), "top_k": self.top_k}
        return {name: value for name, value in options.items() if name != "pair"}
