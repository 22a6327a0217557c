"""BERT's WordPiece tokenizer as a TensorFlow graph, equal to Hugging Face's ``tokenizers``.

It uses three kernels of tensorflow-text: FastBertNormalize with a character map that removes,
lower-cases, decomposes and separates characters like the reference, FastWordpiece with a model that
contains only the vocabulary, and ByteSplit. Nothing depends on the kernels' own Unicode tables,
and all three are available in TF Serving and TFLite. Words of more than 100 characters, which a
character map cannot express, are corrected afterwards.
"""

from __future__ import annotations

import itertools
import os
import string
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf import files
from bertfam_tf.names import truncated_repr
from bertfam_tf.text import tokenizer_json
from bertfam_tf.text.files import JSON_FILE, missing_files, read_lines
from bertfam_tf.text.kernels.character_map import CharacterMap, separate_words
from bertfam_tf.text.kernels.graph import (
    Pieces,
    flags,
    following,
    original_spans,
    padded,
    unlikely,
    windows_equal,
)
from bertfam_tf.text.kernels.internals import breaks_words, bytes_of, fast_wordpiece
from bertfam_tf.text.kernels.unicode import CODEPOINTS, Rules
from bertfam_tf.text.special_tokens import CLS_A_SEP, Layout, SpecialTokens
from bertfam_tf.text.tokenizer_json import Pipeline
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.matching import (
    SpecialTokenMatcher,
    matcher,
    normalized_tokens_in_text,
)
from bertfam_tf.validation import in_range

SPECIAL_TOKENS = SpecialTokens(
    unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]"
)
_PREFIX = "##"
# Control characters, which cleaning removes and the kernel's vocabulary does not contain. The first
# replaces characters outside of the vocabulary, the second begins the placeholders of pieces that
# normalized text cannot contain.
_UNKNOWN_CHARACTER = "\x01"
_PLACEHOLDER = "\x02"
_MAX_PIECE_BYTES = 256
_VOCABULARY_FILE = "vocab.txt"
_ASCII_UPPER_CASE = frozenset(string.ascii_uppercase)
_PUNCTUATION = frozenset(string.punctuation.encode())
# The kernel counts bytes in 32 bits; published models have 100 characters.
_MAX_CHARS = 1 << 20


class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer: converts text to piece ids and byte offsets in the graph.

    Ids equal Hugging Face's BertTokenizerFast without the [CLS] and [SEP] around them
    (Wu et al., arXiv 1609.08144; Devlin et al., arXiv 1810.04805). Works eagerly, in ``tf.data``,
    ``tf.function``, SavedModels and, with tensorflow-text's custom ops, in TFLite.

    A piece covers the bytes from its first original character to its last, as in the reference
    (whose offsets are in characters). Removed accents and control characters are part of a piece
    if they are inside it, but not at its end. If one character becomes several pieces (Hangul, if
    accents are stripped), each covers the whole character. One case differs from the reference,
    only with ``strip_accents``: for the 83 rare marks that stripping keeps and canonical ordering
    moves (such as U+302E), the reference has the offset to which the mark was moved. The ids are
    equal unless the vocabulary has a piece with two such marks; no published vocabulary has one.

    ``detokenize`` adds a space before each piece that does not begin with "##". The result is
    normalized text: case and accents (if the tokenizer removes them), unknown words, control
    characters, the kind and number of spaces, and whether punctuation was separate are lost:
    "don't" becomes "don ' t". Special tokens, including padding, are part of the text.

    Files: ``tokenizer.json`` or, without it, ``vocab.txt``. If no file defines whether to
    lower-case, a vocabulary is assumed to be cased if any piece, except those in brackets, contains
    a letter from A to Z.

    Args:
        vocabulary: the pieces in the order of their ids, or the path of a file with one per line.
        lower_case: whether to lower-case.
        strip_accents: whether to remove accents; None for the value of ``lower_case``.
        split_chinese: whether each Chinese character is a word.
        max_chars_per_word: a word of more characters is one unknown piece.
        clean_text: whether to remove control characters, as all published BERT models do.
        special_tokens: the special tokens; ``unk_token`` must be in the vocabulary.
        layout: the positions of the special tokens.

    Raises:
        FileNotFoundError: if the vocabulary is a path and there is no such file.
        ValueError: if the vocabulary is invalid or lacks ``unk_token``, or as ``Tokenizer``.
    """

    kind = "wordpiece"
    default_special_tokens = SPECIAL_TOKENS
    has_tflite_kernels = True
    _any_special_token = True
    _config_keys = {
        "do_lower_case": "lower_case",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "split_chinese",
        "clean_text": "clean_text",
        "max_input_chars_per_word": "max_chars_per_word",
    }

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        *,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        max_chars_per_word: int = 100,
        clean_text: bool = True,
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
        layout: Layout = CLS_A_SEP,
    ) -> None:
        source = "the vocabulary"
        if isinstance(vocabulary, str | os.PathLike):
            source = os.fspath(vocabulary)
            vocabulary = read_lines(Path(vocabulary))
        pieces = list(vocabulary)
        in_range(
            "max_chars_per_word", max_chars_per_word, at_least=1, at_most=_MAX_CHARS, integer=True
        )
        options: dict[str, Any] = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "split_chinese": split_chinese,
            "max_chars_per_word": int(max_chars_per_word),
            "clean_text": clean_text,
        }
        super().__init__(
            pieces, special_tokens, layout, options, name="word_piece_tokenizer", source=source
        )
        rules = Rules(
            lower_case=lower_case,
            strip_accents=lower_case if strip_accents is None else strip_accents,
            split_chinese=split_chinese,
            clean_text=clean_text,
        )
        with tf.init_scope():
            later = normalized_tokens_in_text(special_tokens)
            whole = frozenset([*later, *beyond_model(pieces, special_tokens)])
            self._normalizer, self._words = _kernels(
                pieces, self.unk_id, rules, max_chars_per_word, whole
            )
            self._normalized_matcher = self._make_normalized_matcher(later)
            self._openings = self._make_openings()

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.gather(self._texts, ids.values)
        length = tf.strings.length(texts)
        continues = (tf.strings.substr(texts, 0, 2) == _PREFIX) & (length > 2)
        first = flags(ids.row_splits, tf.size(ids.values, ids.row_splits.dtype))
        body = tf.strings.substr(texts, tf.where(continues, 2, 0), length)
        texts = tf.where(first, texts, tf.where(continues, body, tf.strings.join([" ", texts])))
        return tf.strings.reduce_join(ids.with_values(texts), axis=-1)

    # Files.

    def _write_files(self, directory: Path) -> dict[str, Any]:
        files.write(
            directory / _VOCABULARY_FILE, "".join(f"{piece}\n" for piece in self.vocabulary)
        )
        options = self._state.options
        return {theirs: options[ours] for theirs, ours in self._config_keys.items()}

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        vocabulary, whole = folder / _VOCABULARY_FILE, folder / JSON_FILE
        if whole.is_file():
            return cls._of_pipeline(tokenizer_json.read(whole, "WordPiece")), whole
        if vocabulary.is_file():
            return {"vocabulary": read_lines(vocabulary)}, vocabulary
        raise missing_files(folder, _VOCABULARY_FILE, JSON_FILE)

    @staticmethod
    def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
        """Returns the arguments that a tokenizer.json defines."""
        model = pipeline.model
        pipeline.expect("continuing prefix", model["continuing_subword_prefix"], _PREFIX)
        pipeline.splitter("BertPreTokenizer")
        return {
            **pipeline.arguments(),
            **pipeline.bert_rules(),
            "max_chars_per_word": model["max_input_chars_per_word"],
        }

    @classmethod
    def _published(
        cls, options: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        cased = any(
            not _ASCII_UPPER_CASE.isdisjoint(piece) and piece[0] + piece[-1] not in ("[]", "<>")
            for piece in arguments["vocabulary"]
        )
        return {"lower_case": not cased, **options}

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if offsets:
            normalized, source = self._normalizer.normalize_with_offsets(texts)
        else:
            normalized, source = self._normalizer.normalize(texts), None
        pieces = self._split(normalized)
        token_matcher = self._normalized_matcher
        if token_matcher is not None:

            def with_tokens(*tensors: tf.Tensor) -> list[tf.Tensor]:
                return token_matcher.encode_around(tensors[-1], self._split, True).tensors()

            may = token_matcher.may_be_in(normalized, in_tflite=True)
            pieces = Pieces.from_tensors(unlikely(may, with_tokens, pieces.tensors(), [normalized]))
        if source is None:
            return pieces._replace(starts=None, ends=None)
        raw = bytes_of(texts)
        start, end = original_spans(raw, source, pieces.rows(), pieces.starts, pieces.ends)
        return Pieces(pieces.ids, start, end, pieces.splits)

    def _split(self, normalized: tf.Tensor) -> Pieces:
        """Splits normalized texts, string [n], into pieces with offsets in these."""
        ids, starts, ends = self._words.tokenize_with_offsets(normalized)
        parts = [ids.values, starts.values, ends.values, ids.row_splits]
        long = self._has_long_run(starts.values, ends.values)
        return Pieces(*unlikely(long, self._mark_long_words, parts, [normalized]))

    def _has_long_run(self, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns bool, whether a word may have more bytes than the limit for characters."""
        # The pieces of a word are adjacent, words are not. Text boundaries are ignored: a run that
        # happens to continue in the next text is only longer.
        gaps = tf.where(starts[1:] != ends[:-1])[:, 0]
        first = tf.concat([starts[:1], tf.gather(starts, gaps + 1)], 0)
        last = tf.concat([tf.gather(ends, gaps), ends[-1:]], 0)
        return tf.reduce_any(last - first > self._state.options["max_chars_per_word"])

    def _mark_long_words(self, *tensors: tf.Tensor) -> Pieces:
        """Replaces each word with too many characters by one unknown piece.

        Args:
            *tensors: the four parts of ``Pieces``, and the normalized texts.
        """
        *parts, normalized = tensors
        pieces = Pieces(*parts)
        size = tf.size(pieces.ids, tf.int64)
        inner = tf.where(pieces.starts[1:] != pieces.ends[:-1])[:, 0] + 1
        opens = flags(tf.concat([pieces.splits, inner], 0), size)  # [pieces]
        word = tf.cumsum(tf.cast(opens, tf.int64)) - 1
        first = tf.where(opens)[:, 0]  # [words]
        start = tf.gather(pieces.starts, first)
        end = tf.gather(pieces.ends, following(first, size) - 1)
        split = bytes_of(normalized)
        byte = tf.cast(split.values, tf.int32)
        count = tf.cumsum(tf.cast((byte < 0x80) | (byte >= 0xC0), tf.int32))
        count = tf.concat([[0], count], 0)  # [bytes + 1], in characters
        row = tf.gather(split.row_splits, tf.gather(pieces.rows(), first))
        length = tf.gather(count, row + end) - tf.gather(count, row + start)
        long = tf.gather(length > self._state.options["max_chars_per_word"], word)  # [pieces]
        marked = Pieces(
            tf.where(long, self.unk_id, pieces.ids),
            pieces.starts,
            tf.where(long, tf.gather(end, word), pieces.ends),
            pieces.splits,
        )
        return marked.keep(opens | ~long)

    def _make_normalized_matcher(self, tokens: Sequence[str]) -> SpecialTokenMatcher | None:
        """Returns the matcher of tokens that are looked for in normalized texts.

        Normalized text has as many spaces between two characters as separate them there, so a
        token's normalized form is only found where the text has the token.
        """
        exact = matcher(tokens, self.special_tokens, self._state.ids, anything=True)
        if exact is None:
            return None
        forms = [text.strip(b" ") for text in self._normalizer.normalize(tokens).numpy()]
        for token, form in zip(tokens, forms, strict=True):
            if not form or _UNKNOWN_CHARACTER.encode() in form or token.strip() != token:
                raise ValueError(
                    f"the special token {truncated_repr(token)} of the normalized text has "
                    "characters that no piece of the vocabulary has, or white space around it."
                )
        return SpecialTokenMatcher(exact.ids, forms, exact.lstrip)

    def _may_contain_special(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        openings = self._openings
        if openings is None:
            return super()._may_contain_special(texts, pieces)
        # There are fewer pieces than bytes.
        first, patterns = openings.first, openings.patterns
        opens = pieces.ids == first[0]
        for piece in first[1:]:
            opens |= pieces.ids == piece
        at = tf.where(opens)[:, 0]
        return tf.reduce_any(windows_equal(pieces.ids, at, patterns))

    def _make_openings(self) -> _Openings | None:
        # Tokens of normalized text may be parts of special tokens, and overlap with them.
        if self._matcher is None or self._normalized_matcher is not None:
            return None
        # Punctuation is always a separate word, so special tokens that begin and end with it are
        # split into the same pieces in any context.
        ends = {byte for text in self._matcher.texts for byte in (text[0], text[-1])}
        if not ends <= _PUNCTUATION:
            return None
        tokens = tf.constant(self._matcher.texts)
        rows = [row.numpy() for row in self._words.tokenize(self._normalizer.normalize(tokens))]
        return _Openings(np.unique([row[0] for row in rows]).astype(np.int32), padded(rows))


class _Openings(NamedTuple):
    """The pieces into which special tokens in a text are split at first.

    Fields:
        first: int32 [k], the first pieces of all tokens.
        patterns: int32 [tokens, longest], all pieces of each, padded with -1.
    """

    first: np.ndarray
    patterns: np.ndarray


# Building the kernels.


def beyond_model(pieces: Sequence[str], special: SpecialTokens) -> list[str]:
    """Returns the tokens that were added to a vocabulary, which are at its end.

    The reference does not know them as pieces of words, so that only text as it is has them:
    "Covid" does not become an added "covid" when it is lower-cased.
    """
    added = {*special.additional_special_tokens, *special.added_tokens}
    return list(itertools.takewhile(added.__contains__, reversed(pieces)))


def _codepoints(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _kernels(
    pieces: list[str], unk_id: int, rules: Rules, max_chars: int, whole: frozenset[str]
) -> tuple[tf_text.FastBertNormalizer, tf_text.FastWordpieceTokenizer]:
    """Returns the kernels that normalize text and split its words into pieces.

    Args:
        whole: the pieces that no word begins with, as they are only found before it is split.
    """
    changed, removed, isolated = rules.changed(), rules.removed(), rules.isolated()
    produced = ~removed
    produced[list(changed)] = False
    produced[_codepoints("".join(set("".join(changed.values()))))] = True
    produced[ord(" ")] = False

    # Pieces that normalized text cannot contain keep their ids, but never match.
    inner = np.array([len(piece) > 2 and piece.startswith(_PREFIX) for piece in pieces])
    bodies = [piece[2:] if cut else piece for piece, cut in zip(pieces, inner, strict=True)]
    letters = _codepoints("".join(bodies))
    lengths = np.array([len(body) for body in bodies])
    begins = np.cumsum(lengths) - lengths
    reachable = np.logical_and.reduceat(produced[letters], begins)
    reachable &= ~np.logical_or.reduceat(isolated[letters], begins) | ((lengths == 1) & ~inner)
    known = np.zeros(CODEPOINTS, bool)
    known[letters[np.repeat(reachable, lengths)]] = True

    substitutes = _substitutes(known & ~isolated)
    words = []
    for index, body in enumerate(bodies):
        if not reachable[index] or pieces[index] in whole:
            words.append(f"{_PLACEHOLDER}{index:x}")
            continue
        body = body.translate(substitutes)
        size = len(body.encode("utf-8"))
        if size > _MAX_PIECE_BYTES:
            raise ValueError(
                f"piece {index}, {pieces[index][:20]!r}…, takes {size} bytes, "
                f"expected at most {_MAX_PIECE_BYTES}."
            )
        words.append(_PREFIX + body if inner[index] else body)

    def written(char: str) -> str:
        return substitutes.get(ord(char), char) if known[ord(char)] else _UNKNOWN_CHARACTER

    characters = CharacterMap(_UNKNOWN_CHARACTER)
    separate_words(
        characters,
        unknown=_UNKNOWN_CHARACTER,
        isolated=isolated,
        removed=removed,
        changed=changed,
        known=map(chr, np.flatnonzero(known).tolist()),
        written=written,
    )
    return characters.kernel(), fast_wordpiece(words, 4 * max_chars, _PREFIX, words[unk_id])


def _substitutes(letters: np.ndarray) -> dict[int, str]:
    """Returns private-use characters for letters at which the kernel could split words.

    Where no piece of the vocabulary continues, the kernel splits at white space, punctuation and
    Chinese characters of its own Unicode tables. Some of these are ordinary letters here, for
    example Chinese characters without ``split_chinese``.
    """
    free = (chr(codepoint) for codepoint in range(0xE000, 0xF900) if not letters[codepoint])
    spare = (chr(codepoint) for codepoint in range(0xF0000, 0xFFFFE) if not letters[codepoint])
    result: dict[int, str] = {}
    for codepoint in np.flatnonzero(letters).tolist():
        char = chr(codepoint)
        if breaks_words(char) or unicodedata.category(char)[0] not in "LMNS":
            result[codepoint] = next(free, "") or next(spare)
    return result
