"""Finds special tokens in texts, and tokenizes only the text between them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.graph import (
    Pieces,
    flags,
    following,
    padded,
    previous,
    reached,
    row_of_each,
    windows_equal,
)
from bertfam_tf.text.kernels.internals import bytes_of, parts_of
from bertfam_tf.text.special_tokens import SpecialTokens

# The maximum size of the table of tokens; each row is as wide as the longest token.
_MAX_TABLE_BYTES = 1 << 20
# The number of spellings of a token doubles with each of its letters.
_MAX_KELVINS, _MAX_LETTERS = 10, 10
_KELVIN = "\N{KELVIN SIGN}"


class SpecialTokenMatcher:
    """Finds special tokens in text.

    Args:
        ids: int32 [tokens].
        texts: the tokens' UTF-8 bytes.
        lstrip: bool [tokens], whether a token absorbs the white space before it.
    """

    def __init__(self, ids: np.ndarray, texts: Sequence[bytes], lstrip: np.ndarray) -> None:
        self.ids = ids
        self.texts = list(texts)
        self.lstrip = lstrip
        self.patterns = padded([np.frombuffer(text, np.uint8) for text in texts])
        self.byte_counts = np.array([len(text) for text in texts], np.int64)
        self.first_bytes = sorted({text[0] for text in texts})
        inner = set(b"".join(text[1:] for text in texts))
        self._overlap = not inner.isdisjoint(self.first_bytes)
        self._openings: np.ndarray | None = None
        if not {chr(byte) for byte in self.first_bytes} <= set(string.punctuation):
            # Runs of spaces and words begin with bytes that are everywhere in text.
            self._openings = np.zeros(1 << 16, bool)
            for text in texts:
                rest = slice(text[0] << 8, (text[0] + 1) << 8)
                self._openings[text[0] << 8 | text[1] if len(text) > 1 else rest] = True

    def find(self, data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds tokens in bytes, uint8 [n].

        Returns:
            int64 [k], the positions of bytes that tokens begin with, and bool [k, tokens], whether
            that token begins there; it may extend beyond the end of a text.
        """
        # TFLite compares bytes as quantized numbers, and rejects those without a scale.
        data = tf.cast(data, tf.int32)
        if self._openings is not None:
            opens = tf.gather(self._openings, data * 256 + following(data, 0))
        else:
            opens = data == self.first_bytes[0]
            for byte in self.first_bytes[1:]:
                opens |= data == byte
        at = tf.where(opens)[:, 0]
        return at, windows_equal(data, at, self.patterns)

    def may_be_in(self, texts: tf.Tensor, *, in_tflite: bool = False) -> tf.Tensor:
        """Returns bool, whether texts, string [n], may contain tokens.

        ``in_tflite`` does without ``decode_raw``, which is faster and not available in TFLite.
        """
        if in_tflite:
            data = bytes_of(texts).values
        else:
            data = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.reduce_any(self.find(data)[1])

    def encode_around(
        self,
        texts: tf.Tensor,
        encode: Callable[[tf.Tensor], Pieces],
        trim_offsets: bool,
    ) -> Pieces:
        """Splits texts, string [batch], into pieces and special tokens.

        Args:
            texts: string [batch].
            encode: splits the strings, [n], between special tokens.
            trim_offsets: whether offsets exclude the white space that ``lstrip`` tokens absorb.
        """
        raw = bytes_of(texts)
        size = tf.size(raw.values, tf.int64)
        row = row_of_each(raw.row_splits, size)
        at, matches = self.find(raw.values)
        room = tf.gather(raw.row_splits, tf.gather(row, at) + 1) - at
        matches &= room[:, tf.newaxis] >= self.byte_counts
        # The longest of the tokens that begin at the same byte is used.
        which = tf.argmax(tf.where(matches, tf.cast(self.byte_counts, tf.int32), 0), -1)
        hit = tf.where(tf.reduce_any(matches, -1))[:, 0]
        which, first = tf.gather(which, hit), tf.gather(at, hit)
        end = first + tf.gather(self.byte_counts, which)
        if self._overlap:
            # From left to right, those that begin after the end of the last one that is kept.
            # Counted without ``searchsorted``, for which TFLite has no kernel.
            count = tf.cumsum(tf.cast(flags(first, size), tf.int64))
            after = tf.gather(tf.concat([[0], count], 0), end)
            kept = reached(tf.zeros([1], tf.int64), after)
            which, first, end = (tf.boolean_mask(tensor, kept) for tensor in (which, first, end))

        # Segments (special tokens and the text between them) tile the bytes of all texts.
        cuts = flags(tf.concat([raw.row_splits, first, end], 0), size)
        start = tf.where(cuts)[:, 0]  # [segments]
        end = following(start, size)
        before = tf.concat([[0], tf.cumsum(tf.cast(cuts, tf.int64))], 0)
        splits = tf.gather(before, raw.row_splits)
        token_at_byte = tf.tensor_scatter_nd_update(
            tf.fill(tf.reshape(size, [1]), tf.constant(-1, tf.int64)), first[:, tf.newaxis], which
        )
        token = tf.gather(token_at_byte, start)  # [segments], -1 for text
        row = tf.gather(row, start)
        base = tf.gather(raw.row_splits, row)
        start, end = start - base, end - base
        is_token = token >= 0
        segments = parts_of(texts, start, end, splits)
        if self.lstrip.any():
            lstrip = is_token & tf.gather(self.lstrip, tf.maximum(token, 0))
            segments, wide, end = _include_spaces(segments, start, end, row, is_token, lstrip)
            start = start if trim_offsets else wide
        plain = tf.where(~is_token)[:, 0]
        token_at = tf.where(is_token)[:, 0]
        inner = encode(tf.gather(segments, plain))
        rows = inner.rows()

        counts = tf.tensor_scatter_nd_update(
            tf.ones_like(start), plain[:, tf.newaxis], inner.splits[1:] - inner.splits[:-1]
        )
        begins = tf.concat([[0], tf.cumsum(counts)], 0)  # [segments + 1], in pieces
        move = tf.gather(begins, plain) - inner.splits[:-1]
        of_pieces = tf.range(tf.size(inner.ids, tf.int64)) + tf.gather(move, rows)
        places = tf.concat([of_pieces, tf.gather(begins, token_at)], 0)[:, tf.newaxis]

        def merged(of_text: tf.Tensor, of_segments: tf.Tensor) -> tf.Tensor:
            of_tokens = tf.cast(tf.gather(of_segments, token_at), of_text.dtype)
            return tf.scatter_nd(places, tf.concat([of_text, of_tokens], 0), begins[-1:])

        ids = merged(inner.ids, tf.gather(self.ids, tf.maximum(token, 0)))
        splits = tf.gather(begins, splits)
        if inner.starts is None or inner.ends is None:
            return Pieces(ids, None, None, splits)
        begin = tf.cast(tf.gather(tf.gather(start, plain), rows), inner.starts.dtype)
        return Pieces(
            ids, merged(inner.starts + begin, start), merged(inner.ends + begin, end), splits
        )


def _include_spaces(
    segments: tf.Tensor,
    start: tf.Tensor,
    end: tf.Tensor,
    row: tf.Tensor,
    is_token: tf.Tensor,
    lstrip: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Moves white space at the end of a segment to an ``lstrip`` token that follows it.

    All arguments have one value per segment, [n]; returns the texts, starts and ends of segments.
    """
    strip = following(lstrip, False) & (following(row, -1) == row) & ~is_token
    stripped = tf.strings.regex_replace(segments, r"[\s\x{0B}\x{85}\pZ]+$", "")
    segments = tf.where(strip, stripped, segments)
    end = tf.where(strip, start + tf.cast(tf.strings.length(segments), tf.int64), end)
    start = tf.where(previous(strip, False), previous(end, 0), start)
    return segments, start, end


def tokens_in_text(special: SpecialTokens, ids: Mapping[str, int]) -> list[str]:
    """Returns the tokens that are looked for in texts before these are normalized.

    Raises:
        ValueError: if an additional special token or added token is not in the vocabulary.
    """
    required = (*special.additional_special_tokens, *special.added_tokens)
    missing = [token for token in required if token not in ids]
    if missing:
        raise ValueError(f"additional special tokens {missing} are not in the vocabulary.")
    tokens = [*(special if special.special_tokens_in_text else ()), *special.added_tokens]
    unchanged = (token for token in dict.fromkeys(tokens) if token not in special.normalized_tokens)
    return [token for token in unchanged if token in ids]


def normalized_tokens_in_text(special: SpecialTokens) -> list[str]:
    """Returns the tokens that are looked for in normalized texts."""
    shown = {*(special if special.special_tokens_in_text else ()), *special.added_tokens}
    return [token for token in special.normalized_tokens if token in shown]


def matcher(
    tokens: Sequence[str], special: SpecialTokens, ids: Mapping[str, int], anything: bool = False
) -> SpecialTokenMatcher | None:
    """Returns the matcher of a tokenizer's special tokens; None if there are none to find in text.

    Args:
        tokens: the tokens to find, see ``tokens_in_text``.
        special: the special tokens.
        ids: the ids of the vocabulary.
        anything: whether tokens may begin, end and overlap in any way.

    Raises:
        ValueError: if a token cannot be found in text (it must begin and end with ASCII
            punctuation, and its first character must not be elsewhere in a special token).
    """
    if not tokens:
        return None
    longest = max(len(token.encode("utf-8")) for token in tokens)
    if len(tokens) * longest > _MAX_TABLE_BYTES:
        raise ValueError(
            f"{len(tokens)} special tokens of up to {longest} bytes are more than can be found in "
            "text; set special_tokens_in_text=False."
        )
    inner = "".join(other[1:] for other in tokens)
    for token in () if anything else tokens:
        if token[0] in inner or not {token[0], token[-1]} <= set(string.punctuation):
            kind, remedy = "special", "; set special_tokens_in_text=False"
            if token in special.added_tokens:  # which are found in any text
                kind, remedy = "added", ""
            raise ValueError(
                f"{kind} token {token!r} cannot be found in text: expected it to begin and end "
                "with ASCII punctuation, and its first character nowhere else in a special token"
                f"{remedy}."
            )
    return SpecialTokenMatcher(
        ids=np.array([ids[token] for token in tokens], np.int32),
        texts=[token.encode("utf-8") for token in tokens],
        lstrip=np.array([token in special.lstrip_tokens for token in tokens]),
    )


# For tokenizers that lower-case text before they look for special tokens.


class LowerCasingMatcher(SpecialTokenMatcher):
    """Finds special tokens after ASCII letters were lower-cased: "<UNK>" for "<unk>".

    A token that contains upper-case letters is only found unchanged.
    """

    def __init__(self, exact: SpecialTokenMatcher) -> None:
        # The Kelvin sign is the only other character that becomes an ASCII letter.
        kelvin = _KELVIN.encode()
        chosen, texts = [], []
        for index, text in enumerate(exact.texts):
            parts = text.split(b"k")
            either = text == text.lower() and len(parts) <= _MAX_KELVINS
            letters = (b"k", kelvin) if either else (b"k",)
            for way in itertools.product(letters, repeat=len(parts) - 1):
                texts.append(b"".join(itertools.chain(*zip(parts, (*way, b""), strict=True))))
                chosen.append(index)
        super().__init__(exact.ids[chosen], texts, exact.lstrip[chosen])
        self._exact = np.array([text != text.lower() for text in texts])

    def find(self, data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        data = tf.cast(data, tf.int32)
        upper = (data >= ord("A")) & (data <= ord("Z"))
        at, matches = super().find(tf.where(upper, data + 32, data))
        if self._exact.any():
            matches = tf.where(self._exact, windows_equal(data, at, self.patterns), matches)
        return at, matches


def with_spellings(exact: SpecialTokenMatcher) -> SpecialTokenMatcher:
    """Returns a matcher of all texts that are special tokens after lower-casing."""
    chosen, texts = [], []
    for index, text in enumerate(exact.texts):
        for spelling in _spellings(text.decode("utf-8")):
            chosen.append(index)
            texts.append(spelling.encode("utf-8"))
    return SpecialTokenMatcher(exact.ids[chosen], texts, exact.lstrip[chosen])


def _spellings(token: str) -> list[str]:
    """Returns the texts that lower-case to a token; only itself and upper case for long tokens."""
    if token.lower() != token:
        return [token]
    others = {letter: [letter, letter.upper()] for letter in string.ascii_lowercase}
    others["k"].append(_KELVIN)
    if sum(char in others for char in token) > _MAX_LETTERS:
        return [token, token.upper()]
    return list(map("".join, itertools.product(*(others.get(char, [char]) for char in token))))
