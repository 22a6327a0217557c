"""Data augmentation for distillation on a task (TinyBERT, arXiv 1909.10351, algorithm 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.corpora import shards
from bertfam_tf.distill.augmentation_words import (
    PLAIN,
    Neighbors,
    Vocabulary,
    Word,
    read_vectors,
    words_of,
)
from bertfam_tf.sources import sha256
from bertfam_tf.tasks.fingerprint import fingerprint
from bertfam_tf.tasks.masked_lm import MaskedLM
from bertfam_tf.text import Packer
from bertfam_tf.validation import in_range

VERSION = 2
STOP_WORDS = frozenset(
    """
    a about above after again against all along also although am among an and any are around as at
    be because been before behind being below beside between both but by can cannot could d did do
    does doing don done down during each either else ever every except few for from further had has
    have having he her here hers herself him himself his how i if in inside into is it its itself
    just ll m may me might mine more most much must my myself near neither nor no not now of off on
    once one only onto or other our ours ourselves out outside over own per re s same shall she
    should since so some such t than that the their theirs them themselves then there these they
    this those though through till to too toward towards under unless until up upon us ve very was
    we were what whatever when where whether which while who whoever whom whose why will with within
    without would yet you your yours yourself yourselves
    ain aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won
    wouldn
    """.split()
)
# Where the last candidate and the first of the others are closer than this, padding may change
# which is which, through rounding.
_CLOSE = 1e-4


class Place(NamedTuple):
    """A word of a text that is replaced.

    Fields:
        start, end: bytes of the text.
        candidates: what it is replaced by, UTF-8; at least one.
    """

    start: int
    end: int
    candidates: tuple[bytes, ...]


class Augmentation:
    """Replaces words of a text by others that fit in their place, or have a similar meaning.

    A word that is one piece of the tokenizer is replaced by one of the ``candidates`` most probable
    pieces of a masked language model when it alone is masked in the original text (so for all
    copies at once; algorithm 1 masks it in the copy); another word by one of its nearest neighbors
    by the cosine of word vectors. Words are replaced if they consist of the letters a to z, after
    the tokenizer's normalization, and are not stop words; candidates that are no such words,
    continuations of words or special tokens are left out. Words without candidates remain, as do
    words of one piece beyond the ``max_length`` of the masked language model.

    The paper has 20 copies; its code 30 for CoLA, MRPC, RTE and STS-B, and 10 for MNLI and QQP.

    Args:
        masked_lm: of any family; in float32, copies do not depend on the size of its batches.
        candidates: the number of pieces, or neighbors, that a replacement is drawn from.
        probability: with which each word of a copy is replaced.
        copies: of each text; those that are equal are dropped.
        word_vectors: a text file in the format of GloVe, a word and its numbers in each line, of
            which the first 100,000 are read. None for the token embedding of the masked language
            model: the mean of a word's pieces, and neighbors that are one piece.
        stop_words: words that are not replaced.
        pair_with_original: whether the masked language model reads the original text as the second
            of a pair with the masked one, as in the code of the paper (its algorithm has the masked
            text alone). Candidates are then closer to the word that is masked, which usually is the
            most probable one itself; masked alone, a word is replaced by what the context allows,
            its opposite included. Where both do not fit ``max_length``, the original is cut.
        seed: of the draws.

    Raises:
        ValueError: for a number out of range, or a file of word vectors that is not valid.
        TypeError: if ``masked_lm`` is another task.
    """

    def __init__(
        self,
        masked_lm: MaskedLM,
        *,
        candidates: int = 15,
        probability: float = 0.4,
        copies: int = 20,
        word_vectors: str | Path | None = None,
        stop_words: Collection[str] = STOP_WORDS,
        pair_with_original: bool = False,
        seed: int = 0,
    ):
        if not isinstance(masked_lm, MaskedLM):
            raise TypeError(f"masked_lm must be a MaskedLM, got a {type(masked_lm).__name__}.")
        most = masked_lm.tokenizer.vocab_size - 1
        for name, value, low, high in (
            ("candidates", candidates, 1, most),
            ("copies", copies, 1, 2**31 - 1),
            ("seed", seed, 0, 2**63 - 1),
        ):
            in_range(name, value, at_least=low, at_most=high, integer=True)
        in_range("probability", probability, at_least=0, at_most=1)
        if isinstance(stop_words, str):
            raise ValueError(f"stop_words must be a set of words, got the text {stop_words!r}.")
        self.masked_lm = masked_lm
        self.candidates = candidates
        self.probability = probability
        self.copies = copies
        self.word_vectors = None if word_vectors is None else Path(word_vectors)
        self.stop_words = frozenset(stop_words)
        self.pair_with_original = pair_with_original
        self.seed = seed
        tokenizer = masked_lm.tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._packer = Packer(
            tokenizer.layout, tokenizer.special_ids, masked_lm.max_length, "only_second"
        )
        if self.word_vectors is None:
            self._embedding = np.array(masked_lm.backbone.parts["token_embedding"].embeddings)
            whole = np.flatnonzero(self._vocabulary.starts & self._vocabulary.words)
            words = [self._vocabulary.written[i] for i in whole]
            self._neighbors = Neighbors(words, self._embedding[whole])
        else:
            self._neighbors = read_vectors(self.word_vectors)
        self._similar = lru_cache(maxsize=1 << 14)(self._similar_words)
        signature = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
        self._likeliest = tf.function(self._likeliest_pieces, signature, autograph=False)

    def settings(self) -> dict[str, Any]:
        """All that determines the copies of a text, in values of JSON; files, words and the model
        by their sha256."""
        task = self.masked_lm
        vectors = self.word_vectors
        return {
            "version": VERSION,
            "candidates": self.candidates,
            "probability": self.probability,
            "copies": self.copies,
            "seed": self.seed,
            "pair_with_original": self.pair_with_original,
            "stop_words_sha256": _sha256(" ".join(sorted(self.stop_words))),
            "word_vectors_sha256": None if vectors is None else sha256(Path(vectors)),
            "max_length": task.max_length,
            "language_id": task.language_id,
            "tokenizer_sha256": shards.tokenizer_digest(task.tokenizer),
            "masked_lm_sha256": fingerprint(task),
        }

    def places(self, texts: Sequence[str | bytes], *, batch_size: int = 64) -> list[list[Place]]:
        """The words of each text that may be replaced, in order, and their candidates.

        Args:
            texts: UTF-8 where they are bytes.
            batch_size: of the masked language model, in words.
        """
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        if not encoded:
            return []
        ids, starts, ends = self.masked_lm.tokenizer.tokenize_with_offsets(encoded)
        columns = [encoded, ids.to_list(), starts.to_list(), ends.to_list()]
        words = [
            word
            for row, of_text in enumerate(zip(*columns, strict=True))
            for word in words_of(row, *of_text)
        ]
        found: list[list[Place]] = [[] for _ in encoded]
        if not words:
            return found
        pieces = tf.ragged.constant([word.pieces for word in words], tf.int32)
        written = [t.strip() for t in self.masked_lm.tokenizer.detokenize(pieces).numpy()]
        kept = [
            (word, text)
            for word, text in zip(words, written, strict=True)
            if PLAIN.fullmatch(text) and text.decode() not in self.stop_words
        ]
        likely = self._likely_words(ids, [word for word, _ in kept], batch_size)
        for word, text in kept:
            if len(word.pieces) == 1:
                candidates = likely.get(word, ())
            else:
                candidates = self._similar(text, word.pieces)
            # A word that is replaced by itself remains as it was typed.
            typed = encoded[word.row][word.start : word.end]
            candidates = tuple(typed if each == text else each for each in candidates)
            if candidates:
                found[word.row].append(Place(word.start, word.end, candidates))
        return found

    def copies_of(
        self, text: bytes, places: Sequence[Place], example: int, index: int = 0
    ) -> list[bytes]:
        """Copies of a text with replaced words, at most ``copies``.

        Args:
            text: UTF-8.
            places: an entry of what the method ``places`` returns.
            example, index: the number of the example, and of the text in it; they and the seed
                determine the draws.

        Returns:
            Copies that differ from the text and from each other.
        """
        random = np.random.default_rng([self.seed, example, index])
        found: dict[bytes, None] = {}
        for replaced, chosen in random.random((self.copies, 2, len(places))):
            parts, at = [], 0
            for place, drawn, choice in zip(places, replaced, chosen, strict=True):
                if drawn < self.probability:
                    candidate = place.candidates[int(choice * len(place.candidates))]
                    parts += [text[at : place.start], candidate]
                    at = place.end
            found[b"".join([*parts, text[at:]])] = None
        found.pop(text, None)
        return list(found)

    def _likely_words(
        self, ids: tf.RaggedTensor, words: list[Word], batch_size: int
    ) -> dict[Word, tuple[bytes, ...]]:
        """The candidates of words of one piece that the masked language model reads."""
        special = self._packer.frame.layout.special_count(2 if self.pair_with_original else 1)
        room = self.masked_lm.max_length - special
        lengths = ids.row_lengths().numpy()
        words = [word for word in words if len(word.pieces) == 1 and word.first < room]
        words.sort(key=lambda word: lengths[word.row])

        def likeliest(words: list[Word]) -> tuple[np.ndarray, np.ndarray]:
            rows = tf.gather(ids, [word.row for word in words])
            top, margin = self._likeliest(rows, tf.constant([word.first for word in words]))
            return top.numpy(), margin.numpy()

        found: dict[Word, tuple[bytes, ...]] = {}
        for start in range(0, len(words), batch_size):
            batch = words[start : start + batch_size]
            top, margin = likeliest(batch)
            for i in np.flatnonzero(margin < _CLOSE):
                top[i] = likeliest([batch[i]])[0][0]
            for word, row in zip(batch, top, strict=True):
                found[word] = self._vocabulary.fitting(word.pieces[0], row)
        return found

    def _likeliest_pieces(
        self, pieces: tf.RaggedTensor, places: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids, int32 (batch, candidates), and the difference of the last one's logit to the next.

        Args:
            pieces: int32 (batch, (pieces)), of the texts.
            places: int32 (batch,), the index of the piece that is masked.
        """
        filled = self._packer.fill([pieces] * (2 if self.pair_with_original else 1))
        here = filled.pieces(0) == places[:, tf.newaxis]
        mask_id = self.masked_lm.tokenizer.mask_id
        token_ids = tf.where(here, mask_id, filled.inputs["token_ids"])
        logits, _ = self.masked_lm.forward({**filled.inputs, "token_ids": token_ids})
        # A text may have masks of its own.
        masked = (token_ids == mask_id) & (filled.inputs["padding_mask"] == 1)
        logits = tf.boolean_mask(logits, tf.boolean_mask(here, masked))
        # A model may have embeddings beyond the vocabulary, which stand for no text.
        logits = tf.cast(logits[:, : self.masked_lm.tokenizer.vocab_size], tf.float32)
        scores, ids = tf.math.top_k(logits, self.candidates + 1)
        return ids[:, :-1], scores[:, -2] - scores[:, -1]

    def _similar_words(self, word: bytes, pieces: tuple[int, ...]) -> tuple[bytes, ...]:
        """The candidates of a word of several pieces."""
        vector = self._neighbors.vector(word)
        if self.word_vectors is None:
            vector = self._embedding[list(pieces)].mean(axis=0)
        if vector is None:
            return ()
        nearest = self._neighbors.nearest(vector, word, self.candidates)
        return tuple(each for each in nearest if PLAIN.fullmatch(each))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
