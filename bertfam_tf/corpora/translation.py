"""Examples of translation language modeling (TLM; XLM, arXiv 1901.07291, section 3.3)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.models import Backbone
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.packing import Packer, Padding, Truncation
from bertfam_tf.text.special_tokens import Layout

_INPUTS = ("position_ids", "language_ids")


class TranslationPairs:
    """A sentence and its translation as one example, so that each helps to predict the other.

    Each has the special tokens of a single text: XLM's pairs are ``</s> a </s> </s> b </s>``.
    Positions restart at 0 in the translation, and each token has the id of its language.
    ``Masking`` masks them, and the objective is ``MaskedTokens`` or ``TranslatedTokens``:

        inputs = pairs(first, second, languages)
        masked = masking(inputs["token_ids"], inputs["padding_mask"], seeds)
        inputs["token_ids"] = masked.token_ids

    Special tokens are never masked; XLM's code only exempts position 0.

    Args:
        backbone: a backbone with the inputs ``position_ids`` and ``language_ids``.
        tokenizer: its tokenizer.
        max_length: the maximum number of tokens of both, with special tokens; None for the
            backbone's.
        truncation: the same as for ``text.Packer``. (XLM's code leaves long pairs out.)
        padding: the same as for ``text.Packer``.

    Raises:
        ValueError: if the backbone lacks one of these inputs or does not allow the maximum, the
            tokenizer's texts do not start with a special token, or ``text.Packer`` raises it.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        padding: Padding = "longest",
    ):
        missing = [name for name in _INPUTS if name not in backbone.input]
        if missing:
            raise ValueError(
                f"backbone must have the inputs {' and '.join(_INPUTS)}, got {backbone.family} "
                f"without {' and '.join(missing)}."
            )
        most = backbone.max_length
        max_length = most if max_length is None else max_length
        if max_length is None or (most is not None and max_length > most):
            raise ValueError(f"max_length must be at most {most}, got {max_length}.")
        single = tokenizer.layout.single
        if single[0] == "a":
            raise ValueError(f"A text must start with a special token, got a layout of {single}.")
        second = tuple("b" if entry == "a" else entry for entry in single)
        layout = Layout(
            pair=single + second,
            pair_segments=(0,) * len(single) + (1,) * len(second),
            pad_left=tokenizer.layout.pad_left,
        )
        self.num_languages = backbone.config.num_languages
        self._packer = Packer(layout, tokenizer.special_ids, max_length, truncation, padding)

    def __call__(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, languages: Any
    ) -> dict[str, tf.Tensor]:
        """Packs a batch.

        Args:
            first, second: ragged int32 (batch, (pieces)), texts and their translations, without
                special tokens.
            languages: integer (2,) or (batch, 2), the language ids of both.

        Returns:
            int32 (batch, length) each: ``token_ids``, ``padding_mask``, ``position_ids`` and
            ``language_ids``, the last two 0 at padding.

        Raises:
            ValueError: if languages have another type or shape, or, where their values are known,
                the backbone lacks them.
        """
        languages = self._checked(languages)
        packed = self._packer.fill([first, second])
        mask, second_part = packed.inputs["padding_mask"], packed.inputs["segment_ids"]
        begins = tf.reduce_sum(mask * (1 - second_part), axis=1, keepdims=True)
        source, target = languages[..., :1], languages[..., 1:]  # broadcast to (batch, 1)
        return {
            "token_ids": packed.inputs["token_ids"],
            "padding_mask": mask,
            "position_ids": mask * (packed.position - second_part * begins),
            "language_ids": mask * tf.where(second_part > 0, target, source),
        }

    def _checked(self, languages: Any) -> tf.Tensor:
        languages = tf.convert_to_tensor(languages)
        if not languages.dtype.is_integer:
            raise ValueError(f"languages must be integers, got {languages.dtype.name}.")
        if languages.shape.rank not in (1, 2) or languages.shape[-1] not in (2, None):
            raise ValueError(
                f"languages must have the shape (2,) or (batch, 2), got {languages.shape}."
            )
        known = tf.get_static_value(languages)
        if known is not None and known.size:
            wrong = known[(known < 0) | (known >= self.num_languages)]
            if wrong.size:
                raise ValueError(
                    f"languages must be from 0 to {self.num_languages - 1}, got {wrong[0]}."
                )
        return tf.cast(languages, tf.int32)
