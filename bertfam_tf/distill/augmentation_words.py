"""Words of a text and of a vocabulary, and their neighbors by word vectors."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.names import truncated
from bertfam_tf.text import Tokenizer

# As in the code of the paper.
MAX_WORD_VECTORS = 100_000
_WORD = re.compile(r"[^\W_]+")
PLAIN = re.compile(rb"[a-z]+")


class Word(NamedTuple):
    """A word of a text: its bytes, and its pieces, which are those from the index ``first``."""

    row: int
    start: int
    end: int
    first: int
    pieces: tuple[int, ...]


class Vocabulary:
    """What the pieces of a tokenizer are in a text.

    Attributes:
        written: each piece as a text alone, UTF-8.
        words: whether it is letters a to z that end a word; bool (vocabulary,).
        starts: whether it starts a word inside of a text; bool (vocabulary,).
    """

    def __init__(self, tokenizer: Tokenizer):
        ids = np.arange(tokenizer.vocab_size, dtype="int32")

        def texts(*columns: Any) -> list[bytes]:
            pieces = np.stack(np.broadcast_arrays(*columns), axis=1)
            return [text.strip() for text in tokenizer.detokenize(tf.constant(pieces)).numpy()]

        self.written = texts(ids)
        additional = tokenizer.special_tokens.additional_special_tokens
        special = {*tokenizer.special_ids.values(), *map(tokenizer.token_to_id, additional)}
        plain = [
            i not in special and bool(PLAIN.fullmatch(text)) for i, text in enumerate(self.written)
        ]
        twice = texts(ids, ids)
        whole = (
            i for i in ids if plain[i] and twice[i] == self.written[i] + b" " + self.written[i]
        )
        word = next(whole, None)
        if word is None:
            raise ValueError("The tokenizer has no pieces that are words of the letters a to z.")
        before = self.written[word] + b" "
        after = b" " + self.written[word]
        # Beside a whole word there is a space, unless the piece continues it, or is continued.
        self.starts = np.array([text.startswith(before) for text in texts(word, ids)])
        self.words = np.array([text.endswith(after) for text in texts(ids, word)]) & plain

    def fitting(self, piece: int, candidates: np.ndarray) -> tuple[bytes, ...]:
        """The candidates that are words in the place of a piece, in the order of their ids."""
        # Inside of a text without a space before, as after a bracket, pieces of some tokenizers do
        # not start a word.
        fits = self.words[candidates] & (self.starts[candidates] | ~self.starts[piece])
        texts = (self.written[i] for i in np.sort(candidates[fits]))
        return tuple(dict.fromkeys(texts))


class Neighbors:
    """Words by the cosine of their vectors.

    Args:
        words: UTF-8, each once.
        vectors: float (words, width).
    """

    def __init__(self, words: list[bytes], vectors: np.ndarray):
        self.words = words
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = np.divide(vectors, norms, np.zeros_like(vectors), where=norms > 0)
        self._index = {word: i for i, word in enumerate(words)}

    def vector(self, word: bytes) -> np.ndarray | None:
        """The direction of a word; None for another one."""
        index = self._index.get(word)
        return None if index is None else self._directions[index]

    def nearest(self, vector: np.ndarray, word: bytes, count: int) -> list[bytes]:
        """The words nearest to a word's vector, without itself; none for a vector of zeros."""
        if not vector.any():
            return []
        similar = self._directions @ vector
        order = np.argsort(-similar, kind="stable")[: count + 1]
        return [self.words[i] for i in order if self.words[i] != word][:count]


def read_vectors(path: Path) -> Neighbors:
    """The first lines of a text file of word vectors."""
    words: dict[bytes, np.ndarray] = {}
    width = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(islice(file, MAX_WORD_VECTORS), 1):
                # Some words of GloVe's files have spaces.
                word, *numbers = line.rstrip().rsplit(b" ", width or -1)
                width = width or len(numbers)
                # The files of word2vec begin with a line of two numbers.
                if width < 2 or (vector := _vector(numbers, width)) is None:
                    raise ValueError(
                        f"{path}: line {number} is {truncated(line, 60)}, expected a word and its "
                        f"{width if number > 1 else ''} numbers, as in the files of GloVe."
                    )
                words.setdefault(word, vector)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not words:
        raise ValueError(f"{path} is empty, expected a word and its numbers in each line.")
    return Neighbors(list(words), np.stack(list(words.values())))


def _vector(numbers: list[bytes], width: int) -> np.ndarray | None:
    """Numbers of a line; None if they are not finite numbers, or not as many."""
    try:
        vector = np.array(numbers, "float64")
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        vector = vector.astype("float32")
    return vector if len(vector) == width and np.isfinite(vector).all() else None


def words_of(
    row: int, text: bytes, ids: list[int], starts: list[int], ends: list[int]
) -> Iterator[Word]:
    """The words of a text, and their pieces."""
    # Broken bytes keep their number.
    decoded = text.decode("utf-8", "surrogateescape")

    def size(part: str) -> int:
        return len(part.encode("utf-8", "surrogateescape"))

    at = end = 0
    for match in _WORD.finditer(decoded):
        start = end + size(decoded[at : match.start()])
        at, end = match.end(), start + size(match[0])
        first = bisect_right(ends, start)
        pieces = tuple(ids[first : bisect_left(starts, end)])
        if pieces:
            yield Word(row, start, end, first, pieces)
