"""Byte-level byte-pair encoding as a TensorFlow graph: the tokenizer of GPT-2 and RoBERTa.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).  Equal to Hugging
Face's `tokenizers`.  FastBertNormalize with a character map of our own says of each byte whether
it belongs to a letter, a number, white space or something else; where words begin follows from
that by vector operations on all bytes of a batch at once.  A static table then has the id of each
word that is one piece of the vocabulary, and only the distinct others are merged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.names import shown
from bertfam_tf.text import _models, _unicode
from bertfam_tf.text._files import (
    CONFIG_FILE,
    JSON_FILE,
    in_order,
    index_of_pieces,
    naming_files,
    read_ids,
    read_json,
    read_lines,
    read_merge_lines,
    read_tokenizer_config,
    read_vocabulary_json,
    section,
    stated_special_tokens,
    token_text,
    write_json,
    write_text,
)
from bertfam_tf.text._graph import Pieces, flags, row_of_each, substrings, unlikely
from bertfam_tf.text._merges import Merger, reachable_merges, read_merges
from bertfam_tf.text.packing import A_THEN_B, CLS_A_SEP_SEP, Layout
from bertfam_tf.text.tokenizer import Tokenizer

_VOCABULARY_FILE = "vocab.json"
_MERGES_FILE = "merges.txt"

# What the map says of a character's first byte.  Its other bytes have `_INNER` added, and the
# first byte of white space `_INNER * _WIDTH` for each of these.
_LETTER, _NUMBER, _OTHER, _BLANK, _SPACE = 1, 2, 3, 4, 5
_KIND, _INNER, _WIDTH = 7, 8, 2
# Longer than any byte sequence that it can stand for.
_DAMAGED = bytes([_OTHER]) * 5
_APOSTROPHE = ord("'")
_SHORT_ENDINGS = b"stmd"
_LONG_ENDINGS = (b"re", b"ve", b"ll")


def byte_characters() -> list[str]:
    """The character that stands for each byte in published vocabularies, 256 of them.

    Printable characters of Latin-1 stand for themselves, the other bytes for U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


class ByteBPETokenizer(Tokenizer):
    """GPT-2's and RoBERTa's tokenizer: text in, piece ids and byte offsets out, all in the graph.

    Ids are those of Hugging Face's GPT2TokenizerFast and RobertaTokenizerFast without special
    tokens around them.  Lossless: `detokenize(tokenize(text))` is the text, if that is UTF-8.
    There is no TFLite kernel for it.

    A piece covers its own bytes; where it holds part of a character, all of that character, like
    the reference (whose offsets count characters).  A space that `add_prefix_space` adds covers
    nothing; the reference has it cover the character that follows.

    Args:
        vocabulary: the pieces in the order of their ids, bytes written as `byte_characters`, or
            the path of a `vocab.json`.
        merges: the pairs of pieces to merge, best first, or the path of a `merges.txt`.
        add_prefix_space: whether a space is put before a text that begins with none.
        trim_offsets: whether the offsets of a piece leave out the spaces that it holds.
        special_tokens_in_text: as for WordPieceTokenizer.
        unk_token, cls_token, sep_token, pad_token, mask_token, bos_token, eos_token: the pieces
            for these parts, or None.
        additional_special_tokens: further pieces of the vocabulary to be treated as special.
        lstrip_tokens: special tokens that swallow the white space before them.
        layout: where the special tokens stand around one text, and around two.

    Raises:
        FileNotFoundError: a path leads nowhere.
        ValueError: vocabulary or merges are damaged, do not belong together, or lack one of the
            256 bytes; or a special token cannot be found in text (see WordPieceTokenizer).
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        merges: Sequence[tuple[str, str]] | str | os.PathLike[str],
        *,
        add_prefix_space: bool = False,
        trim_offsets: bool = False,
        special_tokens_in_text: bool = True,
        unk_token: str | None = None,
        cls_token: str | None = None,
        sep_token: str | None = None,
        pad_token: str | None = None,
        mask_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        additional_special_tokens: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        layout: Layout = A_THEN_B,
    ) -> None:
        sources = ["the vocabulary", "the merges"]
        if isinstance(vocabulary, str | os.PathLike):
            sources[0] = os.fspath(vocabulary)
            vocabulary = read_vocabulary_json(Path(vocabulary))
        if isinstance(merges, str | os.PathLike):
            sources[1] = os.fspath(merges)
            merges = read_merges(read_lines(Path(merges)), sources[1])
        options: dict[str, Any] = {
            "merges": [(left, right) for left, right in merges],
            "add_prefix_space": add_prefix_space,
            "trim_offsets": trim_offsets,
            "special_tokens_in_text": special_tokens_in_text,
            "unk_token": unk_token,
            "cls_token": cls_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "mask_token": mask_token,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "additional_special_tokens": tuple(additional_special_tokens),
            "lstrip_tokens": tuple(lstrip_tokens),
            "layout": layout,
        }
        super().__init__(vocabulary, options, name="byte_bpe_tokenizer", source=sources[0])
        ids = self._table.ids
        characters = byte_characters()
        missing = [byte for byte, char in enumerate(characters) if char not in ids]
        if missing:
            raise ValueError(f"{sources[0]}: no pieces for the bytes {missing}, expected all 256")
        symbols = reachable_merges(characters, options["merges"], sources[1])
        strangers = [symbol for symbol in symbols if symbol not in ids]
        if strangers:
            raise ValueError(
                f"{sources[1]}: merges make {strangers[0]!r} and {len(strangers) - 1} more symbols "
                f"that {sources[0]} lacks; expected the files of one tokenizer"
            )
        to_byte = {char: byte for byte, char in enumerate(characters)}
        texts = [_as_bytes(piece, to_byte) for piece in self._table.pieces]
        with tf.init_scope():
            self._kinds = tf_text.FastBertNormalizer(model_buffer=tf.constant(_kinds_model()))
            self._same = tf_text.FastBertNormalizer(model_buffer=tf.constant(_identity_model()))
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
        given = texts
        if self._table.options["add_prefix_space"]:
            first = tf.strings.substr(texts, 0, 1)
            bare = (first != " ") & (first != "")
            texts = tf.where(bare, tf.strings.join([" ", texts]), texts)
        kinds = self._kinds.normalize(texts)
        damaged = tf.strings.length(kinds) > tf.strings.length(texts)
        pieces = self._split(tf.where(damaged, "", texts), tf.where(damaged, "", kinds), offsets)
        parts = [part for part in pieces if part is not None]

        def again(*tensors: tf.Tensor) -> list[tf.Tensor]:
            found = self._encode_damaged(tensors[-1], offsets)
            return [part for part in found if part is not None]

        parts = unlikely(tf.reduce_any(damaged), again, parts, [texts])
        if not offsets:
            return Pieces(parts[0], None, None, parts[1])
        pieces = Pieces(*parts)
        if self._table.options["add_prefix_space"]:
            shift = tf.gather(tf.cast(bare, tf.int32), pieces.rows())
            length = tf.gather(tf.strings.length(given), pieces.rows())
            pieces = pieces._replace(
                starts=tf.maximum(pieces.starts - shift, 0),
                ends=tf.clip_by_value(pieces.ends - shift, 0, length),
            )
        return pieces

    def _finish(self, pieces: Pieces) -> Pieces:
        if not self._table.options["trim_offsets"]:
            return pieces
        start, end = pieces.starts, pieces.ends
        before, behind = tf.unstack(tf.gather(self._spaces, pieces.ids), axis=-1)
        if self._table.options["add_prefix_space"]:
            # The reference holds the first space of a text to be the one that was added.
            first = (start == 0) | flags(pieces.splits, tf.size(start, tf.int64))
            before = tf.where(first, tf.maximum(before - 1, 0), before)
        start = tf.minimum(start + before, end)
        return pieces._replace(starts=start, ends=tf.maximum(end - behind, start))

    def _encode_damaged(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Does the same for text that is not UTF-8, by way of text that is."""
        if not offsets:
            clean = self._same.normalize(texts)
            return self._split(clean, self._kinds.normalize(clean), offsets)
        clean, source = self._same.normalize_with_offsets(texts)
        pieces = self._split(clean, self._kinds.normalize(clean), offsets)
        base = tf.gather(source.row_splits, pieces.rows())

        def given(places: tf.Tensor) -> tf.Tensor:
            places = base + tf.cast(places, base.dtype)
            return tf.cast(tf.gather(source.values, places), tf.int32)

        return pieces._replace(starts=given(pieces.starts), ends=given(pieces.ends))

    def _split(self, texts: tf.Tensor, kinds: tf.Tensor, offsets: bool) -> Pieces:
        """Tokenizes UTF-8 rows, string [n], given what their bytes are, string [n]."""
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
        # Pieces cover everything but the zeros, of which there is one before each row.
        end = tf.cumsum(width) + tf.cast(row + 1, tf.int32)
        start = end - width
        inner = codes // _INNER == 1
        cut = tf.reduce_any(tf.gather(inner, start))
        start, end = unlikely(cut, _whole_characters, [start, end], [inner])
        base = tf.cast(tf.gather(begins, row), tf.int32)
        start, end = start - base, end - base
        return Pieces(ids, start, end, rows)

    def _look_up(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of the pieces of words, string [n], and int64 [n + 1], where in these
        each word's pieces begin."""
        found = self._whole_words.lookup(words)
        rare = tf.where(found < 0)[:, 0]
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
        # A row of one id for each word, then the rows of merged ones; each word takes its row.
        size = tf.size(found, tf.int64)
        rows = tf.RaggedTensor.from_row_splits(
            tf.concat([found, merged.values], 0),
            tf.concat([tf.range(size), size + merged.row_splits], 0),
            validate=False,
        )
        row = tf.tensor_scatter_nd_update(tf.range(size), rare[:, tf.newaxis], size + which)
        taken = tf.gather(rows, row)
        return taken.values, taken.row_splits

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.strings.reduce_join(
            ids.with_values(tf.gather(self._piece_bytes, ids.values)), axis=-1
        )

    # Files.

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `vocab.json`, `merges.txt` and `tokenizer_config.json`.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._table.ids, ensure_ascii=False)
        write_text(path / _VOCABULARY_FILE, text + "\n")
        options = self._table.options
        lines = [f"{left} {right}\n" for left, right in options["merges"]]
        write_text(path / _MERGES_FILE, "".join(["#version: 0.2\n", *lines]))
        config = {
            "tokenizer_class": "GPT2Tokenizer" if options["cls_token"] is None
            else "RobertaTokenizer",
            "add_prefix_space": options["add_prefix_space"],
            "trim_offsets": options["trim_offsets"],
            **self._special_config(),
        }  # fmt: skip
        write_json(path / CONFIG_FILE, config)

    @classmethod
    @naming_files
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> Self:
        """Reads a tokenizer from a directory.

        Vocabulary and merges are those of `vocab.json` and `merges.txt`, or of `tokenizer.json`
        where these are missing.  Each option is taken from the first that states it: the argument,
        `tokenizer_config.json`, what the published tokenizers of GPT-2 and RoBERTa have (the
        latter if the vocabulary has "<s>").

        Args:
            directory: the directory, or one of these files in it.
            **options: keyword arguments of the constructor.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged or describes another kind of tokenizer.
        """
        path = Path(directory)
        if path.is_file():
            path = path.parent
        files = [path / _VOCABULARY_FILE, path / _MERGES_FILE]
        stated: dict[str, Any] = {}
        if all(file.is_file() for file in files):
            pieces = read_vocabulary_json(files[0])
            merges = read_merges(read_lines(files[1]), str(files[1]))
        elif (path / JSON_FILE).is_file():
            pieces, merges, stated = _read_tokenizer_json(path / JSON_FILE)
        else:
            raise FileNotFoundError(
                f"{path}: found neither {_VOCABULARY_FILE} with {_MERGES_FILE} nor {JSON_FILE}, "
                "expected them beside the weights"
            )
        index_of_pieces(pieces, str(files[0]))
        stated = _published_options(pieces) | stated
        config = path / CONFIG_FILE
        if config.is_file():
            content = read_tokenizer_config(config)
            stated |= {name: content[name] for name in ("add_prefix_space", "trim_offsets")
                       if name in content}  # fmt: skip
            stated |= stated_special_tokens(content, config)
        return cls(pieces, merges, **(stated | options))


def _published_options(pieces: Sequence[str]) -> dict[str, Any]:
    """Returns the published options of RoBERTa if these are its pieces, else GPT-2's."""
    known = set(pieces)
    if "<s>" not in known:
        end = "<|endoftext|>"
        return {name: end for name in ("bos_token", "eos_token", "unk_token") if end in known}
    tokens = {"bos": "<s>", "cls": "<s>", "sep": "</s>", "eos": "</s>", "pad": "<pad>",
              "unk": "<unk>", "mask": "<mask>"}  # fmt: skip
    return {
        **{f"{role}_token": token for role, token in tokens.items() if token in known},
        "lstrip_tokens": ("<mask>",),
        "trim_offsets": True,
        "layout": CLS_A_SEP_SEP,
    }


def _words(data: tf.Tensor, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the words: what the pattern of GPT-2's tokenizer matches, one after the other.

    These are "'s", "'t", "'re", "'ve", "'m", "'ll" and "'d"; runs of letters, of numbers, and of
    what is neither nor white space, each with a space before it if there is one; and runs of white
    space, of which the last character stands alone if a run of another kind follows.

    Args:
        data: uint8 [n], the bytes of the rows, with a zero between two rows, one before the first
            and three behind the last.
        codes: uint8 [n], the code of each, 0 at the zeros.

    Returns:
        int64 [words], their first bytes, and int64 [words], the bytes behind.
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

    # The endings of "it's" and the like.  What follows them is a word of its own.
    at = tf.where(starts & (data == _APOSTROPHE))[:, 0]
    first, second = (tf.cast(tf.gather(data, at + step), tf.int32) for step in (1, 2))
    short = tf.reduce_any(first[:, tf.newaxis] == list(_SHORT_ENDINGS), -1)
    both = first * 256 + second
    long = tf.reduce_any(both[:, tf.newaxis] == [a * 256 + b for a, b in _LONG_ENDINGS], -1)
    hit = short | long
    behind = at + tf.where(
        short, tf.constant(2, tf.int64), tf.where(long, tf.constant(3, tf.int64), 0)
    )
    places = tf.concat([at + 1, behind], 0)
    no = tf.zeros_like(hit)
    joins = tf.concat([hit, no], 0)
    parts = tf.concat([no, hit & (tf.gather(kinds, behind) == _LETTER)], 0)
    values = (tf.gather(starts, places) | parts) & ~joins
    starts = tf.tensor_scatter_nd_update(starts, places[:, tf.newaxis], values)

    borders = tf.where(starts | (kinds == 0))[:, 0]
    kept = tf.where(tf.gather(kinds, borders) > 0)[:, 0]
    return tf.gather(borders, kept), tf.gather(borders, kept + 1)


def _framed(rows: tf.Tensor) -> tf.Tensor:
    """Returns the rows, string [n], as one string with zeros between and around them."""
    return tf.strings.join([b"\0", tf.strings.reduce_join(rows, separator=b"\0"), b"\0\0\0"])


def _whole_characters(
    start: tf.Tensor, end: tf.Tensor, inner: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Widens spans to whole characters; `inner`, bool [n], is true at all but their first bytes."""
    for _ in range(3):
        start -= tf.cast(tf.gather(inner, start), start.dtype)
        end += tf.cast(tf.gather(inner, end), end.dtype)
    return start, end


# From vocabulary and tables to what the kernels read.


def _kinds_model() -> np.ndarray:
    """Returns the map of each character to the codes of its bytes."""
    kind = np.full(_unicode.CODEPOINTS, _OTHER)
    for mask, code in zip(_unicode.byte_level_classes(), (_LETTER, _NUMBER, _BLANK), strict=True):
        kind[mask] = code
    kind[ord(" ")] = _SPACE
    extra = np.zeros(_unicode.CODEPOINTS, int)
    for limit in (0x80, 0x800, 0x10000):
        extra[limit:] += 1
    strings = [b""]
    choice = np.zeros(_unicode.CODEPOINTS, int)
    for code in (_LETTER, _NUMBER, _OTHER, _BLANK, _SPACE):
        for more in range(4):
            members = (kind == code) & (extra == more)
            if members.any():
                choice[members] = len(strings)
                first = code + more * _INNER * _WIDTH if code == _BLANK else code
                strings.append(bytes([first]) + bytes([code | _INNER]) * more)
    return _models.normalizer_model(strings, choice, _DAMAGED)


def _identity_model() -> np.ndarray:
    """Returns the map that alters nothing but what is not UTF-8."""
    choice = np.zeros(_unicode.CODEPOINTS, int)
    return _models.normalizer_model([b""], choice, "\ufffd".encode())


def _as_bytes(piece: str, to_byte: Mapping[str, int]) -> bytes:
    """Returns what a piece stands for; special tokens stand for themselves."""
    if all(char in to_byte for char in piece):
        return bytes(to_byte[char] for char in piece)
    return piece.encode("utf-8")


def _in_kernel_characters(
    symbols: Mapping[str, int], ids: Mapping[str, int], to_byte: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns ranks and ids of symbols whose bytes are written as U+0100 to U+01FF."""
    table = {ord(char): 0x100 + byte for char, byte in to_byte.items()}
    spelled = {symbol: symbol.translate(table) for symbol in symbols}
    return (
        {spelled[symbol]: rank for symbol, rank in symbols.items()},
        {spelled[symbol]: ids[symbol] for symbol in symbols},
    )


def _read_tokenizer_json(
    path: Path,
) -> tuple[list[str], list[tuple[str, str]], dict[str, Any]]:
    """Returns vocabulary, merges, and the constructor's arguments that a tokenizer.json states."""
    content = read_json(path)
    model, splitter = (section(content, name, path) for name in ("model", "pre_tokenizer"))
    for what, found, expected in (
        ("model", model.get("type"), "BPE"),
        ("suffix of words", model.get("end_of_word_suffix") or None, None),
        ("normalizer", content.get("normalizer"), None),
        ("pre-tokenizer", splitter.get("type"), "ByteLevel"),
        ("pattern of words", splitter.get("use_regex", True), True),
    ):
        if found != expected:
            raise ValueError(f"{path}: the {what} is {shown(found)}, expected {expected!r}")
    ids, added = read_ids(content, path)
    lstrip = [token_text(token, path) for token in added if token.get("lstrip")]
    merges = read_merge_lines(content, path)
    post = section(content, "post_processor", path)
    stated = {
        "add_prefix_space": bool(splitter.get("add_prefix_space", False)),
        "trim_offsets": bool(post.get("trim_offsets", False)),
        "lstrip_tokens": tuple(lstrip),
    }
    return in_order(ids, path), read_merges(merges, str(path)), stated
