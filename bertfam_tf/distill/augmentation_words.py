"""Words of texts and of vocabularies, and nearest neighbors by word vectors."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.distill.word_vectors import lines_of, vector_of
from bertfam_tf.text import Tokenizer

MAX_WORD_VECTORS = 100_000  # as in TinyBERT's code
# Letters and digits, with the accents that decomposed Latin letters have.
_WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036F]+[^\W_]*)*")
PLAIN = re.compile(rb"[a-z]+")


class Word(NamedTuple):
    """A word of a text.

    Fields:
        row: the index of the text.
        start, end: byte offsets in the text.
        first: the index of its first token.
        tokens: its token ids.
    """

    row: int
    start: int
    end: int
    first: int
    tokens: tuple[int, ...]


class Vocabulary:
    """The tokens of a tokenizer as words.

    Attributes:
        texts: the text of each token alone, UTF-8.
        words: whether a token consists of the letters a to z and ends a word; bool (vocabulary,).
        starts: whether a token starts a word within a text; bool (vocabulary,).
    """

    def __init__(self, tokenizer: Tokenizer):
        ids = np.arange(tokenizer.vocab_size, dtype="int32")

        def detokenize(*columns: Any) -> list[bytes]:
            tokens = np.stack(np.broadcast_arrays(*columns), axis=1)
            return [text.strip() for text in tokenizer.detokenize(tf.constant(tokens)).numpy()]

        self.texts = detokenize(ids)
        additional = tokenizer.special_tokens.additional_special_tokens
        special = {*tokenizer.special_ids.values(), *map(tokenizer.token_to_id, additional)}
        plain = [
            i not in special and bool(PLAIN.fullmatch(text)) for i, text in enumerate(self.texts)
        ]
        twice = detokenize(ids, ids)
        candidates = (
            i for i in ids if plain[i] and twice[i] == self.texts[i] + b" " + self.texts[i]
        )
        word = next(candidates, None)
        if word is None:
            raise ValueError("The tokenizer has no tokens that are words of the letters a to z.")
        before = self.texts[word] + b" "
        after = b" " + self.texts[word]
        # There is a space next to a whole word, unless the token and the word form one word.
        self.starts = np.array([text.startswith(before) for text in detokenize(word, ids)])
        self.words = np.array([text.endswith(after) for text in detokenize(ids, word)]) & plain

    def fitting(self, token: int, candidates: np.ndarray) -> tuple[bytes, ...]:
        """Returns the candidates that are words in place of a token, in the order of their ids."""
        # Without a space before it, as after a bracket, a word may start with another token in
        # some tokenizers.
        fits = self.words[candidates] & (self.starts[candidates] | ~self.starts[token])
        return tuple(dict.fromkeys(self.texts[i] for i in np.sort(candidates[fits])))


class Neighbors:
    """Finds nearest words by the cosine of their vectors.

    Args:
        words: distinct words, UTF-8.
        vectors: float (words, width).
    """

    def __init__(self, words: list[bytes], vectors: np.ndarray):
        self.words = words
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = np.divide(vectors, norms, np.zeros_like(vectors), where=norms > 0)
        self._index = {word: i for i, word in enumerate(words)}

    def vector(self, word: bytes) -> np.ndarray | None:
        """Returns the normalized vector of a word; None for an unknown word."""
        index = self._index.get(word)
        return None if index is None else self._directions[index]

    def nearest(self, vector: np.ndarray, word: bytes, count: int) -> list[bytes]:
        """Returns the words nearest to a word's vector, without the word; none for zeros."""
        if not vector.any():
            return []
        similar = self._directions @ vector
        order = np.argsort(-similar, kind="stable")[: count + 1]
        return [self.words[i] for i in order if self.words[i] != word][:count]


def read_vectors(path: Path) -> Neighbors:
    """Reads the first ``MAX_WORD_VECTORS`` words of a text file of word vectors.

    Raises:
        ValueError: if there is no such file, or a line is not a word with as many finite numbers as
            the first one.
    """
    words: dict[bytes, np.ndarray] = {}
    for where, word, numbers in islice(lines_of(path), MAX_WORD_VECTORS):
        words.setdefault(word, vector_of(where, numbers))
    if not words:
        raise ValueError(f"{path} has no words.")
    return Neighbors(list(words), np.stack(list(words.values())))


def words_of(
    row: int, text: bytes, ids: list[int], starts: list[int], ends: list[int]
) -> Iterator[Word]:
    """Yields the words of a text with their tokens."""
    # surrogateescape preserves byte offsets around invalid UTF-8.
    decoded = text.decode("utf-8", "surrogateescape")

    def size(characters: str) -> int:
        return len(characters.encode("utf-8", "surrogateescape"))

    character = end = 0
    for match in _WORD.finditer(decoded):
        start = end + size(decoded[character : match.start()])
        character, end = match.end(), start + size(match[0])
        first = bisect_right(ends, start)
        tokens = tuple(ids[first : bisect_left(starts, end)])
        if tokens:
            yield Word(row, start, end, first, tokens)
