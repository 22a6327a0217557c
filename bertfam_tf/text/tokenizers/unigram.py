"""The unigram models of ``tokenizer.json`` as a TensorFlow graph: XLM-R, ALBERT, XLNet, DeBERTa.

Kudo, "Subword Regularization" (arXiv 1804.10959). Equal to Hugging Face's ``tokenizers``, which
differs from SentencePiece and from ``SentencePieceTokenizer`` in a few cases: it normalizes whole
graphemes, splits texts into words first, and adds scores in float64.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.files import JSON_FILE, write_json
from bertfam_tf.text.kernels.charsmap import Rules
from bertfam_tf.text.kernels.graph import (
    Pieces,
    flags,
    following,
    previous,
    repeats,
    substrings,
    unlikely,
)
from bertfam_tf.text.kernels.graphemes import Graphemes
from bertfam_tf.text.kernels.normalization import (
    SPACES,
    Characters,
    Lookup,
    Pairs,
    Reader,
    Spaces,
    Stripped,
    chain,
    original_offsets,
    utf8_widths,
)
from bertfam_tf.text.kernels.normalization_forms import Normalized, accents
from bertfam_tf.text.kernels.unicode import CODEPOINTS, classes, mask_of
from bertfam_tf.text.kernels.unigram import Unigram
from bertfam_tf.text.special_tokens import (
    A_THEN_B,
    NO_SPECIAL_TOKENS,
    SPECIAL_TOKEN_FIELDS,
    Layout,
    SpecialTokens,
)
from bertfam_tf.text.tokenizer_json import Pipeline, read
from bertfam_tf.text.tokenizer_json_tokens import added_section
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.matching import (
    SpecialTokenMatcher,
    matcher,
    normalized_tokens_in_text,
)

_SPACE = "▁"
_STEPS = "Lowercase, NFC, NFD, NFKC, NFKD, Precompiled, Replace, Strip, StripAccents"
_SPACES_OF = {
    r" {2,}": ((0x20,), ()),
    r" +": ((0x20,), (0x20,)),
    r"\s+": (SPACES, SPACES),
    r"\s{2,}|[\n\r\t]": (SPACES, (0x0A, 0x0D, 0x09)),
}
# A class of characters, as ``json_writer`` writes it.
_SPAN = r"\\x\{([0-9A-F]{1,6})\}-\\x\{([0-9A-F]{1,6})\}"
_CLASS = re.compile(rf"\[({_SPAN})+\]")
_MAX_REPLACED = 16 * CODEPOINTS


class UnigramTokenizer(Tokenizer):
    """A unigram model in a ``tokenizer.json``: converts text to piece ids and byte offsets.

    Ids equal Hugging Face's ``tokenizers`` without the special tokens around them. It is not
    available in TFLite.

    A piece covers the bytes of the characters that it comes from, as in the reference, except after
    a character that the rules of a SentencePiece model remove, if that begins the text or follows a
    character that became several: the reference's offsets are too small by one from there on.

    ``detokenize`` joins pieces, with a space for each "▁" that is not in the first piece.

    Files: ``tokenizer.json``.

    Args:
        vocabulary: the pieces in the order of their ids.
        scores: the log-probability of each piece; pieces beyond the last score are only found as
            special or added tokens.
        normalizer: the steps of the normalizer, as in the file.
        split_spaces: whether white space separates words, otherwise a space is "▁".
        prefix: whether "▁" is put before each word, or each text, that does not begin with it.
        split_words: whether each "▁" begins a word; pieces do not cross words.
        byte_fallback: whether unknown characters become the pieces of their bytes, as in "<0xE2>".
        special_tokens: the special tokens; ``unk_token`` must have a score.
        layout: the positions of the special tokens.

    Raises:
        ValueError: if the vocabulary is invalid, scores are missing, or a step is not supported; or
            as ``Tokenizer``.
    """

    kind = "unigram"
    _preset_kind = "sentencepiece"
    _any_special_token = True

    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float],
        *,
        normalizer: Sequence[Mapping[str, Any]] = (),
        split_spaces: bool = False,
        prefix: bool = True,
        split_words: bool = True,
        byte_fallback: bool = False,
        special_tokens: SpecialTokens = NO_SPECIAL_TOKENS,
        layout: Layout = A_THEN_B,
    ) -> None:
        options: dict[str, Any] = {
            "scores": tuple(map(float, scores)),
            "normalizer": [dict(step) for step in normalizer],
            "split_spaces": split_spaces,
            "prefix": prefix,
            "split_words": split_words,
            "byte_fallback": byte_fallback,
        }
        super().__init__(vocabulary, special_tokens, layout, options, name="unigram_tokenizer")
        if not 0 <= self.unk_id < len(scores) <= self.vocab_size:
            raise ValueError(
                f"found {len(scores)} scores for {self.vocab_size} pieces with the unknown piece "
                f"{self.unk_id}, expected at most one for each piece, and one for that."
            )
        self._bytes = None
        if byte_fallback:
            names = [f"<0x{byte:02X}>" for byte in range(256)]
            missing = [name for name in names if name not in self._state.ids]
            if missing:
                raise ValueError(f"byte_fallback needs the piece {missing[0]!r}, expected all 256.")
            self._bytes = np.array([self._state.ids[name] for name in names], np.int32)
        self._steps = _Steps(chain(_all_steps(normalizer)))
        self._is_space = Lookup(mask_of(SPACES))
        with tf.init_scope():
            self._read = Reader()
            self._model = Unigram(self._state.pieces[: len(scores)], scores, self.unk_id)
            self._shown = tf.constant([piece.replace(_SPACE, " ") for piece in self._state.pieces])
            self._shown_first = tf.constant(
                [piece.replace(_SPACE, "" if prefix else " ") for piece in self._state.pieces]
            )
            self._normalized_matcher = self._make_normalized_matcher(
                normalized_tokens_in_text(special_tokens)
            )

    def _make_normalized_matcher(self, tokens: Sequence[str]) -> SpecialTokenMatcher | None:
        """Returns the matcher of tokens that are looked for in normalized texts."""
        exact = matcher(tokens, self.special_tokens, self._state.ids, anything=True)
        if exact is None:
            return None
        forms = self._normalized(tf.constant(tokens)).strings().numpy().tolist()
        if b"" in forms:
            token = tokens[forms.index(b"")]
            raise ValueError(f"nothing is left of the added token {token!r} in normalized text.")
        return SpecialTokenMatcher(exact.ids, forms, exact.lstrip)

    # The graph.

    def _normalized(self, texts: tf.Tensor) -> Characters:
        return self._steps(self._read(texts))

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        text = self._normalized(texts)
        token_matcher = self._normalized_matcher
        if token_matcher is None:
            return self._words(text, offsets)
        may = token_matcher.may_be_in(text.strings())
        pieces = self._words(text.keep(tf.fill(tf.shape(text.codes), ~may)), offsets)

        def with_tokens(*tensors: tf.Tensor) -> list[tf.Tensor]:
            text = Characters(*tensors[-4:])

            def encode(texts: tf.Tensor) -> Pieces:
                return self._words(self._read(texts), offsets)

            pieces = token_matcher.encode_around(text.strings(), encode, trim_offsets=False)
            if offsets:
                starts, ends = original_offsets(pieces, text)
                pieces = pieces._replace(starts=starts, ends=ends)
            return pieces.tensors()

        return Pieces.from_tensors(unlikely(may, with_tokens, pieces.tensors(), list(text)))

    def _words(self, text: Characters, offsets: bool) -> Pieces:
        """Splits normalized texts into words, and these into pieces."""
        options = self._state.options
        opens = text.opens_row()
        if options["split_spaces"]:
            blank = self._is_space(text.codes)
            begins = opens | previous(blank, True)
            text, opens = text.keep(~blank), tf.boolean_mask(begins, ~blank)
        else:
            text = text._replace(codes=tf.where(text.codes == 0x20, ord(_SPACE), text.codes))
        if options["prefix"]:
            added = opens & (text.codes != ord(_SPACE))
            which, inside, splits = repeats(tf.where(added, 2, 1))
            codes, starts, ends, before = (tf.gather(part, which) for part in (*text[:3], added))
            codes = tf.where((inside == 0) & before, ord(_SPACE), codes)
            text = Characters(codes, starts, ends, tf.gather(splits, text.splits))
            opens = tf.gather(opens, which) & (inside == 0)
        if options["split_words"]:
            opens |= text.codes == ord(_SPACE)

        # Each distinct word is segmented once.
        size = tf.size(text.codes, tf.int64)
        begin = tf.where(opens)[:, 0]
        end = following(begin, size)
        widths = tf.cast(utf8_widths(text.codes), tf.int64)
        bytes_before = tf.concat([[0], tf.cumsum(widths)], 0)
        whole = tf.strings.unicode_encode(text.codes, "UTF-8")
        words = substrings(whole, tf.gather(bytes_before, begin), tf.gather(bytes_before, end))
        distinct, which = tf.unique(words, tf.int64)
        codes = tf.strings.unicode_decode(distinct, "UTF-8")
        lengths = tf.cast(codes.row_lengths(), tf.int64)
        segments = self._model(tf.strings.reduce_join(distinct), utf8_widths(codes.values), lengths)
        ids, first, last, word = self._joined(segments, codes.values)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(word), word, tf.size(distinct, tf.int64))
        rows = tf.RaggedTensor.from_row_lengths(tf.range(tf.size(ids)), counts, validate=False)
        pieces = tf.gather(rows, which)
        of_word = tf.cast(pieces.row_splits, tf.int64)
        # A text has the pieces of its words.
        words_before = tf.searchsorted(begin, text.splits)
        splits = tf.gather(of_word, words_before)
        piece = pieces.values
        if not offsets:
            return Pieces(tf.gather(ids, piece), None, None, splits)
        base = tf.gather(begin, pieces.value_rowids())
        base -= tf.gather(tf.cast(codes.row_splits, tf.int64), tf.gather(word, piece))
        starts = tf.gather(text.starts, base + tf.gather(first, piece))
        ends = tf.gather(text.ends, base + tf.gather(last, piece))
        return Pieces(tf.gather(ids, piece), starts, ends, splits)

    def _joined(self, segments: Any, codes: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Joins adjacent unknown pieces, or replaces them by bytes.

        Returns:
            The ids, first and last characters, and words of pieces.
        """
        unknown = segments.ids == self.unk_id
        before = (previous(unknown, False), previous(segments.word, -1))
        opens = ~(unknown & before[0] & (segments.word == before[1]))
        closes = following(opens, True)
        first, last = tf.boolean_mask(segments.first, opens), tf.boolean_mask(segments.last, closes)
        ids, word = (tf.boolean_mask(part, opens) for part in (segments.ids, segments.word))
        if self._bytes is None:
            return ids, first, last, word
        # The name of the unknown piece itself, alone, is known.
        is_name = tf.boolean_mask(segments.known & closes, opens)
        spelled = (ids == self.unk_id) & ~is_name
        before = tf.concat([[0], tf.cumsum(utf8_widths(codes))], 0)
        start, end = tf.gather(before, first), tf.gather(before, last + 1)
        which, inside, _ = repeats(tf.where(spelled, end - start, 1))
        data = tf.io.decode_raw(tf.strings.unicode_encode(codes, "UTF-8"), tf.uint8)
        data = tf.concat([tf.cast(data, tf.int32), [0]], 0)
        byte = tf.gather(data, tf.gather(start, which) + tf.cast(inside, start.dtype))
        ids, first, last, word, spelled = (
            tf.gather(part, which) for part in (ids, first, last, word, spelled)
        )
        return tf.where(spelled, tf.gather(self._bytes, byte), ids), first, last, word

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        first = flags(ids.row_splits, tf.size(ids.values, ids.row_splits.dtype))
        shown = tf.where(
            first, tf.gather(self._shown_first, ids.values), tf.gather(self._shown, ids.values)
        )
        return tf.strings.reduce_join(ids.with_values(shown), axis=-1)

    # Files.

    def sections(self) -> dict[str, Any]:
        """Returns the sections of a ``tokenizer.json`` except added tokens and post-processor."""
        options = self._state.options
        metaspace = {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "always" if options["prefix"] else "never",
            "split": options["split_words"],
        }
        steps = [{"type": "WhitespaceSplit"}] * options["split_spaces"] + [metaspace]
        pieces = self.vocabulary[: len(options["scores"])]
        return {
            "normalizer": {"type": "Sequence", "normalizers": options["normalizer"]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": metaspace,
            "model": {
                "type": "Unigram",
                "unk_id": self.unk_id,
                "vocab": [list(pair) for pair in zip(pieces, options["scores"], strict=True)],
                "byte_fallback": options["byte_fallback"],
            },
        }

    def _write_files(self, directory: Path) -> dict[str, Any]:
        added = added_section(self.special_tokens, self._state.ids)
        content = {"version": "1.0", "added_tokens": added, **self.sections()}
        write_json(directory / JSON_FILE, content)
        return {}

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        file = folder / JSON_FILE
        if not file.is_file():
            raise FileNotFoundError(f"{folder}: found no {JSON_FILE}, expected it.")
        return cls._of_pipeline(read(file, "Unigram")), file

    @staticmethod
    def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
        """Returns the arguments that a tokenizer.json defines."""
        if pipeline.added.unk_token is None:
            pipeline.refuse("unk_id", pipeline.model["unk_id"], "the id of a piece")
        kinds = [step.kind for step in pipeline.splitters]
        if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
            expected = "'Metaspace', or 'WhitespaceSplit' and 'Metaspace'"
            pipeline.refuse("pre-tokenizer", kinds, expected)
        space = pipeline.splitters[-1]
        pipeline.expect("replacement of spaces", space["replacement"], _SPACE)
        scheme = space["prepend_scheme"]
        if scheme is None:
            scheme = "never" if space["add_prefix_space"] is False else "always"
        pipeline.expect("prepend_scheme", scheme, "always", "never")
        steps = pipeline.normalizers
        return {
            **pipeline.arguments(),
            "scores": pipeline.scores,
            "normalizer": [{"type": step.kind, **step.options} for step in steps],
            "split_spaces": len(kinds) > 1,
            "prefix": scheme == "always",
            "split_words": space["split"],
            "byte_fallback": pipeline.model["byte_fallback"],
        }

    @classmethod
    def _published(
        cls, options: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        known = SPECIAL_TOKEN_FIELDS | {"layout"}
        return {name: value for name, value in options.items() if name in known}


class _Steps(tf.Module):
    """The steps of a normalizer; those with tables are tracked."""

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__(name="steps")
        self._tables = [step for step in steps if isinstance(step, tf.Module)]
        self._steps = tuple(steps)

    def __call__(self, text: Characters) -> Characters:
        for step in self._steps:
            text = step(text)
        return text


def _all_steps(normalizer: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the steps of a normalizer as arguments of ``chain``.

    Raises:
        ValueError: if one is not supported, or they take too long to chain.
    """
    steps: list[Any] = []
    replaced = 0
    for step in normalizer:
        parts = _steps_of(step)
        steps += parts
        replaced += sum(len(part) for part in parts if isinstance(part, Mapping))
        # Most of Unicode is a class of 20 bytes, and each later step is applied to all of it.
        if replaced * len(normalizer) > _MAX_REPLACED:
            raise ValueError(
                f"the {len(normalizer)} steps of the normalizer replace {replaced} characters, "
                f"expected at most {_MAX_REPLACED} for the product of both."
            )
    return steps


def _steps_of(step: Mapping[str, Any]) -> Sequence[Any]:
    """Returns a step of a normalizer as arguments of ``chain``.

    Raises:
        ValueError: if it is not supported.
    """
    kind = step.get("type")
    if kind == "Lowercase":
        return [dict(classes().lower)]
    if kind == "StripAccents":
        return [accents()]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return [Normalized(kind)]
    if kind == "Strip":
        return [Stripped(step["strip_left"], step["strip_right"])]
    if kind == "Precompiled":
        return _precompiled(step["precompiled_charsmap"])
    if kind == "Replace":
        return [_replacement(step["pattern"], step["content"])]
    raise ValueError(f"the normalizer is {truncated_repr(kind)}, expected one of {_STEPS}.")


def _precompiled(text: str | None) -> Sequence[Any]:
    try:
        data = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"precompiled_charsmap is not base64 ({error}).") from error
    rules = Rules(data)
    rules.check()
    return [Graphemes(rules), {ord(char): text for char, text in rules.singles().items()}]


def _replacement(pattern: Any, content: str) -> Any:
    if not isinstance(pattern, Mapping) or len(pattern) != 1:
        raise ValueError(f"the pattern {truncated_repr(pattern)} is neither String nor Regex.")
    ((kind, text),) = pattern.items()
    if kind == "String" and isinstance(text, str) and len(text) == 1:
        return {ord(text): content}
    if kind == "Regex" and isinstance(text, str) and _CLASS.fullmatch(text):
        spans = [range(int(a, 16), int(b, 16) + 1) for a, b in re.findall(_SPAN, text)]
        # Overlapping spans could take more time than all characters.
        if sum(map(len, spans)) <= CODEPOINTS and max(span.stop for span in spans) <= CODEPOINTS:
            return dict.fromkeys(itertools.chain.from_iterable(spans), content)
    if isinstance(text, str) and len(content) == 1:
        if kind == "String" and len(text) == 2 and text[0] == text[1]:
            return Pairs(text[0], content)
        if kind == "Regex" and text in _SPACES_OF:
            return Spaces(*_SPACES_OF[text], content)
    raise ValueError(
        f"the replacement of {truncated_repr(text)} by {truncated_repr(content)} is not one of a "
        "character, of a class of them, of two equal ones, or of runs of spaces."
    )
