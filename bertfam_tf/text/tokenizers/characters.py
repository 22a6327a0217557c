"""Encodes words as bytes, as ELMo reads them (arXiv 1802.05365)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.names import truncated_repr
from bertfam_tf.parsing import read_object
from bertfam_tf.text.files import CONFIG_FILE
from bertfam_tf.text.kernels.graph import Pieces
from bertfam_tf.text.special_tokens import Layout, SpecialTokens
from bertfam_tf.text.splitting import Split, WordSplitter
from bertfam_tf.text.tokenizers.base import Tokenizer

SPECIAL_TOKENS = SpecialTokens(
    bos_token="<S>", eos_token="</S>", pad_token="<PAD>", special_tokens_in_text=False
)
LAYOUT = Layout(
    ("bos", "a", "eos"), ("bos", "a", "eos", "bos", "b", "eos"), (0, 0, 0), (0, 0, 0, 1, 1, 1)
)
# Ids are bytes, and these, plus 1: a token at padding is zeros.
_BEGIN, _END, _FILL = 258, 259, 260
_IDS = 262
_OPTIONS = "*options.json"
# Every word has as many ids, whatever a file says.
_MAX_CHARACTERS = 256


class CharacterTokenizer(Tokenizer):
    """Encodes each word as the ids of its UTF-8 bytes between start and end marks, with padding.

    There is no vocabulary of words. ELMo itself reads text that is already split into words; as its
    training data separate punctuation, the default splits as BERT's basic tokenizer does, without
    changing case. Words of more than ``max_characters - 2`` bytes lose their end, which may part a
    character. Ids are the same as in AllenNLP's ELMo: byte + 1; 257 and 258 in the tokens that
    begin and end a sentence; 259, 260 and 261 where a word begins, ends and is filled up; 0 at
    padding.

    ``tokenize`` and packing return ids with a last axis of ``max_characters``, and ``special_ids``
    has a token's row for each role.

    Files: ``tokenizer_config.json``, or AllenNLP's ``*options.json`` for ``max_characters``.

    Args:
        split: where texts are split into words: ``"spaces"`` or ``"punctuation"``, as
            ``WordSplitter`` takes it.
        max_characters: the number of ids of each word, from 3 to 256.
        special_tokens: the names of the special tokens; they are not found in text.
        layout: the positions of the special tokens; None for a sentence's begin and end around each
            text.

    Raises:
        ValueError: ``split`` is unknown, ``max_characters`` is out of range, or special tokens are
            to be found in text.
    """

    kind = "characters"
    default_special_tokens = SPECIAL_TOKENS
    _config_keys = {"split": "split", "max_characters": "max_characters"}

    def __init__(
        self,
        *,
        split: Split = "punctuation",
        max_characters: int = 50,
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
        layout: Layout | None = None,
    ) -> None:
        if type(max_characters) is not int or not 3 <= max_characters <= _MAX_CHARACTERS:
            raise ValueError(
                f"max_characters must be an integer from 3 to {_MAX_CHARACTERS}, got "
                f"{truncated_repr(max_characters)}."
            )
        if special_tokens.special_tokens_in_text or list(special_tokens)[3:]:
            raise ValueError(
                "special tokens must have special_tokens_in_text=False and be a bos_token, an "
                "eos_token and a pad_token, because words are read as characters."
            )
        super().__init__(
            _pieces(special_tokens),
            special_tokens,
            LAYOUT if layout is None else layout,
            {"split": split, "max_characters": max_characters},
            name="character_tokenizer",
        )
        self._splitter = WordSplitter(split)
        with tf.init_scope():
            self._shown = tf.constant(_shown(special_tokens))

    @property
    def max_characters(self) -> int:
        """The number of ids of each word."""
        return self._state.options["max_characters"]

    @property
    def token_shape(self) -> tuple[int, ...]:
        return (self.max_characters,)

    @property
    def special_ids(self) -> dict[str, Any]:
        """The ids of each special token, a row of ``max_characters``, by role."""
        width = self.max_characters
        rows = {"pad": (0,) * width}
        for role, character in (("bos", 256), ("eos", 257)):
            row = (_BEGIN, character, _END, *(_FILL,) * width)[:width]
            rows[role] = tuple(value + 1 for value in row)
        return {role: row for role, row in rows.items() if self.special_tokens.of(role)}

    def id_to_token(self, ids: Any) -> Any:
        """Returns the words of rows of ids: a ``str`` for one row, else strings.

        Args:
            ids: integers (…, characters), or a list of them for one row.

        Raises:
            tf.errors.InvalidArgumentError: a tensor with an id that is none of a character.
        """
        if isinstance(ids, int | np.integer):
            return super().id_to_token(ids)
        if isinstance(ids, list | tuple):
            return self.id_to_token(tf.constant(ids)).numpy().decode("utf-8", "replace")
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.id_to_token(ids.flat_values))
        return tf.strings.reduce_join(tf.gather(self._shown, ids), axis=-1)

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Joins words, with one space between two.

        Args:
            ids: integers, ragged [batch, (words), characters], dense [batch, words, characters], or
                [words, characters].

        Returns:
            string [batch], or a scalar for [words, characters].
        """
        if not tf.is_tensor(ids) and not isinstance(ids, tf.RaggedTensor):
            ids = tf.ragged.constant(ids, tf.int32, inner_shape=self.token_shape)
        words = self.id_to_token(ids)
        return tf.strings.reduce_join(words, axis=-1, separator=" ")

    # Files.

    def _vocabulary_config(self) -> dict[str, Any]:
        return {}

    def _write_files(self, directory: Path) -> dict[str, Any]:
        return dict(self._state.options)

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        if (folder / CONFIG_FILE).is_file():
            return {}, folder / CONFIG_FILE
        files = sorted(folder.glob(_OPTIONS))
        if len(files) != 1:
            raise FileNotFoundError(
                f"{folder}: expected {CONFIG_FILE} or one {_OPTIONS}, found {len(files)}."
            )
        characters = read_object(files[0]).get("char_cnn")
        if not isinstance(characters, dict) or "max_characters_per_token" not in characters:
            raise ValueError(f"{files[0]}: found no char_cnn.max_characters_per_token.")
        return {"max_characters": characters["max_characters_per_token"]}, files[0]

    @classmethod
    def _fits(cls, special: SpecialTokens, arguments: Mapping[str, Any], folder: Path) -> bool:
        return True

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        words = self._splitter(texts)
        # Broken bytes become U+FFFD.
        text = tf.strings.unicode_transcode(words.text.values, "UTF-8", "UTF-8")
        room = self.max_characters - 2
        size = tf.minimum(tf.strings.length(text), room)[:, tf.newaxis]
        # As wide as a row without its begin; bytes after the word are overwritten.
        data = tf.io.decode_raw(text, tf.uint8, fixed_length=room + 1)
        place = tf.range(room + 1)
        ids = tf.where(place < size, tf.cast(data, tf.int32), tf.where(place == size, _END, _FILL))
        rows = tf.pad(ids, [[0, 0], [1, 0]], constant_values=_BEGIN) + 1
        rows = tf.ensure_shape(rows, [None, self.max_characters])
        first, end = (words.first_byte.values, words.end_byte.values) if offsets else (None, None)
        return Pieces(rows, first, end, words.text.row_splits)


def _pieces(special: SpecialTokens) -> list[str]:
    """Returns a name for each id."""
    pad, bos, eos = (special.of(role) or f"<{role}>" for role in ("pad", "bos", "eos"))
    return [pad, *(f"0x{byte:02X}" for byte in range(256)), bos, eos, "<W>", "</W>", "<FILL>"]


def _shown(special: SpecialTokens) -> list[bytes]:
    """Returns the text of each id."""
    ends = [(special.of(role) or "").encode("utf-8") for role in ("bos", "eos")]
    shown = [b"", *(bytes([byte]) for byte in range(256)), *ends]
    return shown + [b""] * (_IDS - len(shown))
