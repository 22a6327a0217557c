"""BERT's WordPiece tokenizer as a TensorFlow graph, equal to Hugging Face's `tokenizers`.

Three kernels of tensorflow-text do the work: FastBertNormalize with a character map of our own
(which removes, lower-cases, decomposes and sets words apart by spaces as the reference does, so
that no decision is left to the kernels' Unicode tables), FastWordpieceTokenizeWithOffsets with a
model that knows nothing but the vocabulary, and ByteSplit.  All of them exist in TF Serving and in
TFLite.  One thing that no character map can say is put right afterwards, and only where it
occurs: words of more than 100 characters.
"""

from __future__ import annotations

import os
import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    read_tokenizer_config,
    section,
    stated_special_tokens,
    token_text,
    write_json,
    write_text,
)
from bertfam_tf.text._graph import Pieces, flags, original_spans, padded, unlikely, windows_equal
from bertfam_tf.text.packing import CLS_A_SEP, Layout
from bertfam_tf.text.tokenizer import Tokenizer

_SUFFIX = "##"
# Neither character survives cleaning, and the vocabulary handed to the kernel has the first
# nowhere: every character that the vocabulary lacks is written so.  The second opens the
# placeholders of pieces that no text can produce.
_UNKNOWN_CHARACTER = "\x01"
_PLACEHOLDER = "\x02"
_MAX_PIECE_BYTES = 256
_VOCABULARY_FILE = "vocab.txt"


class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer: text in, piece ids and byte offsets out, all in the graph.

    Ids are those of Hugging Face's BertTokenizerFast without [CLS] and [SEP] around them.  Works
    eagerly, in `tf.data`, `tf.function`, SavedModels and, with tensorflow-text's custom ops, in
    TFLite.  Input that is not UTF-8 is read as `bytes.decode("utf-8", errors="replace")` reads it.

    A piece covers the bytes from the first byte of the character its first letter came from to
    the last byte of the character its last letter came from, like the reference (whose offsets
    count characters).  Accents and control characters that were dropped lie within a piece if they
    stood inside it and outside if they stood at its end.  Where one character gives several pieces
    (Hangul, with accents stripped), each of them covers all of it.  One case differs from the
    reference, only with `strip_accents`: for a word with one of the 83 rare marks that stripping
    leaves and canonical order moves (U+302E, say), the reference gives the place that the mark
    moved to.  Its ids are the same as long as the vocabulary has no piece with two such marks; no
    published one has any.

    `detokenize` puts a space before each piece, except that "##" glues to the one before.  The
    text is the normalized one.  Lost are case and accents (where the tokenizer drops them), the
    words behind [UNK], control characters, the kind and number of spaces, and whether punctuation
    stood apart: "don't" comes back as "don ' t".  Special tokens, padding among them, are written
    out.

    Args:
        vocabulary: the pieces in the order of their ids, or the path of a file with one a line.
        lower_case: whether to lower-case.
        strip_accents: whether to strip accents; `None` means as `lower_case`.
        split_chinese: whether each Chinese character is a word.
        special_tokens_in_text: whether "[MASK]" and the other special tokens, when they stand in
            the text exactly so, become their single ids, as in Hugging Face's tokenizer; that is
            also what lets a masked-word question be asked as text.  Give `False` for text from
            strangers who should not be able to place a [SEP]: such text is then split like any.
        max_chars_per_word: a word of more characters becomes one unknown piece.
        unk_token: the piece for unknown words; must be in the vocabulary.
        cls_token: the piece that opens a sequence.
        sep_token: the piece that closes a segment.
        pad_token: the piece that fills up.
        mask_token: the piece that hides a word.
        additional_special_tokens: further pieces of the vocabulary to be treated as special.
        lstrip_tokens: special tokens that swallow the white space before them.
        clean_text: whether control characters are removed; every published BERT does so.
        layout: where the special tokens stand around one text, and around two.

    Raises:
        FileNotFoundError: the vocabulary is a path and there is no such file.
        ValueError: the vocabulary is damaged or lacks `unk_token`, or a special token cannot be
            found in text (it must begin and end with an ASCII punctuation mark, the first of
            which may occur in it only once).
    """

    has_tflite_kernels = True

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        *,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens_in_text: bool = True,
        max_chars_per_word: int = 100,
        unk_token: str = "[UNK]",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        additional_special_tokens: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        clean_text: bool = True,
        layout: Layout = CLS_A_SEP,
    ) -> None:
        source = "the vocabulary"
        if isinstance(vocabulary, str | os.PathLike):
            source = os.fspath(vocabulary)
            vocabulary = read_lines(Path(vocabulary))
        pieces = list(vocabulary)
        if not (isinstance(max_chars_per_word, int) and 1 <= max_chars_per_word <= _MOST_CHARS):
            raise ValueError(
                f"max_chars_per_word is {shown(max_chars_per_word)}, expected 1 to {_MOST_CHARS}"
            )
        self._max_chars = max_chars_per_word
        options: dict[str, Any] = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "split_chinese": split_chinese,
            "special_tokens_in_text": special_tokens_in_text,
            "max_chars_per_word": max_chars_per_word,
            "unk_token": unk_token,
            "cls_token": cls_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "mask_token": mask_token,
            "additional_special_tokens": tuple(additional_special_tokens),
            "lstrip_tokens": tuple(lstrip_tokens),
            "clean_text": clean_text,
            "layout": layout,
        }
        super().__init__(pieces, options, name="word_piece_tokenizer", source=source)
        rules = _unicode.Rules(
            lower_case=lower_case,
            strip_accents=lower_case if strip_accents is None else strip_accents,
            split_chinese=split_chinese,
            clean_text=clean_text,
        )
        normalizer, words = _build_models(pieces, self.unk_id, rules, max_chars_per_word)
        with tf.init_scope():
            self._normalizer = tf_text.FastBertNormalizer(model_buffer=tf.constant(normalizer))
            self._words = tf_text.FastWordpieceTokenizer(
                model_buffer=tf.constant(words), token_out_type=tf.int32
            )
            self._openings = self._describe_openings()

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.gather(self._texts, ids.values)
        length = tf.strings.length(texts)
        glued = (tf.strings.substr(texts, 0, 2) == _SUFFIX) & (length > 2)
        first = flags(ids.row_splits, tf.size(ids.values, ids.row_splits.dtype))
        texts = tf.where(
            first,
            texts,
            tf.where(
                glued,
                tf.strings.substr(texts, tf.where(glued, 2, 0), length),
                tf.strings.join([" ", texts]),
            ),
        )
        return tf.strings.reduce_join(ids.with_values(texts), axis=-1)

    # Files.

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json`, which Hugging Face's classes read too.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / _VOCABULARY_FILE, "".join(f"{piece}\n" for piece in self.vocabulary))
        options = self._table.options
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": options["lower_case"],
            "strip_accents": options["strip_accents"],
            "tokenize_chinese_chars": options["split_chinese"],
            "clean_text": options["clean_text"],
            "max_input_chars_per_word": options["max_chars_per_word"],
            **self._special_config(),
        }
        write_json(path / CONFIG_FILE, config)

    @classmethod
    @naming_files
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> WordPieceTokenizer:
        """Reads a tokenizer from a directory.

        The vocabulary is that of `vocab.txt`, or of `tokenizer.json` where that stands alone.
        Each option is taken from the first that states it: the argument, `tokenizer_config.json`,
        `tokenizer.json`, the constructor's default.  Where nothing says whether to lower-case, a
        vocabulary is held to be cased if one of its pieces, other than those in brackets, has
        a letter from A to Z.

        Args:
            directory: the directory, or one of these files in it.
            **options: keyword arguments of the constructor.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: there is neither `vocab.txt` nor `tokenizer.json`.
            ValueError: a file is damaged or describes a tokenizer that is not BERT's.
        """
        path = Path(directory)
        if path.is_file():
            path = path.parent
        vocabulary, config, whole = (
            path / name for name in (_VOCABULARY_FILE, CONFIG_FILE, JSON_FILE)
        )
        stated: dict[str, Any] = {}
        if whole.is_file():
            pieces, stated = _read_tokenizer_json(whole)
        elif not vocabulary.is_file():
            raise FileNotFoundError(
                f"{path}: found neither {_VOCABULARY_FILE} nor {JSON_FILE}, "
                "expected one of them beside the weights"
            )
        if vocabulary.is_file():
            pieces = read_lines(vocabulary)
        if config.is_file():
            stated |= _read_tokenizer_config(config)
        stated |= options
        if "lower_case" not in stated:
            stated["lower_case"] = not any(
                not _ASCII_CAPITALS.isdisjoint(piece) and piece[0] + piece[-1] not in ("[]", "<>")
                for piece in pieces
            )
        source = vocabulary if vocabulary.is_file() else whole
        index_of_pieces(pieces, str(source), stated.get("unk_token", "[UNK]"))
        return cls(pieces, **stated)

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if offsets:
            normalized, source = self._normalizer.normalize_with_offsets(texts)
        else:
            normalized, source = self._normalizer.normalize(texts), None
        ids, starts, ends = self._words.tokenize_with_offsets(normalized)
        parts = [ids.values, starts.values, ends.values, ids.row_splits]
        long = self._has_long_run(starts.values, ends.values)
        pieces = Pieces(*unlikely(long, self._mark_long_words, parts, [normalized]))
        if source is None:
            return pieces._replace(starts=None, ends=None)
        raw = self._bytes.split(texts)
        start, end = original_spans(raw, source, pieces.rows(), pieces.starts, pieces.ends)
        return Pieces(pieces.ids, start, end, pieces.splits)

    def _has_long_run(self, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns whether any word has more bytes than a word may have characters."""
        # Pieces of a word touch, words do not.  Rows are ignored here: a run that by chance goes
        # on into the next row is only longer.
        gaps = tf.where(starts[1:] != ends[:-1])[:, 0]
        first = tf.concat([starts[:1], tf.gather(starts, gaps + 1)], 0)
        last = tf.concat([tf.gather(ends, gaps), ends[-1:]], 0)
        return tf.reduce_any(last - first > self._table.options["max_chars_per_word"])

    def _mark_long_words(self, *tensors: tf.Tensor) -> Pieces:
        """Makes one unknown piece of each word that has too many characters.

        Args:
            *tensors: the four parts of `Pieces`, and the normalized texts.
        """
        *parts, normalized = tensors
        pieces = Pieces(*parts)
        size = tf.size(pieces.ids, tf.int64)
        inner = tf.where(pieces.starts[1:] != pieces.ends[:-1])[:, 0] + 1
        opens = flags(tf.concat([pieces.splits, inner], 0), size)
        word = tf.cumsum(tf.cast(opens, tf.int64)) - 1
        first = tf.where(opens)[:, 0]
        start = tf.gather(pieces.starts, first)
        end = tf.gather(pieces.ends, tf.concat([first[1:], [size]], 0)[: tf.size(first)] - 1)
        split = self._bytes.split(normalized)
        byte = tf.cast(split.values, tf.int32)
        count = tf.cumsum(tf.cast((byte < 0x80) | (byte >= 0xC0), tf.int32))
        count = tf.concat([[0], count], 0)
        row = tf.gather(split.row_splits, tf.gather(pieces.rows(), first))
        length = tf.gather(count, row + end) - tf.gather(count, row + start)
        long = tf.gather(length > self._table.options["max_chars_per_word"], word)
        marked = Pieces(
            tf.where(long, self.unk_id, pieces.ids),
            pieces.starts,
            tf.where(long, tf.gather(end, word), pieces.ends),
            pieces.splits,
        )
        return marked.keep(opens | ~long)

    def _may_hold_special(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        # The pieces are fewer than the bytes.
        openings = self._openings
        assert openings is not None
        first, patterns = openings.first, openings.patterns
        opens = pieces.ids == first[0]
        for piece in first[1:]:
            opens |= pieces.ids == piece
        at = tf.where(opens)[:, 0]
        return tf.reduce_any(windows_equal(pieces.ids, at, patterns))

    def _describe_openings(self) -> _Openings | None:
        if self._special is None:
            return None
        # As special tokens begin and end with marks that are words of their own, they are split
        # into the same pieces wherever they stand.
        tokens = tf.constant(self._special.texts)
        rows = [row.numpy() for row in self._words.tokenize(self._normalizer.normalize(tokens))]
        return _Openings(np.unique([row[0] for row in rows]).astype(np.int32), padded(rows))


class _Openings(NamedTuple):
    """The pieces that special tokens typed in the text would be split into: the first ones of
    all, int32 [k], and those of each, int32 [tokens, most], -1 behind."""

    first: np.ndarray
    patterns: np.ndarray


# From vocabulary and rules to the models of the kernels.


def _codepoints(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _build_models(
    pieces: list[str], unk_id: int, rules: _unicode.Rules, max_chars: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the flatbuffers of the normalizer and of the word model."""
    changed, removed, apart = rules.changed(), rules.removed(), rules.apart()
    produced = ~removed
    produced[list(changed)] = False
    produced[_codepoints("".join(set("".join(changed.values()))))] = True
    produced[ord(" ")] = False

    # A piece that the normalizer's output cannot contain keeps its id but matches nothing.
    suffix = np.array([len(piece) > 2 and piece.startswith(_SUFFIX) for piece in pieces])
    bodies = [piece[2:] if glued else piece for piece, glued in zip(pieces, suffix, strict=True)]
    letters = _codepoints("".join(bodies))
    lengths = np.array([len(body) for body in bodies])
    begins = np.cumsum(lengths) - lengths
    reachable = np.logical_and.reduceat(produced[letters], begins)
    reachable &= ~np.logical_or.reduceat(apart[letters], begins) | ((lengths == 1) & ~suffix)
    known = np.zeros(_unicode.CODEPOINTS, bool)
    known[letters[np.repeat(reachable, lengths)]] = True

    stand_ins = _stand_ins(known & ~apart)
    words = []
    for index, body in enumerate(bodies):
        if not reachable[index]:
            words.append(f"{_PLACEHOLDER}{index:x}")
            continue
        body = body.translate(stand_ins)
        size = len(body.encode("utf-8"))
        if size > _MAX_PIECE_BYTES:
            raise ValueError(
                f"piece {index}, {pieces[index][:20]!r}…, takes {size} bytes, "
                f"expected at most {_MAX_PIECE_BYTES}"
            )
        words.append(_SUFFIX + body if suffix[index] else body)
    word_model = _models.sentence_model(
        tf_text.build_fast_wordpiece_model(
            words, 4 * max_chars, _SUFFIX, words[unk_id], True, False
        )
    )

    strings = [""]
    places: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in places:
            places[text] = len(strings)
            strings.append(text)
        return places[text]

    def written(char: str) -> str:
        text = stand_ins.get(ord(char), char) if known[ord(char)] else _UNKNOWN_CHARACTER
        return f" {text} " if apart[ord(char)] else text

    choice = np.full(_unicode.CODEPOINTS, place(_UNKNOWN_CHARACTER))
    choice[apart] = place(f" {_UNKNOWN_CHARACTER} ")
    choice[known] = 0
    choice[ord(" ")] = 0
    for codepoint in [*np.flatnonzero(known & apart).tolist(), *stand_ins]:
        choice[codepoint] = place(written(chr(codepoint)))
    for codepoint, text in changed.items():
        choice[codepoint] = place("".join(char if char == " " else written(char) for char in text))
    choice[removed] = place("")
    replacement = strings[choice[0xFFFD]] if choice[0xFFFD] else "\ufffd"
    normalizer = _models.normalizer_model(
        [text.encode("utf-8") for text in strings], choice, replacement.encode("utf-8")
    )
    return normalizer, word_model


def _stand_ins(letters: np.ndarray) -> dict[int, str]:
    """Returns private-use characters for letters that the kernel might take for word ends.

    The kernel cuts at what its own Unicode tables call white space, punctuation or Chinese
    wherever the vocabulary does not continue.  Here such a character (Chinese if
    `split_chinese` is off, say) is a letter like any other.
    """
    free = (chr(codepoint) for codepoint in range(0xE000, 0xF900) if not letters[codepoint])
    spare = (chr(codepoint) for codepoint in range(0xF0000, 0xFFFFE) if not letters[codepoint])
    result: dict[int, str] = {}
    for codepoint in np.flatnonzero(letters).tolist():
        chinese = any(start <= codepoint < end for start, end in _KERNEL_CHINESE)
        if chinese or unicodedata.category(chr(codepoint))[0] not in "LMNS":
            result[codepoint] = next(free, "") or next(spare)
    return result


_KERNEL_CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2CEB0),
    (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip
_ASCII_CAPITALS = frozenset(string.ascii_uppercase)
# The kernel counts bytes in 32 bits; published models have 100.
_MOST_CHARS = 1 << 20


# Files.


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer_config.json states."""
    config = read_tokenizer_config(path)
    names = {
        "do_lower_case": "lower_case",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "split_chinese",
        "clean_text": "clean_text",
        "max_input_chars_per_word": "max_chars_per_word",
    }
    stated = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
    return stated | stated_special_tokens(config, path)


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Returns the vocabulary and the constructor's arguments that a tokenizer.json states."""
    content = read_json(path)
    model, normalizer = (section(content, name, path) for name in ("model", "normalizer"))
    # Early files state no type; the prefix then tells WordPiece.
    kind = model.get("type") or ("WordPiece" if "continuing_subword_prefix" in model else None)
    splitter = section(content, "pre_tokenizer", path).get("type")
    for what, found, expected in (
        ("model", kind, "WordPiece"),
        ("continuing prefix", model.get("continuing_subword_prefix"), _SUFFIX),
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("pre-tokenizer", splitter, "BertPreTokenizer"),
    ):
        if found != expected:
            raise ValueError(f"{path}: the {what} is {shown(found)}, expected {expected!r}")
    ids, added = read_ids(content, path)
    for token in added:
        text = token_text(token, path)
        settings = [name for name in ("single_word", "rstrip", "normalized") if token.get(name)]
        if settings or not token.get("special"):
            raise ValueError(
                f"{path}: added token {text!r} with {', '.join(settings) or 'special off'}, "
                "expected only special tokens without such settings"
            )
    pieces = in_order(ids, path)
    stated = {
        "lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "split_chinese": normalizer.get("handle_chinese_chars", True),
        "clean_text": normalizer.get("clean_text", True),
        "max_chars_per_word": model.get("max_input_chars_per_word", 100),
        "unk_token": model.get("unk_token", "[UNK]"),
    }
    standard = {stated["unk_token"], "[CLS]", "[SEP]", "[PAD]", "[MASK]"}
    others = tuple(token["content"] for token in added if token["content"] not in standard)
    if others:
        stated["additional_special_tokens"] = others
    lstrip = tuple(token["content"] for token in added if token.get("lstrip"))
    return pieces, stated | ({"lstrip_tokens": lstrip} if lstrip else {})
