"""The language of texts, for backbones with language embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bertfam_tf.data.inputs import LANGUAGE
from bertfam_tf.data.labels import index_of
from bertfam_tf.models import Backbone
from bertfam_tf.names import truncated_repr, unknown
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.by_language import ByLanguage

# The backbone's input.
LANGUAGES = "language_ids"


class Languages:
    """The languages of a backbone, and of the texts that a task reads.

    Args:
        backbone: a backbone with or without language embeddings.
        tokenizer: the tokenizer for texts in ``language_id``.
        language_id: the language of texts without their own; None if the backbone has none.
        ids: ids by language code; None for their numbers as strings.

    Attributes:
        ids: ids by language code; empty if the backbone has no languages.
        count: the number of languages that the backbone has.
        language_id: the language of texts without their own.

    Raises:
        ValueError: for a ``language_id`` that is missing, out of range, or given for a backbone
            without languages, and for ``ids`` that are not different numbers in this range.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        language_id: int | None,
        ids: Mapping[str, int] | None = None,
    ):
        self.tokenizer = tokenizer
        self.language_id = language_id
        self.ids: dict[str, int] = {}
        self.count = 0
        if LANGUAGES not in backbone.input:
            if language_id is not None or ids is not None:
                raise ValueError(f"This {backbone.family} backbone has no language embeddings.")
            return
        self.count = count = backbone.config.num_languages
        self.ids = {str(i): i for i in range(count)} if ids is None else dict(ids)
        numbers = list(self.ids.values())
        valid = all(type(i) is int and 0 <= i < count for i in numbers)
        if not numbers or not valid or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"languages must map codes to different ids from 0 to {count - 1}, got "
                f"{truncated_repr(self.ids)}."
            )
        if language_id is None or not 0 <= language_id < count:
            raise ValueError(f"language_id must be from 0 to {count - 1}, got {language_id!r}.")

    @property
    def language(self) -> str | int | None:
        """The language of texts without one of their own: its code, or its id if it has none."""
        return self.code(self.language_id)

    def code(self, language_id: int | None) -> str | int | None:
        """The code of a language; its id if it has none."""
        return next((code for code, i in self.ids.items() if i == language_id), language_id)

    def id_of(self, language: str | int) -> int:
        """The id of a language.

        Args:
            language: its code or its id.

        Raises:
            ValueError: if there is no such language.
        """
        if not self.ids:
            raise ValueError(
                f"The backbone has no language embeddings; language must be None, got {language!r}."
            )
        if isinstance(language, str):
            if language not in self.ids:
                raise ValueError(unknown("language", language, self.ids))
            return self.ids[language]
        if type(language) is not int or not 0 <= language < self.count:
            raise ValueError(
                f"language must be one of {', '.join(self.ids)}, or an id from 0 to "
                f"{self.count - 1}, got {language!r}."
            )
        return language

    def set(self, language: str | int) -> None:
        """Changes ``language_id``, and the tokenizer with it. Raises ValueError as ``id_of``."""
        language_id = self.id_of(language)
        self.tokenizer = self._tokenizer(language_id)
        self.language_id = language_id

    def of(self, features: Mapping[str, Any]) -> int | tf.Tensor | None:
        """The ids of the languages of examples.

        Args:
            features: the features of examples. Their language is a code for all of them, or a
                string tensor (batch,) of codes, or missing for ``language_id``.

        Returns:
            one id, or int32 (batch,); None if the backbone has no languages.

        Raises:
            ValueError: for an unknown code; while the graph runs, InvalidArgumentError.
        """
        language = features.get(LANGUAGE)
        if language is None:
            return self.language_id
        if isinstance(language, str | int):
            return self.id_of(language)
        return tf.gather(list(self.ids.values()), index_of(language, list(self.ids), "language"))

    def tokenizer_of(self, language: int | tf.Tensor | None) -> Tokenizer | ByLanguage:
        """Returns the tokenizer for texts in these languages.

        Args:
            language: the result of ``of``.
        """
        if not isinstance(language, tf.Tensor):
            return self._tokenizer(language)
        tokenizers: list[Tokenizer] = []
        index = [0] * self.count
        for language_id in self.ids.values():
            tokenizer = self._tokenizer(language_id)
            if not any(tokenizer is other for other in tokenizers):
                tokenizers.append(tokenizer)
            index[language_id] = next(i for i, t in enumerate(tokenizers) if t is tokenizer)
        if len(tokenizers) == 1:
            return tokenizers[0]
        return ByLanguage(tokenizers, tf.gather(index, language))

    def _tokenizer(self, language_id: int | None) -> Tokenizer:
        if language_id == self.language_id:
            return self.tokenizer
        return self.tokenizer.in_language(str(self.code(language_id)))


def repeated(language: int | tf.Tensor | None, times: Any) -> int | tf.Tensor | None:
    """Repeats the languages of examples, as ``Languages.of`` returns them, for each row."""
    return tf.repeat(language, times) if isinstance(language, tf.Tensor) else language
