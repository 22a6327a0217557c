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
from bertfam_tf.tasks.text_learner import renamed
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
# If the logits of the last candidate and the next token are closer than this, rounding makes their
# order depend on the batch's padding.
_CLOSE = 1e-4


class ReplaceableWord(NamedTuple):
    """A word of a text that may be replaced.

    Fields:
        start, end: byte offsets in the text.
        candidates: the replacements to draw from, UTF-8; at least one.
    """

    start: int
    end: int
    candidates: tuple[bytes, ...]


class Augmentation:
    """Replaces words of a text by words that fit the context, or have a similar meaning.

    * A word that is one token is replaced by one of the ``candidates`` most probable tokens of a
      masked language model, with only this word masked in the original text. (Algorithm 1 masks it
      in the copy; here one prediction serves all copies.)
    * A word of several tokens is replaced by one of its nearest neighbors by the cosine of word
      vectors.

    Only words of the letters a to z, after the tokenizer's normalization, that are not stop words
    are replaced, and only by such words. Words without candidates remain unchanged, and so do words
    of one token beyond the masked language model's ``max_length``.

    The paper uses 20 copies; its code 30 for CoLA, MRPC, RTE and STS-B, and 10 for MNLI and QQP.

    Args:
        masked_lm: a task of any family. In float32, copies do not depend on its batch size.
        candidates: the number of tokens, or neighbors, that a replacement is drawn from.
        probability: the probability that a word of a copy is replaced.
        copies: the number of copies of each text; duplicates are dropped.
        word_vectors: a text file in GloVe's format, with a word and its numbers in each line, of
            which the first 100,000 are read. None uses the masked language model's token embedding:
            the mean of a word's tokens, with single tokens as neighbors.
        stop_words: words that are not replaced.
        pair_with_original: whether the masked language model reads the original text as the second
            text of a pair, as in the paper's code (its algorithm uses only the masked text).
            Candidates are then closer to the masked word, which usually is the most probable one;
            without the original, a word is replaced by any word that fits the context, even its
            opposite. The original is truncated if both do not fit ``max_length``.
        seed: the seed of the draws.

    Raises:
        ValueError: if a number is out of range, or a file of word vectors is invalid.
        TypeError: if ``masked_lm`` is not a ``MaskedLM``.
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
        for name, value, low, high in (
            ("candidates", candidates, 1, masked_lm.tokenizer.vocab_size - 1),
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
            words = [self._vocabulary.texts[i] for i in whole]
            self._neighbors = Neighbors(words, self._embedding[whole])
        else:
            self._neighbors = read_vectors(self.word_vectors)
        self._similar = lru_cache(maxsize=1 << 14)(self._similar_words)
        signature = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
        self._top_tokens = tf.function(self._predict_top, signature, autograph=False)

    def settings(self) -> dict[str, Any]:
        """Returns everything that determines the copies, as JSON values: files, words and the model
        by their sha256."""
        task = self.masked_lm
        vectors, stop_words = self.word_vectors, " ".join(sorted(self.stop_words))
        return {
            "version": VERSION,
            "candidates": self.candidates,
            "probability": self.probability,
            "copies": self.copies,
            "seed": self.seed,
            "pair_with_original": self.pair_with_original,
            "stop_words_sha256": hashlib.sha256(stop_words.encode()).hexdigest(),
            "word_vectors_sha256": None if vectors is None else sha256(Path(vectors)),
            "max_length": task.max_length,
            "language_id": task.language_id,
            "tokenizer_sha256": shards.tokenizer_digest(task.tokenizer),
            "masked_lm_sha256": fingerprint(task),
        }

    places = renamed("places", "replaceable_words")

    def replaceable_words(
        self, texts: Sequence[str | bytes], *, batch_size: int = 64
    ) -> list[list[ReplaceableWord]]:
        """Returns the words of each text that may be replaced, in order, with their candidates.

        Args:
            texts: the texts; bytes are UTF-8.
            batch_size: the number of words that the masked language model predicts at a time.
        """
        encoded = [t.encode("utf-8", "replace") if isinstance(t, str) else t for t in texts]
        if not encoded:
            return []
        ids, starts, ends = self.masked_lm.tokenizer.tokenize_with_offsets(encoded)
        columns = [encoded, ids.to_list(), starts.to_list(), ends.to_list()]
        words = [
            word
            for row, fields in enumerate(zip(*columns, strict=True))
            for word in words_of(row, *fields)
        ]
        replaceable: list[list[ReplaceableWord]] = [[] for _ in encoded]
        if not words:
            return replaceable
        tokens = tf.ragged.constant([word.tokens for word in words], tf.int32)
        normalized = [t.strip() for t in self.masked_lm.tokenizer.detokenize(tokens).numpy()]
        replaceable_words = [
            (word, text)
            for word, text in zip(words, normalized, strict=True)
            if PLAIN.fullmatch(text) and text.decode() not in self.stop_words
        ]
        predicted = self._predicted_words(ids, [word for word, _ in replaceable_words], batch_size)
        for word, text in replaceable_words:
            if len(word.tokens) == 1:
                candidates = predicted.get(word, ())
            else:
                candidates = self._similar(text, word.tokens)
            # A word that is replaced by itself keeps its case.
            original = encoded[word.row][word.start : word.end]
            candidates = tuple(original if c == text else c for c in candidates)
            if candidates:
                replaceable[word.row].append(ReplaceableWord(word.start, word.end, candidates))
        return replaceable

    def copies_of(
        self, text: bytes, words: Sequence[ReplaceableWord], example: int, index: int = 0
    ) -> list[bytes]:
        """Returns at most ``copies`` copies of a text with replaced words.

        Args:
            text: a UTF-8 text.
            words: its entry in the list that ``replaceable_words`` returns.
            example, index: the indices of the example, and of the text in it; they and the seed
                determine the draws.

        Returns:
            Copies that differ from the text and from each other.
        """
        random = np.random.default_rng([self.seed, example, index])
        copies: dict[bytes, None] = {}
        for draws, choices in random.random((self.copies, 2, len(words))):
            parts, end = [], 0
            for word, draw, choice in zip(words, draws, choices, strict=True):
                if draw < self.probability:
                    candidate = word.candidates[int(choice * len(word.candidates))]
                    parts += [text[end : word.start], candidate]
                    end = word.end
            copies[b"".join([*parts, text[end:]])] = None
        copies.pop(text, None)
        return list(copies)

    def _predicted_words(
        self, ids: tf.RaggedTensor, words: list[Word], batch_size: int
    ) -> dict[Word, tuple[bytes, ...]]:
        """Returns the candidates of words of one token within the model's ``max_length``."""
        special = self._packer.frame.layout.special_count(2 if self.pair_with_original else 1)
        room = self.masked_lm.max_length - special
        lengths = ids.row_lengths().numpy()
        words = [word for word in words if len(word.tokens) == 1 and word.first < room]
        words.sort(key=lambda word: lengths[word.row])

        def predict(words: list[Word]) -> tuple[np.ndarray, np.ndarray]:
            rows = tf.gather(ids, [word.row for word in words])
            top, margin = self._top_tokens(rows, tf.constant([word.first for word in words]))
            return top.numpy(), margin.numpy()

        candidates: dict[Word, tuple[bytes, ...]] = {}
        for start in range(0, len(words), batch_size):
            batch = words[start : start + batch_size]
            top, margin = predict(batch)
            for i in np.flatnonzero(margin < _CLOSE):
                top[i] = predict([batch[i]])[0][0]
            for word, row in zip(batch, top, strict=True):
                candidates[word] = self._vocabulary.fitting(word.tokens[0], row)
        return candidates

    def _predict_top(
        self, tokens: tf.RaggedTensor, indices: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Predicts the ``candidates`` most probable tokens.

        Args:
            tokens: token ids of the texts, int32 (batch, (tokens)).
            indices: the index of the masked token in each text, int32 (batch,).

        Returns:
            Token ids, int32 (batch, candidates); and the difference between the logits of the last
            candidate and the next token, float32 (batch,).
        """
        filled = self._packer.fill([tokens] * (2 if self.pair_with_original else 1))
        here = filled.pieces(0) == indices[:, tf.newaxis]
        mask_id = self.masked_lm.tokenizer.mask_id
        token_ids = tf.where(here, mask_id, filled.inputs["token_ids"])
        logits, _ = self.masked_lm.forward({**filled.inputs, "token_ids": token_ids})
        # The text itself may contain mask tokens.
        masked = (token_ids == mask_id) & (filled.inputs["padding_mask"] == 1)
        logits = tf.boolean_mask(logits, tf.boolean_mask(here, masked))
        # The embedding may have more rows than the vocabulary has tokens.
        logits = tf.cast(logits[:, : self.masked_lm.tokenizer.vocab_size], tf.float32)
        scores, ids = tf.math.top_k(logits, self.candidates + 1)
        return ids[:, :-1], scores[:, -2] - scores[:, -1]

    def _similar_words(self, word: bytes, tokens: tuple[int, ...]) -> tuple[bytes, ...]:
        """Returns the candidates of a word of several tokens."""
        vector = self._neighbors.vector(word)
        if self.word_vectors is None:
            vector = self._embedding[list(tokens)].mean(axis=0)
        if vector is None:
            return ()
        nearest = self._neighbors.nearest(vector, word, self.candidates)
        return tuple(neighbor for neighbor in nearest if PLAIN.fullmatch(neighbor))
