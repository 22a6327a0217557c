"""Byte-level byte-pair encoding as a TensorFlow graph: the tokenizer of GPT-2 and RoBERTa.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Equal to Hugging
Face's ``tokenizers``. FastBertNormalize with a character map classifies each byte as part of a
letter, a number, white space or something else; word boundaries are found by vectorized operations
on all bytes of a batch. A static table has the ids of words that are a single piece; merges are
computed only for the other words, once for each distinct word.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text.files import (
    JSON_FILE,
    MERGES_FILE,
    VOCABULARY_JSON,
    missing_files,
    read_lines,
    read_merges,
    read_vocabulary_json,
    vocabulary_and_merges,
    write_merges,
)
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.graph import Pieces, flags, row_of_each, substrings, unlikely
from bertfam_tf.text.kernels.merges import Merger, pieces_of_words, reachable_merges
from bertfam_tf.text.kernels.normalization import Characters, Reader, original_offsets
from bertfam_tf.text.kernels.normalization_forms import Normalized
from bertfam_tf.text.kernels.unicode import CODEPOINTS, byte_level_classes
from bertfam_tf.text.special_tokens import A_THEN_B, NO_SPECIAL_TOKENS, ROLES, Layout, SpecialTokens
from bertfam_tf.text.tokenizer_json import Pipeline, read
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.bpe_files import check_merging
from bertfam_tf.text.tokenizers.matching import matcher, normalized_tokens_in_text

# The code of a character's first byte. Its other bytes have ``_INNER`` added, and the first byte of
# white space ``_INNER * _WIDTH`` for each of these.
_LETTER, _NUMBER, _OTHER, _BLANK, _SPACE = 1, 2, 3, 4, 5
_KIND, _INNER, _WIDTH = 7, 8, 2
# For bytes that are not UTF-8; longer than any sequence that it can replace.
_DAMAGED = bytes([_OTHER]) * 5
_APOSTROPHE = ord("'")
# NFC changes no character before U+0300.
_FIRST_AFFECTED = 0xCC
_SHORT_ENDINGS = b"stmd"
_LONG_ENDINGS = (b"re", b"ve", b"ll")


def byte_characters() -> list[str]:
    """Returns the character that represents each of the 256 bytes in published vocabularies.

    The printable characters of Latin-1 represent themselves, U+0100 and up the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


class ByteBPETokenizer(Tokenizer):
    """GPT-2's and RoBERTa's tokenizer: converts text to piece ids and byte offsets in the graph.

    Ids equal Hugging Face's GPT2TokenizerFast and RobertaTokenizerFast without the special tokens
    around them. Lossless: ``detokenize(tokenize(text))`` is the text if it is valid UTF-8.
    It is not available in TFLite.

    A piece covers its own bytes, or the whole character if it is only a part of one, as in the
    reference (whose offsets are in characters). A space that ``add_prefix_space`` adds covers
    nothing; in the reference it covers the next character.

    Files: ``tokenizer.json`` or, without it, ``vocab.json`` and ``merges.txt``.

    Args:
        vocabulary: the pieces in the order of their ids, bytes as in ``byte_characters``, or the
            path of a ``vocab.json``.
        merges: the pairs of pieces to merge, best first, or the path of a ``merges.txt``.
        add_prefix_space: whether a space is added before a text that does not begin with one.
        trim_offsets: whether the offsets of a piece exclude its spaces.
        compose: whether texts are normalized to Unicode's form NFC first.
        special_tokens: the special tokens.
        layout: the positions of the special tokens.

    Raises:
        FileNotFoundError: if there is no file at a path.
        ValueError: vocabulary or merges are invalid, do not belong together, or lack one of the 256
            bytes; or as ``Tokenizer``.
    """

    kind = "byte_bpe"
    _any_special_token = True
    _config_keys = {name: name for name in ("add_prefix_space", "trim_offsets", "compose")}

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        merges: Sequence[tuple[str, str]] | str | os.PathLike[str],
        *,
        add_prefix_space: bool = False,
        trim_offsets: bool = False,
        compose: bool = False,
        special_tokens: SpecialTokens = NO_SPECIAL_TOKENS,
        layout: Layout = A_THEN_B,
    ) -> None:
        vocabulary, merges, sources = vocabulary_and_merges(vocabulary, merges)
        options: dict[str, Any] = {
            "merges": merges,
            "add_prefix_space": add_prefix_space,
            "trim_offsets": trim_offsets,
            "compose": compose,
        }
        super().__init__(
            vocabulary, special_tokens, layout, options, name="byte_bpe_tokenizer",
            source=sources[0],
        )  # fmt: skip
        ids = self._state.ids
        characters = byte_characters()
        missing = [byte for byte, char in enumerate(characters) if char not in ids]
        if missing:
            raise ValueError(f"{sources[0]}: no pieces for the bytes {missing}, expected all 256.")
        symbols = reachable_merges(characters, merges, sources[1])
        unlisted = [symbol for symbol in symbols if symbol not in ids]
        if unlisted:
            raise ValueError(
                f"{sources[1]}: merges make {unlisted[0]!r} and {len(unlisted) - 1} more symbols "
                f"that {sources[0]} lacks; expected the files of one tokenizer."
            )
        to_byte = {char: byte for byte, char in enumerate(characters)}
        # Not written in the characters of bytes, unless text is split into them too.
        literal = {*special_tokens, *special_tokens.added_tokens} - symbols.keys()
        texts = [
            piece.encode() if piece in literal else _as_bytes(piece, to_byte)
            for piece in self._state.pieces
        ]
        later = normalized_tokens_in_text(special_tokens)
        self._normalized_matcher = matcher(later, special_tokens, ids, anything=True)
        with tf.init_scope():
            self._compose: Normalized | None = None
            if compose:
                self._read, self._compose = Reader(), Normalized("NFC")
            self._kinds = _kinds_kernel()
            # Changes only bytes that are not UTF-8.
            self._same = CharacterMap().kernel()
            self._whole_words = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant([texts[ids[symbol]] for symbol in symbols]),
                    tf.constant([ids[symbol] for symbol in symbols], tf.int32),
                ),
                default_value=-1,
            )
            self._merger = Merger(*_in_kernel_characters(symbols, ids, to_byte), unk_id=0)
            self._piece_bytes = tf.constant(texts)
            self._widths = tf.constant([len(text) for text in texts], tf.int32)
            if trim_offsets:
                spaces = [(len(t) - len(t.lstrip(b" ")), len(t) - len(t.rstrip(b" ")))
                          for t in texts]  # fmt: skip
                self._spaces = tf.constant(spaces, tf.int32)

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if self._compose is None:
            return self._encode_composed(texts, offsets)
        read, compose = self._read, self._compose
        data = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)

        def may_change(*tensors: tf.Tensor) -> tuple[tf.Tensor]:
            return (compose.may_change(tf.strings.unicode_decode(tensors[1], "UTF-8").values),)

        no = tf.constant(False)
        (affected,) = unlikely(tf.reduce_any(data >= _FIRST_AFFECTED), may_change, [no], [texts])

        def composed(*tensors: tf.Tensor) -> list[tf.Tensor]:
            text = compose(read(tensors[0]))
            return [text.strings(), *text]

        none = tf.zeros([0], tf.int32)
        values = [texts, none, none, none, tf.zeros([0], tf.int64)]
        texts, *parts = unlikely(affected, composed, values, [])
        pieces = self._encode_composed(texts, offsets)
        if not offsets:
            return pieces

        def original(*tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            text = Characters(*tensors[-4:])
            starts, ends, ids, splits = tensors[:4]
            return original_offsets(Pieces(ids, starts, ends, splits), text)

        spans = [pieces.starts, pieces.ends]
        starts, ends = unlikely(affected, original, spans, [pieces.ids, pieces.splits, *parts])
        return pieces._replace(starts=starts, ends=ends)

    def _encode_composed(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Splits texts in NFC, string [n], with the tokens that are looked for in them."""
        token_matcher = self._normalized_matcher
        if token_matcher is None:
            return self._encode_plain(texts, offsets)
        may = token_matcher.may_be_in(texts)
        pieces = self._encode_plain(tf.where(may, "", texts), offsets)

        def with_tokens(*tensors: tf.Tensor) -> list[tf.Tensor]:
            def encode(texts: tf.Tensor) -> Pieces:
                return self._encode_plain(texts, offsets)

            trim_offsets = self._state.options["trim_offsets"]
            return token_matcher.encode_around(tensors[-1], encode, trim_offsets).tensors()

        return Pieces.from_tensors(unlikely(may, with_tokens, pieces.tensors(), [texts]))

    def _encode_plain(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Splits texts, string [n], without special tokens."""
        original = texts
        if self._state.options["add_prefix_space"]:
            first = tf.strings.substr(texts, 0, 1)
            bare = (first != " ") & (first != "")
            texts = tf.where(bare, tf.strings.join([" ", texts]), texts)
        kinds = self._kinds.normalize(texts)
        damaged = tf.strings.length(kinds) > tf.strings.length(texts)
        pieces = self._split(tf.where(damaged, "", texts), tf.where(damaged, "", kinds), offsets)

        def encode_damaged(*tensors: tf.Tensor) -> list[tf.Tensor]:
            return self._encode_damaged(tensors[-1], offsets).tensors()

        tensors = unlikely(tf.reduce_any(damaged), encode_damaged, pieces.tensors(), [texts])
        pieces = Pieces.from_tensors(tensors)
        if offsets and self._state.options["add_prefix_space"]:
            shift = tf.gather(tf.cast(bare, tf.int32), pieces.rows())
            length = tf.gather(tf.strings.length(original), pieces.rows())
            pieces = pieces._replace(
                starts=tf.maximum(pieces.starts - shift, 0),
                ends=tf.clip_by_value(pieces.ends - shift, 0, length),
            )
        return pieces

    def _finish(self, pieces: Pieces) -> Pieces:
        if not self._state.options["trim_offsets"]:
            return pieces
        start, end = pieces.starts, pieces.ends
        before, after = tf.unstack(tf.gather(self._spaces, pieces.ids), axis=-1)
        if self._state.options["add_prefix_space"]:
            # The reference assumes that the first space of a text is the added one.
            first = (start == 0) | flags(pieces.splits, tf.size(start, tf.int64))
            before = tf.where(first, tf.maximum(before - 1, 0), before)
        start = tf.minimum(start + before, end)
        return pieces._replace(starts=start, ends=tf.maximum(end - after, start))

    def _encode_damaged(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Tokenizes texts that contain invalid UTF-8, after replacing it."""
        if not offsets:
            clean = self._same.normalize(texts)
            return self._split(clean, self._kinds.normalize(clean), offsets)
        clean, source = self._same.normalize_with_offsets(texts)
        pieces = self._split(clean, self._kinds.normalize(clean), offsets)
        base = tf.gather(source.row_splits, pieces.rows())

        def original(places: tf.Tensor) -> tf.Tensor:
            places = base + tf.cast(places, base.dtype)
            return tf.cast(tf.gather(source.values, places), tf.int32)

        return pieces._replace(starts=original(pieces.starts), ends=original(pieces.ends))

    def _split(self, texts: tf.Tensor, kinds: tf.Tensor, offsets: bool) -> Pieces:
        """Splits UTF-8 texts, string [n], given the codes of their bytes, string [n]."""
        whole, codes = (_framed(rows) for rows in (texts, kinds))
        data, codes = (tf.io.decode_raw(rows, tf.uint8) for rows in (whole, codes))
        starts, ends = _words(data, codes)
        words = substrings(whole, starts, ends)
        ids, splits = self._look_up(words)
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        begins = tf.cumsum(lengths + 1, exclusive=True) + 1
        words_before = tf.searchsorted(starts, begins, out_type=tf.int64)
        rows = tf.concat([tf.gather(splits, words_before), tf.shape(ids, tf.int64)], 0)
        if not offsets:
            return Pieces(ids, None, None, rows)
        width = tf.gather(self._widths, ids)
        size = tf.size(ids, tf.int64)
        row = row_of_each(rows, size)
        # Pieces cover everything except the zeros; there is one zero before each text.
        end = tf.cumsum(width) + tf.cast(row + 1, tf.int32)
        start = end - width
        inner = codes // _INNER == 1
        cut = tf.reduce_any(tf.gather(inner, start))
        start, end = unlikely(cut, _whole_characters, [start, end], [inner])
        base = tf.cast(tf.gather(begins, row), tf.int32)
        start, end = start - base, end - base
        return Pieces(ids, start, end, rows)

    def _look_up(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of the pieces of words, string [n], and their row splits, int64
        [n + 1]."""
        ids = self._whole_words.lookup(words)
        rare = tf.where(ids < 0)[:, 0]
        distinct, which = tf.unique(tf.gather(words, rare), tf.int64)
        characters = tf.io.decode_raw(tf.strings.reduce_join(distinct), tf.uint8)
        lengths = tf.cast(tf.strings.length(distinct), tf.int64)
        spelled = tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_lengths(
                tf.cast(characters, tf.int32) + 0x100, lengths, validate=False
            ),
            "UTF-8",
        )
        merged = self._merger(spelled)
        values = tf.concat([ids, merged.values], 0)
        pieces = pieces_of_words(values, tf.size(ids, tf.int64), rare, merged.row_splits, which)
        return pieces.values, pieces.row_splits

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.strings.reduce_join(
            ids.with_values(tf.gather(self._piece_bytes, ids.values)), axis=-1
        )

    # Files.

    def _write_files(self, directory: Path) -> dict[str, Any]:
        write_merges(directory, self._state.ids, self._state.options["merges"])
        return {name: self._state.options[name] for name in self._config_keys}

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        vocabulary, merges = folder / VOCABULARY_JSON, folder / MERGES_FILE
        if (folder / JSON_FILE).is_file():
            return cls._of_pipeline(read(folder / JSON_FILE, "BPE")), folder / JSON_FILE
        if vocabulary.is_file() and merges.is_file():
            pairs = read_merges(read_lines(merges), str(merges))
            return {"vocabulary": read_vocabulary_json(vocabulary), "merges": pairs}, vocabulary
        raise missing_files(folder, f"{VOCABULARY_JSON} with {MERGES_FILE}", JSON_FILE)

    @staticmethod
    def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
        """Returns the arguments that a tokenizer.json defines."""
        check_merging(pipeline, "")
        kinds = [step.kind for step in pipeline.normalizers]
        if kinds not in ([], ["NFC"]):
            pipeline.refuse("normalizer", kinds, "none or 'NFC'")
        splitter = pipeline.splitter("ByteLevel")
        pipeline.expect("pattern of words", splitter["use_regex"], True)
        trimming = [step for step in pipeline.processors if step.options.get("trim_offsets")]
        for step in trimming:
            pipeline.expect(
                f"{step.kind}'s prefix space",
                step["add_prefix_space"],
                splitter["add_prefix_space"],
            )
        return {
            **pipeline.arguments(),
            "merges": pipeline.merges(),
            "add_prefix_space": splitter["add_prefix_space"],
            "trim_offsets": bool(trimming),
            "compose": bool(kinds),
        }

    @classmethod
    def _published(
        cls, options: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        known = set(arguments["vocabulary"])
        roles = {f"{role}_token" for role in ROLES}
        return {name: value for name, value in options.items()
                if name not in roles or value in known}  # fmt: skip

    def _is_preset(self, options: Mapping[str, Any]) -> bool:
        return options.get("cls_token") == self.special_tokens.cls_token


def _words(data: tf.Tensor, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the words that the regular expression of GPT-2's tokenizer matches.

    These are "'s", "'t", "'re", "'ve", "'m", "'ll" and "'d"; runs of letters, of numbers, and of
    what is neither of these nor white space, each with the space before it; and runs of white
    space, whose last character is a separate word if a run of another kind follows.

    Args:
        data: uint8 [n], the bytes of all texts, with a zero between two texts, one before the first
            and three after the last.
        codes: uint8 [n], their codes, 0 at the zeros.

    Returns:
        ``(starts, ends)``, int64 [words], in bytes of ``data`` (end exclusive).
    """
    kinds = codes & _KIND
    kind, before = kinds[1:-3], kinds[:-4]
    solid = (kinds > 0) & (kinds < _BLANK)
    inner = codes[1:-3] // _INNER
    followed = tf.where(inner == 0, solid[2:-2], tf.where(inner == _WIDTH, solid[3:-1], solid[4:]))
    starts = tf.where(
        kind < _BLANK, (kind != before) & (before != _SPACE), followed | (before < _BLANK)
    )
    starts = tf.pad(starts & (kind > 0) & (inner != 1), [[1, 3]])

    # Contractions such as the ending of "it's", after which a new word begins.
    at = tf.where(starts & (data == _APOSTROPHE))[:, 0]
    first, second = (tf.cast(tf.gather(data, at + step), tf.int32) for step in (1, 2))
    short = tf.reduce_any(first[:, tf.newaxis] == list(_SHORT_ENDINGS), -1)
    both = first * 256 + second
    long = tf.reduce_any(both[:, tf.newaxis] == [a * 256 + b for a, b in _LONG_ENDINGS], -1)
    hit = short | long
    after = at + tf.where(
        short, tf.constant(2, tf.int64), tf.where(long, tf.constant(3, tf.int64), 0)
    )
    places = tf.concat([at + 1, after], 0)
    no = tf.zeros_like(hit)
    joins = tf.concat([hit, no], 0)
    parts = tf.concat([no, hit & (tf.gather(kinds, after) == _LETTER)], 0)
    values = (tf.gather(starts, places) | parts) & ~joins
    starts = tf.tensor_scatter_nd_update(starts, places[:, tf.newaxis], values)

    borders = tf.where(starts | (kinds == 0))[:, 0]
    kept = tf.where(tf.gather(kinds, borders) > 0)[:, 0]
    return tf.gather(borders, kept), tf.gather(borders, kept + 1)


def _framed(rows: tf.Tensor) -> tf.Tensor:
    """Returns texts, string [n], as one string with zeros between and around them."""
    return tf.strings.join([b"\0", tf.strings.reduce_join(rows, separator=b"\0"), b"\0\0\0"])


def _whole_characters(
    start: tf.Tensor, end: tf.Tensor, inner: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Widens spans to whole characters; ``inner``, bool [bytes], is true at continuation bytes."""
    for _ in range(3):
        start -= tf.cast(tf.gather(inner, start), start.dtype)
        end += tf.cast(tf.gather(inner, end), end.dtype)
    return start, end


# Building the kernels.


def _kinds_kernel() -> tf_text.FastBertNormalizer:
    """Returns the kernel that replaces each byte by its code."""
    kind = np.full(CODEPOINTS, _OTHER)
    for mask, code in zip(byte_level_classes(), (_LETTER, _NUMBER, _BLANK), strict=True):
        kind[mask] = code
    kind[ord(" ")] = _SPACE
    extra = np.zeros(CODEPOINTS, int)
    for limit in (0x80, 0x800, 0x10000):
        extra[limit:] += 1
    codes = CharacterMap()
    for code in (_LETTER, _NUMBER, _OTHER, _BLANK, _SPACE):
        for more in range(4):
            members = (kind == code) & (extra == more)
            if members.any():
                first = code + more * _INNER * _WIDTH if code == _BLANK else code
                codes.put(members, bytes([first]) + bytes([code | _INNER]) * more)
    return codes.kernel(invalid=_DAMAGED)


def _as_bytes(piece: str, to_byte: Mapping[str, int]) -> bytes:
    """Returns the bytes that a piece represents; a special token represents itself."""
    if all(char in to_byte for char in piece):
        return bytes(to_byte[char] for char in piece)
    return piece.encode("utf-8")


def _in_kernel_characters(
    symbols: Mapping[str, int], ids: Mapping[str, int], to_byte: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the ranks and ids of symbols, with bytes written as U+0100 to U+01FF."""
    table = {ord(char): 0x100 + byte for char, byte in to_byte.items()}
    spelled = {symbol: symbol.translate(table) for symbol in symbols}
    return (
        {spelled[symbol]: rank for symbol, rank in symbols.items()},
        {spelled[symbol]: ids[symbol] for symbol in symbols},
    )
