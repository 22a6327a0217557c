"""The state that tokenizers of one vocabulary share."""

from __future__ import annotations

from typing import Any


class State:
    """Holds containers that tf.Module would otherwise wrap when they are set as attributes.

    Args:
        pieces: the vocabulary.
        ids: the id of each piece.
        options: the tokenizer's options.
        in_languages: the tokenizers that ``Tokenizer.in_language`` has created, by language.
    """

    def __init__(
        self,
        pieces: list[str],
        ids: dict[str, int],
        options: dict[str, Any],
        in_languages: dict[str, Any] | None = None,
    ) -> None:
        self.pieces = pieces
        self.ids = ids
        self.options = options
        self.in_languages: dict[str, Any] = {} if in_languages is None else in_languages
