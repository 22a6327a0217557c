"""Selects and masks tokens, for all objectives."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bertfam_tf.text import Tokenizer
from bertfam_tf.text.kernels.unicode import CHINESE
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters
from bertfam_tf.validation import in_range, one_of

# Each purpose has its own stream of random numbers.
_COUNT, _PIECE, _ANCHOR, _LENGTH, _FIT, _REPLACE, _RANDOM, ORDER, _KIND = range(9)

# White space in GPT-2's vocabulary, except the space, which belongs to the next word.
_BLANKS = tuple("\u0109\u010a\u010b\u010c\u010d")
# Scripts without spaces between words: ideographs, Thai and Lao, Burmese, Khmer, kana.
_UNSPACED = (
    *CHINESE, (0xE00, 0xF00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x3005, 0x3008),
    (0x3041, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFFA0),
)  # fmt: skip


class Masked(NamedTuple):
    """A masked batch.

    Fields:
        token_ids: int32 (batch, length), with masks.
        positions: int32 (batch, predictions), of the tokens to predict, in increasing order; 0
            after an example's last one.
        targets: int32 (batch, predictions), the original tokens there.
        weights: float32 (batch, predictions), 1 for predictions, 0 after an example's last one.
        starts, ends: int32 (batch, predictions), the first and the last position of the run of
            masked tokens that a prediction is in.
    """

    token_ids: tf.Tensor
    positions: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class Masking:
    """Selects tokens and replaces them (BERT, arXiv 1810.04805, section 3.1).

    Selects a proportion ``rate`` of an example's tokens, special tokens excluded. The number is
    rounded up or down at random, so that the mean is ``rate`` for short examples too; BERT's code
    rounds to the nearest, and counts special tokens. Units longer than a token are selected whole.
    A unit that exceeds the remaining number is selected with the probability that keeps the mean;
    BERT's code omits it and masks less than 15 %, and SpanBERT's code cuts it, even within words.
    Long units are last more often, so selected spans are a little shorter on average than drawn
    ones, but less so than SpanBERT's (``tools/results/masking.md``).

    All units are drawn with equal probability, whatever their number of tokens.

    Random numbers are a hash of the example's seed, its positions and the purpose, so an example is
    masked in the same way eagerly, in graphs, in batches of any size and by any number of workers.

    Args:
        tokenizer: a tokenizer with a mask token.
        rate: the proportion of tokens to select.
        unit: ``"piece"`` for tokens; ``"word"`` for whole words; or ``"given"`` for spans that each
            call passes, such as named entities, and whole words: the alternatives that SpanBERT
            (arXiv 1907.10529) is compared with.
        lengths: relative probabilities of selecting 1, 2, … consecutive units together. ``ngrams``
            and ``geometric`` compute ALBERT's and SpanBERT's.
        masked, random: the proportions of selected tokens that are replaced by the mask token, and
            by a random token that is not special; the others are unchanged.
        together: whether one draw decides for a whole run of selected tokens (SpanBERT, arXiv
            1907.10529, section 3.1) instead of each token.
        max_predictions: the maximum number of selected tokens; None for no maximum.
        words: for the unit ``"given"``, the proportion of draws that select a word instead of a
            span; if an example has none left of one kind, the other is drawn. 0 for spans only,
            which may be too few for ``rate``.

    Raises:
        ValueError: if the tokenizer has no mask token, the unit is unknown, a proportion is not
            from 0 to 1 or they add up to more, lengths are not probabilities, or the maximum is
            below 1.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rate: float = 0.15,
        unit: str = "piece",
        lengths: Sequence[float] = (1.0,),
        *,
        masked: float = 0.8,
        random: float = 0.1,
        together: bool = False,
        max_predictions: int | None = None,
        words: float = 0.5,
    ):
        one_of("unit", unit, ("piece", "word", "given"))
        proportions = {"rate": rate, "masked": masked, "random": random, "words": words}
        for name, proportion in proportions.items():
            in_range(name, proportion, at_least=0, at_most=1)
        if masked + random > 1:
            raise ValueError(f"masked {masked} and random {random} must add up to at most 1.")
        weights = np.asarray(lengths, "float64")
        if weights.ndim != 1 or not len(weights) or (weights < 0).any() or not weights.sum() > 0:
            raise ValueError(f"lengths must be relative probabilities, got {lengths!r}.")
        if max_predictions is not None:
            in_range("max_predictions", max_predictions, at_least=1)
        ids = tokenizer.special_ids
        if "mask" not in ids:
            raise ValueError(f"{type(tokenizer).__name__} must have a mask token.")
        self.rate = rate
        self.unit = unit
        self.masked = masked
        self.random = random
        self.together = together
        self.max_predictions = max_predictions
        self.words = words
        self._cumulative = np.cumsum(weights / weights.sum()).astype("float32")
        self._mask_id = ids["mask"]
        # The unknown token stands for text, and is predicted as any other.
        special = {i for role, i in ids.items() if role != "unk"}
        additional = tokenizer.special_tokens.additional_special_tokens
        special |= {tokenizer.token_to_id(token) for token in additional}
        self._special = np.isin(np.arange(tokenizer.vocab_size), list(special))
        self._ordinary = np.flatnonzero(~self._special).astype("int32")
        self._edges = None if unit == "piece" else word_edges(tokenizer)

    def __call__(self, token_ids: Any, padding_mask: Any, seeds: Any, spans: Any = None) -> Masked:
        """Masks a batch.

        Args:
            token_ids, padding_mask: integer (batch, length); the mask is 1 at real tokens.
            seeds: integer (batch, 2) below 2³¹, one pair for each example, such as the seed of the
                run and the example's index in the stream.
            spans: integer (batch, length), for the unit ``"given"``: consecutive tokens with the
                same number are a span, and tokens of none have 0; see ``spans_at``.

        Raises:
            ValueError: if there are spans with another unit, or none with the unit ``"given"``; or
                tensors have other shapes or types.
        """
        if (spans is None) == (self.unit == "given"):
            raise ValueError(
                f"spans are required by unit 'given' and allowed only with it, got {self.unit!r}."
            )
        token_ids = _integers("token_ids", token_ids)
        shape = token_ids.shape
        real = _integers("padding_mask", padding_mask, shape) > 0
        seeds = _integers("seeds", seeds, tf.TensorShape([shape[0], 2]))
        special = self.is_special(token_ids)
        candidates = real & ~special
        draw = Numbers(seeds)
        index = token_index(real)
        count = self._count(candidates, draw)
        if self.unit == "piece" and len(self._cumulative) == 1:
            selected = _top(draw.positions(_PIECE, index), candidates, count)
        else:
            span_numbers = tf.zeros_like(token_ids)
            if spans is not None:
                span_numbers = _integers("spans", spans, shape)
            units = self._units(self._known(token_ids), special, span_numbers)
            if self.unit == "given" and self.words == 0:
                candidates &= span_numbers > 0
            selected = self._runs(units, span_numbers > 0, special, candidates, count, draw)
        return self._replaced(token_ids, selected, draw, index)

    def is_special(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns where tokens are special, and never selected; bool, of the same shape."""
        return tf.gather(self._special, self._known(token_ids))

    def _known(self, token_ids: tf.Tensor) -> tf.Tensor:
        # Ids beyond the vocabulary, of models with larger embeddings, are not special.
        return tf.where(token_ids < len(self._special), token_ids, self._ordinary[0])

    def _count(self, candidates: tf.Tensor, draw: Numbers) -> tf.Tensor:
        """Returns how many tokens to select, int32 (batch,)."""
        number = self.rate * tf.cast(_row_sum(candidates), tf.float32)
        count = tf.cast(tf.floor(number + draw(_COUNT)), tf.int32)
        return count if self.max_predictions is None else tf.minimum(count, self.max_predictions)

    def _units(self, known: tf.Tensor, special: tf.Tensor, span_numbers: tf.Tensor) -> tf.Tensor:
        """Returns the unit of each token, counted from 1 in text order; int32 (batch, length).

        A special token is a unit, so that none extends across it.
        """
        if self.unit == "piece":
            return tf.cumsum(tf.ones_like(known), axis=1)
        assert self._edges is not None
        starts, ends = (tf.gather(edge, known) for edge in self._edges)
        begins = starts | _before(ends, True)
        if self.unit == "given":
            begins = (span_numbers != _before(span_numbers, 0)) | ((span_numbers == 0) & begins)
        begins |= special | _before(special, True)
        return tf.cumsum(tf.cast(begins, tf.int32), axis=1)

    def _runs(
        self,
        units: tf.Tensor,
        span_numbers: tf.Tensor,
        special: tf.Tensor,
        candidates: tf.Tensor,
        count: tf.Tensor,
        draw: Numbers,
    ) -> tf.Tensor:
        """Selects runs of units until ``count`` tokens are selected; bool (batch, length)."""
        # Units are numbered across special tokens; a run stays on one side.
        sides = tf.cumsum(tf.cast(special, tf.int32), axis=1)
        limit = tf.fill(tf.shape(count), self.max_predictions or tf.int32.max)
        # Draws the first token of each unit, so that long words are as probable as short ones.
        begins = candidates & ((units != _before(units, 0)) | ~_before(candidates, False))

        def unfinished(step: Any, selected: Any, free: Any, left: Any) -> tf.Tensor:
            return tf.reduce_any((left > 0) & tf.reduce_any(free, axis=1))

        def propose(step: Any, selected: Any, free: Any, left: Any) -> tuple:
            drawn = free & self._kind(span_numbers, free, draw(_KIND, step))
            number = _row_sum(drawn)
            index = tf.cast(draw(_ANCHOR, step) * tf.cast(number, tf.float32), tf.int32) + 1
            index = tf.minimum(index, number)
            anchor = drawn & (tf.cumsum(tf.cast(drawn, tf.int32), axis=1) == index[:, None])
            first, side = (_row_sum(tf.where(anchor, x, 0)) for x in (units, sides))
            longer = draw(_LENGTH, step)[:, None] >= self._cumulative[:-1]
            last = first + _row_sum(longer)
            run = (units >= first[:, None]) & (units <= last[:, None])
            run &= candidates & (sides == side[:, None]) & ~selected
            size = _row_sum(run)
            fits = tf.cast(left, tf.float32) >= draw(_FIT, step) * tf.cast(size, tf.float32)
            fits &= _row_sum(selected) + size <= limit
            selected |= run & (fits & (left > 0) & (number > 0))[:, None]
            # A run that exceeds the number ends the selection, whether it was accepted or not.
            return step + 1, selected, free & ~run, left - size

        shape = units.shape
        _, selected, _, _ = tf.while_loop(
            unfinished,
            propose,
            (tf.constant(0), tf.zeros_like(candidates), begins, count),
            shape_invariants=(tf.TensorShape([]), shape, shape, count.shape),
            parallel_iterations=1,
        )
        return selected

    def _kind(self, span_tokens: tf.Tensor, free: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of the drawn kind, spans or words; bool (batch, length)."""
        if self.unit != "given":
            return tf.ones_like(free)
        spans, words = (tf.reduce_any(free & kind, axis=1) for kind in (span_tokens, ~span_tokens))
        return span_tokens != (words & (~spans | (number < self.words)))[:, None]

    def _replaced(
        self, token_ids: tf.Tensor, selected: tf.Tensor, draw: Numbers, index: tf.Tensor
    ) -> Masked:
        before = _before(selected, False)
        after = tf.pad(selected, [[0, 0], [0, 1]])[:, 1:]
        position = tf.cumsum(tf.ones_like(token_ids), axis=1, exclusive=True)
        starts = _running_maximum(tf.where(selected & ~before, position, 0))
        length = tf.shape(token_ids)[1]
        backwards = tf.where(selected & ~after, length - position, 0)
        ends = length - _running_maximum(backwards[:, ::-1])[:, ::-1]

        fate = draw.positions(_REPLACE, index)
        if self.together:
            fate = tf.gather(fate, starts, batch_dims=1)
        random = draw.positions(_RANDOM, index) * len(self._ordinary)
        random = tf.gather(self._ordinary, tf.cast(random, tf.int32))
        other = tf.where(fate < self.masked, self._mask_id, random)
        replaced = tf.where(fate < self.masked + self.random, other, token_ids)

        most = tf.reduce_max(tf.concat([[0], _row_sum(selected)], 0))
        order = tf.argsort(tf.where(selected, position, length), axis=1, stable=True)[:, :most]
        valid = tf.gather(selected, order, batch_dims=1)

        def listed(x: tf.Tensor) -> tf.Tensor:
            return tf.where(valid, tf.gather(x, order, batch_dims=1), 0)

        return Masked(
            tf.where(selected, replaced, token_ids),
            listed(position),
            listed(token_ids),
            tf.cast(valid, tf.float32),
            listed(starts),
            listed(ends),
        )


def ngrams(longest: int = 3) -> list[float]:
    """Returns n-gram probabilities proportional to 1/n (ALBERT, arXiv 1909.11942, equation 1)."""
    return [1 / n for n in range(1, longest + 1)]


def geometric(p: float = 0.2, longest: int = 10) -> list[float]:
    """Returns geometric probabilities of span lengths up to ``longest``.

    SpanBERT, arXiv 1907.10529, section 3.1: their mean is 3.8. Lengths are not clipped, which would
    make the longest span as frequent as all longer ones together.
    """
    return [p * (1 - p) ** (n - 1) for n in range(1, longest + 1)]


def word_edges(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Computes which tokens of a vocabulary start a word, and which end one.

    A word is a run of text without white space. WordPiece also splits it at punctuation and, as
    its tokenizer does, around each ideograph. In SentencePiece and Unigram vocabularies punctuation
    other than an apostrophe starts a word, and so does the unknown token, as in ALBERT's and
    XLNet's code. (ALBERT's also lets each token with a digit or a letter outside of ASCII start
    one, which would cut words of most languages.) In all of these, and in byte-level BPE, each
    token in a script that has no spaces between words is a word: ideographs, kana, and the letters
    of Thai, Lao, Khmer and Burmese.

    GPT's and XLM's vocabularies show where words end, others where they start.

    Returns:
        Two bool arrays (vocabulary,): starts and ends.
    """
    pieces = tokenizer.vocabulary
    kind = tokenizer.kind
    nothing = np.zeros(len(pieces), bool)
    if kind == "bpe":
        return nothing, np.array([piece.endswith("</w>") for piece in pieces])
    if kind == "wordpiece":
        return np.array([not piece.startswith("##") for piece in pieces]), nothing
    if kind == "byte_bpe":
        bytes_of = {char: byte for byte, char in enumerate(byte_characters())}
        texts = [bytes(bytes_of[c] for c in piece if c in bytes_of) for piece in pieces]
        starts = [piece.startswith(("\u0120", *_BLANKS)) for piece in pieces]
        ends = [piece.endswith(_BLANKS) for piece in pieces]
    elif kind in ("sentencepiece", "unigram"):
        texts = [_piece_text(piece) for piece in pieces]
        starts = [
            piece.startswith("\u2581") or _starts_at_punctuation(text)
            for piece, text in zip(pieces, texts, strict=True)
        ]
        if "unk" in tokenizer.special_ids:
            starts[tokenizer.special_ids["unk"]] = True
        ends = nothing.tolist()
    else:
        return ~nothing, nothing
    starts = [x or _starts_unspaced(text) for x, text in zip(starts, texts, strict=True)]
    ends = [x or is_unspaced(text[-1:]) for x, text in zip(ends, map(_decoded, texts), strict=True)]
    return np.array(starts), np.array(ends)


def _piece_text(piece: str) -> bytes:
    """Returns the text of a SentencePiece piece; the byte of a byte piece such as "<0xE4>"."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
    return bytes([int(byte[1], 16)]) if byte else piece.encode()


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _starts_unspaced(text: bytes) -> bool:
    # A token may be the first byte of an ideograph alone: these are almost all of U+4000 to U+9FFF.
    return 0xE4 <= next(iter(text), 0) <= 0xE9 or is_unspaced(_decoded(text)[:1])


def is_unspaced(char: str) -> bool:
    """Returns whether a character is of a script without spaces between words."""
    return bool(char) and any(first <= ord(char) < end for first, end in _UNSPACED)


def _starts_at_punctuation(text: bytes) -> bool:
    """Returns whether a text starts with punctuation at which BERT's tokenizer splits words."""
    char = _decoded(text)[:1]
    if not char or char in "'\u2019":
        return False
    ascii_symbol = "!" <= char <= "~" and not char.isalnum()
    return ascii_symbol or unicodedata.category(char).startswith("P")


def spans_at(starts: Any, ends: Any, span_starts: Any, span_ends: Any) -> tf.Tensor:
    """Returns the span of each token, from offsets in the text, such as a tagger's.

    Args:
        starts, ends: integer (batch, length), the offsets of tokens; equal for tokens that are not
            in the text, such as special tokens and padding.
        span_starts, span_ends: integer (batch, spans), the offsets of spans, in the same unit
            (tokenizers count bytes); equal where an example has fewer spans.

    Returns:
        int32 (batch, length): one plus the index of the (last) span that a token overlaps with; 0
        for other tokens.
    """
    starts, ends = (_integers(n, x)[:, :, None] for n, x in (("starts", starts), ("ends", ends)))
    first = _integers("span_starts", span_starts)[:, None]
    end = _integers("span_ends", span_ends)[:, None]
    inside = (tf.maximum(starts, first) < tf.minimum(ends, end)) & (starts < ends) & (first < end)
    number = tf.range(1, tf.shape(first)[2] + 1)
    # The maximum of no span is a negative number.
    return tf.maximum(tf.reduce_max(tf.where(inside, number, 0), axis=2), 0)


class Numbers:
    """Random numbers in [0, 1) for each example.

    TensorFlow's stateless generators take one seed for a whole tensor, so an example's numbers
    would depend on its batch.

    Args:
        seeds: integer (batch, 2).
    """

    def __init__(self, seeds: Any):
        first, second = tf.unstack(tf.cast(seeds, tf.uint32), axis=1)
        self._state = _mixed(_mixed(first + np.uint32(0x9E3779B9)) ^ second)

    def __call__(self, purpose: int, step: Any = 0) -> tf.Tensor:
        """Returns float32 (batch,)."""
        return _unit(_mixed(self._of(purpose) + tf.cast(step, tf.uint32)))

    def positions(self, purpose: int, index: tf.Tensor) -> tf.Tensor:
        """Returns float32 (batch, length) for the indices of ``token_index``."""
        return _unit(_mixed(self._of(purpose)[:, None] + tf.cast(index, tf.uint32)))

    def _of(self, purpose: int) -> tf.Tensor:
        return _mixed(self._state + np.uint32(purpose * 0x85EBCA6B % 2**32))


def token_index(real: tf.Tensor) -> tf.Tensor:
    """Returns the index of each real token of a row, whatever the padding on either side.

    Args:
        real: bool (batch, length).

    Returns:
        int32 (batch, length); at padding the position in the row.
    """
    position = tf.cumsum(tf.ones_like(real, tf.int32), axis=1, exclusive=True)
    return tf.where(real, tf.cumsum(tf.cast(real, tf.int32), axis=1, exclusive=True), position)


def _mixed(x: tf.Tensor) -> tf.Tensor:
    """Applies a bijection of uint32 whose bits depend on all bits (lowbias32, Chris Wellons)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, np.uint32(shift)))
        x = x * np.uint32(factor)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, np.uint32(16)))


def _unit(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitwise.right_shift(x, np.uint32(8)), tf.float32) * 2.0**-24


def _integers(name: str, value: Any, expected: tf.TensorShape | None = None) -> tf.Tensor:
    """Returns ``value`` as int32, after checking its rank 2 and its static shape."""
    value = tf.convert_to_tensor(value)
    if not (value.dtype.is_integer or value.dtype.is_bool):
        raise ValueError(f"{name} must be integers, got {value.dtype.name}.")
    shape = tf.TensorShape([None, None]) if expected is None else expected
    if not value.shape.is_compatible_with(shape):
        raise ValueError(f"{name} must have the shape {shape}, got {value.shape}.")
    return tf.cast(value, tf.int32)


def _before(x: tf.Tensor, first: Any) -> tf.Tensor:
    """Returns each token's predecessor in its row, ``first`` for the first one."""
    return tf.pad(x, [[0, 0], [1, 0]], constant_values=first)[:, :-1]


def _row_sum(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x, tf.int32), axis=1)


def _top(keys: tf.Tensor, candidates: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the ``count`` candidates with the largest keys, bool (batch, length)."""
    order = tf.argsort(tf.where(candidates, keys, -1.0), axis=1, direction="DESCENDING")
    ranks = tf.argsort(order, axis=1)
    return candidates & (ranks < count[:, None])


def _running_maximum(x: tf.Tensor) -> tf.Tensor:
    """Computes the maximum of each row up to each position, in log2(length) steps."""
    length = tf.shape(x)[1]

    def step(shift: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        moved = tf.pad(x, tf.stack([[0, 0], tf.stack([shift, 0])]))[:, :length]
        return shift * 2, tf.maximum(x, moved)

    _, x = tf.while_loop(
        lambda shift, _: shift < length,
        step,
        (1, x),
        shape_invariants=(tf.TensorShape([]), x.shape),
    )
    return x
