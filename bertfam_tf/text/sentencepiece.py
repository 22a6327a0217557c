"""SentencePiece as a TensorFlow graph: the tokenizer of ALBERT, XLNet and XLM-R.

Kudo and Richardson, "SentencePiece" (2018); Kudo, "Subword Regularization" (2018) for the unigram
model and `sample`.  The kernel FastSentencepiece of tensorflow-text finds the pieces.  The Python
code that the published tokenizers run before it (quotation marks, accents, case) and the rules
inside the model file become one set of rules, which the kernel applies in the same pass; where
they cannot (see `_normalization.compose`), FastBertNormalize does the Python code's part first.
"""

from __future__ import annotations

import copy
import itertools
import os
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from flatbuffers import encode, packer
from flatbuffers.table import Table
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf import files, parsing
from bertfam_tf.text import _models, _normalization
from bertfam_tf.text._files import (
    CLASS_OF_MODEL,
    CONFIG_FILE,
    ROLES,
    naming_files,
    read_json,
    read_tokenizer_config,
    stated_special_tokens,
    write_json,
)
from bertfam_tf.text._graph import Pieces, flags, original_spans, row_of_each, unlikely
from bertfam_tf.text._kernels import sentencepiece
from bertfam_tf.text._normalization import CODEPOINTS, Rules
from bertfam_tf.text.packing import CLS_A_SEP, CLS_A_SEP_SEP, Layout
from bertfam_tf.text.tokenizer import TextLike, Tokenizer, _over_any_rank, _SpecialTokens

_SPACE = "▁"
_UNKNOWN_TEXT = " ⁇ "
_UNKNOWN_PENALTY = np.float32(10)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_FOUND = (_NORMAL, _USER_DEFINED)
_FAIRSEQ_HEAD = ("<s>", "<pad>", "</s>", "<unk>")
_FAIRSEQ_TAIL = "<mask>"
_MODEL_FILES = ("spiece.model", "sentencepiece.bpe.model", "30k-clean.model")
# Where the kernel's model has the score of unknown characters, in its table of fields.
_PENALTY_SLOT = 4 + 2 * 4
# In the text that a speller writes.
_ONE_UNKNOWN, _APOSTROPHE, _GRAVE = 1, 2, 3
# In the model of characters.
_SPACE_CHARACTER = 1
_WEIGHTS_FILE = "config.json"
_FAIRSEQ_FILE = "sentencepiece.bpe.model"

_MAX_LETTERS = 10

# What the published classes do around SentencePiece and do not write into their files.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "AlbertTokenizer": {
        "lower_case": True, "strip_accents": True, "unify_spaces": True, "unify_quotes": True,
        "split_digit_comma": True, "fairseq_ids": False,
        "unk_token": "<unk>", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "<pad>",
        "mask_token": "[MASK]", "bos_token": "[CLS]", "eos_token": "[SEP]",
        "lstrip_tokens": ("[MASK]",), "layout": CLS_A_SEP,
    },
    "XLNetTokenizer": {
        "lower_case": False, "strip_accents": True, "unify_spaces": True, "unify_quotes": True,
        "split_digit_comma": True, "fairseq_ids": False,
        "unk_token": "<unk>", "cls_token": "<cls>", "sep_token": "<sep>", "pad_token": "<pad>",
        "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>",
        "additional_special_tokens": ("<eop>", "<eod>"), "lstrip_tokens": ("<mask>",),
        "layout": Layout(
            single=("a", "sep", "cls"), pair=("a", "sep", "b", "sep", "cls"),
            single_segments=(0, 0, 2), pair_segments=(0, 0, 1, 1, 2),
            pad_left=True, pad_segment=3,
        ),
    },
    "XLMRobertaTokenizer": {
        "lower_case": False, "strip_accents": False, "unify_spaces": False, "unify_quotes": False,
        "split_digit_comma": False, "fairseq_ids": True,
        "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
        "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>",
        "lstrip_tokens": ("<mask>",), "layout": CLS_A_SEP_SEP,
    },
}  # fmt: skip
_TREATMENT = ("lower_case", "strip_accents", "unify_spaces", "unify_quotes", "split_digit_comma",
              "fairseq_ids")  # fmt: skip


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece's unigram model: text in, piece ids and byte offsets out, all in the graph.

    Without options the ids are SentencePiece's own.  With those of `PRESETS` they are the ids of
    the tokenizers written in Python that ALBERT, XLNet and XLM-R were published with, without
    special tokens around them.

    Where a text can be split in two equally good ways (99|9, 9|99), the rounding of sums decides,
    as it does in SentencePiece; releases of that library differ from each other there.

    Offsets leave out white space: "▁world" covers "world".  A piece "▁" alone covers the first
    character of the word that it opens, as it does in Hugging Face's fast tokenizers, whose
    offsets these are but for characters that become several (½) or nothing.  The pieces that
    `split_digit_comma` cuts a piece into each cover all of it if one of its characters was altered.

    `detokenize` gives what SentencePiece decodes: the normalized text, where control symbols are
    nothing and unknown pieces " ⁇ ".  It is the text as given if the model normalizes nothing.

    Args:
        model: the content of a SentencePiece model file, or its path.
        lower_case: whether to lower-case.
        strip_accents: whether to decompose characters (NFKD) and drop combining ones.
        unify_spaces: whether all that Python counts as white space is a space; else the model's
            rules decide alone.
        unify_quotes: whether `` and '' become ".
        split_digit_comma: whether a comma is cut off from a digit before it, and the rest of the
            piece tokenized again.
        fairseq_ids: whether ids are those of fairseq: <s>, <pad>, </s>, <unk>, the model's pieces
            but the first three, <mask>.
        special_tokens_in_text: as for WordPieceTokenizer.  With `lower_case` a special token in
            small letters is found in capitals too, as the reference finds it.
        unk_token: the piece for unknown characters; None means the model's.
        cls_token, sep_token, pad_token, mask_token, bos_token, eos_token: the pieces for these
            parts, or None.
        additional_special_tokens: further pieces of the vocabulary to be treated as special.
        lstrip_tokens: special tokens that swallow the white space before them.
        layout: where the special tokens stand around one text, and around two.

    Raises:
        FileNotFoundError: the model is a path and there is no such file.
        ValueError: the model is damaged or is of a kind that is not supported (BPE, byte fallback,
            white space at the ends of words), or a special token cannot be found in text (see
            WordPieceTokenizer).
    """

    has_tflite_kernels = True

    def __init__(
        self,
        model: bytes | str | os.PathLike[str],
        *,
        lower_case: bool = False,
        strip_accents: bool = False,
        unify_spaces: bool = False,
        unify_quotes: bool = False,
        split_digit_comma: bool = False,
        fairseq_ids: bool = False,
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
        layout: Layout = CLS_A_SEP,
    ) -> None:
        source = "the model"
        if isinstance(model, str | os.PathLike):
            source = os.fspath(model)
            model = parsing.read_bytes(Path(model))
        proto = _parse(model, source)
        pieces = [piece.piece for piece in proto.pieces]
        kinds = [piece.type for piece in proto.pieces]
        unk = kinds.index(_UNKNOWN)
        if unk_token is None:
            unk_token = pieces[unk]
        ids = np.arange(len(pieces), dtype=np.int32)
        if fairseq_ids:
            pieces, ids = _as_fairseq(pieces, kinds, source)
            kinds = [_CONTROL] * 3 + [_UNKNOWN, *kinds[3:], _CONTROL]
        options: dict[str, Any] = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "unify_spaces": unify_spaces,
            "unify_quotes": unify_quotes,
            "split_digit_comma": split_digit_comma,
            "fairseq_ids": fairseq_ids,
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
        self._model = _Bytes(bytes(model))
        self._kinds = _Bytes(bytes(kinds))
        super().__init__(pieces, options, name="sentence_piece_tokenizer", source=source)
        marks: set[str] = set()
        if self._special is not None:
            marks = {text[:1].decode() for text in self._special.texts}
        kernel = _build_kernel(
            proto,
            _normalization.preparation(unify_spaces, strip_accents, lower_case),
            unify_quotes,
            marks,
        )
        self._adapted = _Bytes(kernel.model)
        ids_behind = np.full(kernel.unknown_pieces, ids[unk], np.int32)
        self._byte_counts = kernel.byte_counts
        self._first_bytes = kernel.first_bytes
        self._character_counts = kernel.character_counts
        self._blank = kernel.blank
        self._may_end_in_space = not proto.normalizer_spec.remove_extra_whitespaces
        marks_of_quotes = zip((_APOSTROPHE, _GRAVE), kernel.strange_quotes, strict=False)
        self._strange_marks = tuple(
            mark for mark, strange in marks_of_quotes if unify_quotes and strange
        )
        self._pair_is_unknown = kernel.strange_quotes[2]
        with tf.init_scope():
            self._surface = _Surface(pieces, kinds, proto.normalizer_spec)
            self._kernel = _fast_kernel(kernel.model, kernel.unknown_score)
            self._normalizer = (
                None
                if kernel.normalizer is None
                else tf_text.FastBertNormalizer(model_buffer=tf.constant(kernel.normalizer))
            )
            self._speller = tf_text.FastBertNormalizer(model_buffer=tf.constant(kernel.speller))
            self._to_id = None
            if fairseq_ids:
                self._to_id = tf.constant(np.concatenate([ids, ids_behind]))
        self._splits_unknown = bool(kernel.unknown_pieces)
        self._sampler: Any = None
        self._characters: Any = None
        self._splitting: _Splitting | None = None
        self._odd: np.ndarray | None = None
        if split_digit_comma:
            self._splitting = self._describe_splitting()
        self._odd = self._describe_odd(ids, marks)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make this tokenizer again, the model's bytes among them."""
        return {"model": self._model.content} | self._table.options

    @tf.autograph.experimental.do_not_convert
    def sample(
        self, text: TextLike, nbest_size: int = -1, alpha: float = 0.1
    ) -> tf.Tensor | tf.RaggedTensor:
        """Splits text into piece ids at random: subword regularization, for training.

        Every call gives others, so this does not belong into a model that is served.  Special
        tokens in the text are split like any text.

        Args:
            text: as for `tokenize`.
            nbest_size: how many of the best ways to split each text to choose from; -1 means all.
            alpha: how much a better way is preferred; at 0 all are alike.

        Returns:
            int32 ids, in the shape that `tokenize` returns.

        Raises:
            ValueError, TypeError: as `tokenize`.
        """

        def function(texts: tf.Tensor) -> tuple[tf.RaggedTensor]:
            kernel = copy.copy(self._sampling_kernel())
            kernel.nbest_size, kernel.alpha = nbest_size, alpha
            if self._normalizer is not None:
                texts = self._normalizer.normalize(texts)
            rows = kernel.tokenize(texts)
            pieces = Pieces(rows.values, None, None, tf.cast(rows.row_splits, tf.int64))
            pieces = self._tidied(self._with_ids(pieces))
            return (pieces.ragged(pieces.ids),)

        return _over_any_rank(text, function)[0]

    # Files.

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the model file and `tokenizer_config.json`, as Hugging Face's classes do.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        options = self._table.options
        name = _FAIRSEQ_FILE if options["fairseq_ids"] else _MODEL_FILES[0]
        files.write(path / name, self._model.content)
        treatment = {option: options[option] for option in _TREATMENT}
        names = [name for name, preset in PRESETS.items() if treatment.items() <= preset.items()]
        config = {
            "tokenizer_class": names[0] if names else type(self).__name__,
            "do_lower_case": options["lower_case"],
            "keep_accents": not options["strip_accents"],
            "remove_space": options["unify_spaces"],
            **treatment,
            **self._special_config(),
        }
        absent = {f"{role}_token": None for role in ROLES}
        write_json(path / CONFIG_FILE, absent | config)

    @classmethod
    @naming_files
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        preset: str | None = None,
        **options: Any,
    ) -> SentencePieceTokenizer:
        """Reads a tokenizer from a directory.

        Which published class the files belong to, and with it what `PRESETS` lists, is said by the
        first of these: `preset`, `tokenizer_config.json`, `config.json`, the model's special
        tokens.  Each option is taken from the first that states it: the argument,
        `tokenizer_config.json`, the preset, the constructor's default.

        Args:
            directory: the directory, or one of the tokenizer's files in it.
            preset: a key of `PRESETS`; "" means SentencePiece alone.
            **options: keyword arguments of the constructor.

        Raises:
            FileNotFoundError: there is no model file.
            ValueError: there are several, one of the files is damaged, or nothing says what
                class they belong to.
        """
        path = Path(directory)
        model = path if path.suffix == ".model" else None
        if path.is_file():
            path = path.parent
        model = model or _find_model(path)
        stated_file = path / CONFIG_FILE
        config = read_tokenizer_config(stated_file) if stated_file.is_file() else {}
        content = parsing.read_bytes(model)
        if preset is None:
            preset = _find_preset(path, config, _parse(content, str(model)))
        if preset and preset not in PRESETS:
            raise ValueError(f"preset {preset!r}, expected one of {', '.join(PRESETS)}, or ''")
        stated = dict(PRESETS[preset]) if preset else {}
        stated |= _read_config(config, path / CONFIG_FILE)
        try:
            return cls(content, **(stated | options))
        except ValueError as error:
            raise ValueError(f"{model}: {error}") from error

    # The graph.

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        # One look at the pieces tells whether there is more to do than the kernel does.
        found = self._find(texts, offsets)
        pieces = self._with_ids(found)
        if self._odd is not None:

            def rest(*tensors: tf.Tensor) -> list[tf.Tensor]:
                return _as_list(self._rest(_as_pieces(tensors[:-1]), tensors[-1], offsets))

            odd = tf.reduce_any(tf.gather(self._odd, found.ids))
            pieces = _as_pieces(unlikely(odd, rest, _as_list(pieces), [texts]))
        if not offsets:
            return (pieces.ragged(pieces.ids),)
        return tuple(pieces.ragged(part) for part in (pieces.ids, pieces.starts, pieces.ends))

    def _rest(self, pieces: Pieces, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Returns the pieces after the steps that few texts need."""
        pieces = self._tidied(pieces)
        if self._special is None:
            return pieces

        def again(*tensors: tf.Tensor) -> list[tf.Tensor]:
            return _as_list(self._encode_around_special_tokens(tensors[-1], offsets))

        found = self._may_hold_special(texts, pieces)
        return _as_pieces(unlikely(found, again, _as_list(pieces), [texts]))

    def _may_hold_special(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        assert self._special is not None
        return tf.reduce_any(self._special.find(self._bytes.split(texts).values)[1])

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        return self._tidied(self._with_ids(self._find(texts, offsets)))

    def _find(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Returns the pieces that the kernel finds, with the kernel's ids."""
        source = None
        prepared = texts
        if self._normalizer is not None and offsets:
            prepared, source = self._normalizer.normalize_with_offsets(texts)
        elif self._normalizer is not None:
            prepared = self._normalizer.normalize(texts)
        rows = self._kernel.tokenize(prepared)
        pieces = Pieces(rows.values, None, None, tf.cast(rows.row_splits, tf.int64))
        if self._blank is not None:
            pieces = self._without_trailing_blanks(pieces)
        return self._located(pieces, texts, prepared, source) if offsets else pieces

    def _with_ids(self, pieces: Pieces) -> Pieces:
        """Turns the kernel's ids into those of the vocabulary, but for ids behind its end."""
        if self._to_id is None:
            return pieces
        return pieces._replace(ids=tf.gather(self._to_id, pieces.ids))

    def _tidied(self, pieces: Pieces) -> Pieces:
        """Joins unknown pieces, and splits those that `split_digit_comma` is about."""
        if self._splits_unknown:
            pieces = self._join_unknown(pieces)
        return pieces if self._splitting is None else self._splitting.apply(pieces)

    def _without_trailing_blanks(self, pieces: Pieces) -> Pieces:
        """Drops what the kernel leaves at the end of a text where "▁" was typed."""
        shown = ~tf.gather(self._blank, pieces.ids)
        count = tf.concat([[0], tf.cumsum(tf.cast(shown, tf.int64))], 0)
        total = tf.gather(tf.gather(count, pieces.splits[1:]), pieces.rows())
        return pieces.keep(count[:-1] < total)

    def _join_unknown(self, pieces: Pieces) -> Pieces:
        """Makes one piece of neighbouring unknown ones, those behind the vocabulary's end too."""
        unknown = (pieces.ids == self.unk_id) | (pieces.ids >= self.vocab_size)
        pieces = pieces._replace(ids=tf.where(unknown, self.unk_id, pieces.ids))
        size = tf.size(pieces.ids, tf.int64)
        opens = ~(unknown & _behind_first(unknown[:-1], size)) | flags(pieces.splits, size)
        joined = pieces.keep(opens)
        if pieces.ends is None:
            return joined
        closes = tf.concat([opens[1:], [True]], 0)[:size]
        return joined._replace(ends=tf.boolean_mask(pieces.ends, closes))

    def _located(
        self, pieces: Pieces, texts: tf.Tensor, prepared: tf.Tensor, source: Any
    ) -> Pieces:
        """Adds the spans of pieces."""
        units = self._byte_units(texts)
        starts, ends = self._spans(pieces, units, self._byte_counts, texts)
        if source is None:
            return pieces._replace(starts=starts, ends=ends)
        # Where a rule for several characters was applied, units and pieces do not match.

        def from_characters(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            units = self._character_units(prepared)
            start, end = self._spans(pieces, units, self._character_counts, prepared)
            rows, raw = pieces.rows(), self._bytes.split(texts)
            behind = tf.gather(tf.cast(tf.strings.length(texts), tf.int32), rows)
            over = start >= tf.gather(tf.cast(tf.strings.length(prepared), tf.int32), rows)
            start = tf.cast(tf.where(over, 0, start), tf.int64)
            # Of what became several characters the kernel counts all but the last as empty.
            end = tf.maximum(tf.cast(tf.where(over, 0, end), tf.int64), start + 1)
            bare = tf.gather(self._character_counts, pieces.ids) == 0
            end = tf.where(bare, start + 1, end)
            start, end = original_spans(raw, source, rows, start, end)
            end = tf.minimum(end, behind)
            return tf.where(over, behind, start), tf.where(over, behind, end)

        apart = ~self._match(pieces, units)
        starts, ends = unlikely(apart, from_characters, [starts, ends], [])
        return pieces._replace(starts=starts, ends=ends)

    def _match(self, pieces: Pieces, units: _Units) -> tf.Tensor:
        """Returns whether each piece begins with the byte of its first unit, and rows end alike."""
        count = tf.gather(self._byte_counts, pieces.ids)
        behind = tf.cumsum(count)
        byte = _gather_padded(tf.gather(units.bytes, units.opening), behind - count)
        same = (byte == tf.gather(self._first_bytes, pieces.ids)) | (count == 0)
        ends = tf.gather(tf.concat([[0], behind], 0), pieces.splits)
        return tf.reduce_all(same) & tf.reduce_all(ends == units.counts_before_rows())

    def _spans(
        self, pieces: Pieces, units: _Units, counts: np.ndarray, texts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns int32 [n], first bytes, and int32 [n], the bytes behind, of pieces that tile
        units; `counts` are the units of each piece."""
        count = tf.gather(counts, pieces.ids)
        behind = tf.cumsum(count)
        first = behind - count
        rows = pieces.rows()
        opening = _gather_padded(units.opening, first)
        # A space alone covers the character behind it, or nothing at the end of a text.
        closing = _gather_padded(units.closing, first + tf.maximum(count, 1) - 1)
        closing = tf.where(count == 0, opening, closing)
        start, _ = units.span(opening, rows)
        _, end = units.span(closing, rows)
        if not self._may_end_in_space:
            return start, end
        lengths = tf.gather(tf.cast(tf.strings.length(texts), tf.int32), rows)
        over = first >= tf.gather(units.counts_before_rows(), rows + 1)
        return tf.where(over, lengths, start), tf.where(over, lengths, end)

    def _byte_units(self, texts: tf.Tensor) -> _Units:
        """Returns the bytes of the normalized texts, neighbouring unknown characters as one."""
        normalized, source = self._speller.normalize_with_offsets(texts)
        spelled = self._bytes.split(normalized)
        data, splits = tf.cast(spelled.values, tf.int32), spelled.row_splits
        raw = self._bytes.split(texts)

        def span(at: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # Each row of offsets has one more, for the end.
            place = tf.cast(at, tf.int64) + rows
            start = tf.cast(_gather_padded(source.values, place), tf.int32)
            following = tf.cast(_gather_padded(source.values, place + 1), tf.int32)
            place = tf.gather(raw.row_splits, rows) + tf.cast(start, tf.int64)
            byte = tf.cast(_gather_padded(raw.values, place), tf.int32)
            wide = [tf.cast(byte >= lead, tf.int32) for lead in (0xC2, 0xE0, 0xF0)]
            end = start + 1 + wide[0] + wide[1] + wide[2]
            # The first of bytes that are no character may promise more than there are.
            cut = (following > start) & (_gather_padded(data, at) != byte)
            return start, tf.where(cut, tf.minimum(end, following), end)

        seen = data != ord(" ")
        opening = tf.where(seen)[:, 0]

        def grouped(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            goes_on = self._bytes_that_go_on(data, source, splits)
            first = seen & ~goes_on
            opening = tf.where(first)[:, 0]
            count = tf.cumsum(tf.cast(goes_on, tf.int64))
            before = tf.gather(count, opening)
            after = tf.concat([before[1:], count[-1:]], 0)[: tf.size(opening)]
            return first, opening, opening + after - before

        values = unlikely(self._may_go_on(data), grouped, [seen, opening, opening], [])
        seen, opening, closing = values
        return _Units(opening, closing, span, splits, seen, data)

    def _may_go_on(self, data: tf.Tensor) -> tf.Tensor:
        """Returns whether there may be units of several bytes."""
        found = [tf.reduce_any(data == code) for code in (_ONE_UNKNOWN, *self._strange_marks)]
        if self._table.options["unify_quotes"]:
            found.append(tf.reduce_any(_equal_quotes(data)))
        return tf.reduce_any(tf.stack(found))

    def _bytes_that_go_on(
        self, data: tf.Tensor, source: tf.RaggedTensor, splits: tf.Tensor
    ) -> tf.Tensor:
        """Returns which bytes belong to the unit before them, bool [n]."""
        size = tf.size(data, tf.int64)
        opens_row = flags(splits, size)
        unknown = data == _ONE_UNKNOWN
        second = tf.zeros_like(unknown)
        if self._table.options["unify_quotes"]:
            at = tf.gather(source.values, tf.range(size) + row_of_each(splits, size))
            pair = _equal_quotes(data) & (at[1:] == at[:-1] + 1)
            second = _second_of_pairs(_behind_first(pair, size) & ~opens_row)
            paired = second | tf.concat([second[1:], [False]], 0)[:size]
            for mark in self._strange_marks:
                unknown |= (data == mark) & ~paired
            if self._pair_is_unknown:
                unknown |= paired
        return (unknown & _behind_first(unknown[:-1], size) & ~opens_row) | second

    def _character_units(self, prepared: tf.Tensor) -> _Units:
        """Returns the characters of the normalized texts, neighbouring unknown ones as one."""
        if self._characters is None:
            with tf.init_scope():
                model = _character_model(self._adapted.content)
                self._characters = sentencepiece(model)
        ids, starts, ends = self._characters.tokenize_with_offsets(prepared)
        starts, ends = (tf.cast(part.values, tf.int32) for part in (starts, ends))
        seen = ids.values != _SPACE_CHARACTER
        opening = tf.where(seen)[:, 0]

        def span(at: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return _gather_padded(starts, at), _gather_padded(ends, at)

        return _Units(opening, opening, span, tf.cast(ids.row_splits, tf.int64), seen, ids.values)

    def _sampling_kernel(self) -> Any:
        """Returns the slower kernel, which knows sampling; made when first needed."""
        if self._sampler is None:
            with tf.init_scope():
                self._sampler = sentencepiece(self._adapted.content)
        return self._sampler

    def _describe_special_tokens(self) -> _SpecialTokens | None:
        special = super()._describe_special_tokens()
        if special is None or not self._table.options["lower_case"]:
            return special
        ids, texts, lstrip = [], [], []
        for index, text in enumerate(special.texts):
            for spelling in _spellings(text.decode("utf-8")):
                ids.append(special.ids[index])
                texts.append(spelling.encode("utf-8"))
                lstrip.append(special.lstrip[index])
        return _SpecialTokens(np.array(ids, np.int32), texts, np.array(lstrip))

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        surface = self._surface
        values = tf.gather(surface.texts, ids.values)
        # The space that opens the text is none of its own.
        shown = tf.cast(tf.gather(surface.shown, ids.values), tf.int32)
        before = tf.cumsum(shown, exclusive=True)
        first = tf.gather(tf.concat([before, [0]], 0), ids.row_starts())
        leading = before == tf.gather(first, ids.value_rowids())
        drop = leading & tf.gather(surface.opens, ids.values)
        values = tf.where(
            drop,
            tf.strings.substr(values, tf.cast(drop, tf.int32), tf.strings.length(values)),
            values,
        )
        return tf.strings.reduce_join(ids.with_values(values), axis=-1)

    def _describe_odd(self, ids: np.ndarray, marks: set[str]) -> np.ndarray | None:
        """Returns which of the kernel's pieces ask for a closer look; None if none does.

        Args:
            ids: of each of the kernel's pieces that the vocabulary has.
            marks: what special tokens begin with.
        """
        odd = np.ones(len(self._byte_counts), bool)
        odd[: len(ids)] = [
            self._kinds.content[index] in _FOUND and not marks.isdisjoint(self._table.pieces[index])
            for index in ids
        ]
        if self._splitting is not None:
            odd[: len(ids)] |= self._splitting.concerned[ids]
        return odd if odd.any() else None

    def _describe_splitting(self) -> _Splitting:
        """Returns what becomes of the pieces that end in a digit and a comma."""
        pieces, ids = self._table.pieces, self._table.ids
        if "," not in ids:
            raise ValueError("split_digit_comma needs a piece ',', which the vocabulary lacks")
        kinds = self._kinds.content
        concerned = [index for index, piece in enumerate(pieces)
                     if kinds[index] in (_NORMAL, _USER_DEFINED)
                     and len(piece) > 1 and piece[-1] == ","
                     and _normalization.is_digit(piece[-2])]  # fmt: skip
        with tf.init_scope():
            texts = tf.constant([pieces[i][:-1].replace(_SPACE, "") for i in concerned], tf.string)
            rows = self._encode(texts, offsets=False)
            found = rows.ragged(rows.ids).to_list()
        parts: dict[int, list[int]] = {}
        for index, row in zip(concerned, found, strict=True):
            opening = pieces[row[0]]
            if not pieces[index].startswith(_SPACE) and opening.startswith(_SPACE):
                glued = ids.get(opening[1:], self.unk_id)
                row = row[1:] if opening == _SPACE else [glued, *row[1:]]
            parts[index] = [*row, ids[","]]
        return _Splitting(pieces, parts)


class _Bytes:
    """Bytes out of the sight of tf.Module."""

    def __init__(self, content: bytes) -> None:
        self.content = content


class _Surface:
    """What pieces look like in text.

    Args:
        pieces: the vocabulary.
        kinds: what each piece is.
        spec: the model's normalizer_spec.
    """

    def __init__(self, pieces: Sequence[str], kinds: Sequence[int], spec: Any) -> None:
        texts = [
            "" if kind == _CONTROL else _UNKNOWN_TEXT if kind == _UNKNOWN else
            piece.replace(_SPACE, " ")
            for kind, piece in zip(kinds, pieces, strict=True)
        ]  # fmt: skip
        self.texts = tf.constant(texts)
        # Which begin with a space that is dropped at the beginning of the text, and which show
        # something there, so that what follows is no longer the beginning.
        self.opens = np.array([text.startswith(" ") and kind in _FOUND
                               for kind, text in zip(kinds, texts, strict=True)])  # fmt: skip
        if not (spec.add_dummy_prefix or spec.remove_extra_whitespaces):
            self.opens[:] = False
        self.shown = np.array([bool(text[1:] if opens else text)
                               for opens, text in zip(self.opens, texts, strict=True)])  # fmt: skip
        if not spec.remove_extra_whitespaces:
            self.shown |= self.opens


class _Splitting:
    """Pieces that are replaced by several.

    Args:
        pieces: the vocabulary.
        parts: the ids that replace an id.
    """

    def __init__(self, pieces: Sequence[str], parts: Mapping[int, Sequence[int]]) -> None:
        self.concerned = np.zeros(len(pieces), bool)
        self.concerned[list(parts)] = True
        rows = [parts.get(index, (index,)) for index in range(len(pieces))]
        lengths = np.array([len(piece.replace(_SPACE, "").encode("utf-8")) for piece in pieces])
        self._counts = np.array(list(map(len, rows)), np.int64)
        self._begins = np.cumsum(self._counts) - self._counts
        self._ids = np.concatenate(rows).astype(np.int32)
        self._lengths = lengths.astype(np.int32)
        after = np.cumsum(self._lengths[self._ids])
        behind = after - np.repeat(after[self._begins] - self._lengths[self._ids[self._begins]],
                                   self._counts)  # fmt: skip
        self._ends = behind.astype(np.int32)

    def apply(self, pieces: Pieces) -> Pieces:
        """Returns the pieces with replacements; each has its bytes if there are as many."""
        counts = tf.gather(self._counts, pieces.ids)
        behind = tf.cumsum(counts)
        size = tf.reduce_sum(counts)
        begins = behind - counts
        which = tf.cumsum(tf.cast(flags(begins, size), tf.int64)) - 1
        old = tf.gather(pieces.ids, which)
        place = tf.gather(tf.cast(self._begins, np.int64), old) + tf.range(size)
        place -= tf.gather(begins, which)
        ids = tf.gather(self._ids, place)
        splits = tf.gather(tf.concat([[0], behind], 0), pieces.splits)
        if pieces.starts is None or pieces.ends is None:
            return Pieces(ids, None, None, splits)
        start, end = tf.gather(pieces.starts, which), tf.gather(pieces.ends, which)
        simple = (end - start == tf.gather(self._lengths, old)) & tf.gather(self.concerned, old)
        upto = tf.gather(self._ends, place)
        last = start + upto
        return Pieces(
            ids,
            tf.where(simple, last - tf.gather(self._lengths, ids), start),
            tf.where(simple, last, end),
            splits,
        )


def _spellings(token: str) -> list[str]:
    """Returns a special token and what else becomes it when each character is lower-cased; of a
    long one only the capitals, for the others are too many."""
    if token.lower() != token:
        return [token]
    others = {letter: [letter, letter.upper()] for letter in string.ascii_lowercase}
    others["k"].append("\u212a")
    if sum(char in others for char in token) > _MAX_LETTERS:
        return [token, token.upper()]
    return list(map("".join, itertools.product(*(others.get(char, [char]) for char in token))))


def _as_list(pieces: Pieces) -> list[tf.Tensor]:
    return [part for part in pieces if part is not None]


def _as_pieces(parts: Sequence[tf.Tensor]) -> Pieces:
    return Pieces(*parts) if len(parts) == 4 else Pieces(parts[0], None, None, parts[1])


def _gather_padded(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the values at the places, the last one for places behind it, 0 if there are none."""
    last = tf.maximum(tf.size(values, places.dtype) - 1, 0)
    values = tf.concat([values, tf.zeros([1], values.dtype)], 0)
    return tf.gather(values, tf.minimum(places, last))


def _behind_first(values: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns bool [size]: false, then the values."""
    return tf.concat([[False], values], 0)[:size]


def _equal_quotes(data: tf.Tensor) -> tf.Tensor:
    """Returns which bytes but the first are the same quotation mark as the byte before."""
    return (data[1:] == data[:-1]) & ((data[1:] == _APOSTROPHE) | (data[1:] == _GRAVE))


def _second_of_pairs(same: tf.Tensor) -> tf.Tensor:
    """Returns which bytes close a pair; bool [n], as is `same`, which equal the one before."""
    run = tf.cumsum(tf.cast(~same, tf.int64)) - 1
    inside = tf.range(tf.size(same, tf.int64)) - tf.gather(tf.where(~same)[:, 0], run)
    return inside % 2 == 1


# From the file to what the kernels read.


class _Kernel(NamedTuple):
    """What the kernels read.

    Fields:
        model: a SentencePiece model.
        unknown_pieces: how many pieces at its end stand for unknown characters.
        unknown_score: the score of an unknown character.
        normalizer: the model of the FastBertNormalize kernel before it, or None.
        speller: the same for a kernel that does to each character what all do together.
        byte_counts, character_counts: int32 [pieces], without spaces; 1 for unknown ones.
        first_bytes: int32 [pieces], after spaces, as the speller writes them.
        strange_quotes: which of ' ` " the vocabulary lacks.
        blank: bool [pieces], which pieces are nothing but typed spaces; None if there can be none
            at the end of a text.
    """

    model: bytes
    unknown_pieces: int
    unknown_score: float
    normalizer: np.ndarray | None
    speller: np.ndarray
    byte_counts: np.ndarray
    character_counts: np.ndarray
    first_bytes: np.ndarray
    strange_quotes: tuple[bool, ...]
    blank: np.ndarray | None


class _Units(NamedTuple):
    """What pieces are made of: elements (bytes, characters) of the texts that are no spaces.

    Fields:
        opening, closing: int64 [n], the first and the last element of each.
        span: says which bytes of the text elements come from, given these and their rows.
        splits: int64 [rows + 1], at which element each row begins.
        seen: bool [elements], which are first elements.
        bytes: int32 [elements], what they are.
    """

    opening: tf.Tensor
    closing: tf.Tensor
    span: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    splits: tf.Tensor
    seen: tf.Tensor
    bytes: tf.Tensor

    def counts_before_rows(self) -> tf.Tensor:
        """Returns int32 [rows + 1], how many units there are before each row."""
        before = tf.concat([[0], tf.cumsum(tf.cast(self.seen, tf.int32))], 0)
        return tf.gather(before, self.splits)


def _parse(content: bytes, source: str) -> Any:
    """Returns a SentencePiece model, or raises ValueError for one that cannot be used."""
    proto = model_pb.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{source}: not a SentencePiece model ({error})") from error
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = [piece.type for piece in proto.pieces]
    kind = trainer.ModelType.Name(trainer.model_type)
    for what, found, expected in (
        ("number of pieces for unknown text", kinds.count(_UNKNOWN), 1),
        ("presence of pieces for text", _NORMAL in kinds, True),
        ("model", kind, "UNIGRAM"),
        ("byte_fallback", trainer.byte_fallback or _BYTE in kinds, False),
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("escape_whitespaces", normalizer.escape_whitespaces, True),
        ("add_dummy_prefix", normalizer.add_dummy_prefix, True),
    ):
        if found != expected:
            raise ValueError(f"{source}: the {what} is {found!r}, expected {expected!r}")
    return proto


def _as_fairseq(pieces: list[str], kinds: list[int], source: str) -> tuple[list[str], np.ndarray]:
    """Returns the vocabulary in fairseq's order, and the new id of each piece."""
    head = [_FAIRSEQ_HEAD[3], _FAIRSEQ_HEAD[0], _FAIRSEQ_HEAD[2]]
    if pieces[:3] != head or kinds[:3] != [_UNKNOWN, _CONTROL, _CONTROL]:
        raise ValueError(
            f"{source}: the first pieces are {', '.join(pieces[:3])}, expected "
            f"{', '.join(head)}, which fairseq's ids take for granted"
        )
    ids = np.arange(1, len(pieces) + 1, dtype=np.int32)
    ids[:3] = 3, 0, 2
    return [*_FAIRSEQ_HEAD, *pieces[3:], _FAIRSEQ_TAIL], ids


def _build_kernel(
    proto: Any, prepared: Mapping[int, str], unify_quotes: bool, marks: set[str]
) -> _Kernel:
    rules = Rules(proto.normalizer_spec.precompiled_charsmap)
    rules.check()
    for piece in proto.pieces:
        # SentencePiece leaves these as they are.
        if piece.type == _USER_DEFINED and rules.apply(piece.piece) != piece.piece:
            rules.add(piece.piece.encode("utf-8"), piece.piece.encode("utf-8"))
    letters = _Letters.of(proto, marks, rules, prepared)
    known = np.zeros(CODEPOINTS, bool)
    known[[ord(char) for char in letters.known | {" "}]] = True
    composed = _normalization.compose(
        rules, prepared, unify_quotes, known, _stranger(known), letters.stand_ins
    )
    normalizer = None
    if composed is None:
        altered = {ord(char): text for char, text in rules.singles().items()}
        altered |= {code: rules.apply(text) for code, text in prepared.items()}
        if unify_quotes:
            prepared = _normalization.staged(rules, prepared)
        normalizer = _staged_normalizer(rules, prepared, known, letters.stand_ins)
    else:
        rules, altered = composed
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = rules.to_bytes()
    spec.escape_whitespaces = not letters.spaced
    proto.ClearField("denormalizer_spec")
    # Among them may be samples that the kernel would try the altered model on.
    proto.DiscardUnknownFields()
    scores = [piece.score for piece in proto.pieces if piece.type == _NORMAL]
    unknown_score = float(np.float32(min(scores)) - _UNKNOWN_PENALTY)
    _adapt_pieces(proto, letters, unknown_score)
    back = {ord(char): chr(code) for code, char in letters.stand_ins.items()}
    bodies = [chr(_ONE_UNKNOWN) if piece.type == _UNKNOWN else
              piece.piece.replace(_SPACE, "").replace(" ", "").translate(back)
              for piece in proto.pieces]  # fmt: skip
    quotes = {"'": _APOSTROPHE, "`": _GRAVE} if unify_quotes else {}
    firsts = [quotes.get(body[:1], (body.encode("utf-8") or b"\0")[0]) for body in bodies]
    blank = np.array([not body for body in bodies])
    return _Kernel(
        proto.SerializeToString(),
        len(letters.rare),
        unknown_score,
        normalizer,
        _speller(altered, known, unify_quotes),
        np.array([len(body.encode("utf-8")) for body in bodies], np.int32),
        np.array(list(map(len, bodies)), np.int32),
        np.array(firsts, np.int32),
        tuple(mark not in letters.known for mark in ("'", "`", '"')),
        None if letters.spaced or not spec.remove_extra_whitespaces else blank,
    )


class _Letters(NamedTuple):
    """The characters of a vocabulary.

    Fields:
        known: all of them, and `marks`.
        rare: those that are no pieces.
        spaced: whether no text can have the sign for a space, so that a space can take its place
            in the pieces, which spares the kernel a pass.
        stand_ins: what is written for rare ones of a single byte.  FastSentencepiece prefers
            "unknown" to a piece of the same score, and counts it as often as it has bytes.
    """

    known: set[str]
    rare: list[str]
    spaced: bool
    stand_ins: dict[int, str]

    @classmethod
    def of(cls, proto: Any, marks: set[str], rules: Rules, prepared: Mapping[int, str]) -> _Letters:
        """Collects them; `marks` are characters to tell from other unknown ones."""
        texts = {piece.piece for piece in proto.pieces if _is_findable(piece)}
        known = {*"".join(texts), *marks}
        rare = sorted(known - texts)
        free = (
            chr(code) for code in range(0x80, 0x800)
            if chr(code) not in known and code not in prepared
            and rules.apply(chr(code)) == chr(code)
        )  # fmt: skip
        stand_ins = {ord(char): next(free) for char in rare if char.isascii()}
        return cls(known, rare, rules.apply(_SPACE) == " " and _SPACE in texts, stand_ins)


def _is_findable(piece: Any) -> bool:
    # In the text that SentencePiece looks at no space is left.
    return piece.type in _FOUND and " " not in piece.piece


def _speller(altered: Mapping[int, str], known: np.ndarray, unify_quotes: bool) -> np.ndarray:
    """Returns the character map that does what preparation and rules do, but to each character."""
    changes = {ord(_SPACE): " ", **altered}
    spelled = {
        code: "".join(
            char if known[ord(char)] and char != _SPACE else
            " " if char == _SPACE else chr(_ONE_UNKNOWN)
            for char in text
        )
        for code, text in changes.items()
    }  # fmt: skip
    if unify_quotes:
        spelled |= {ord("'"): chr(_APOSTROPHE), ord("`"): chr(_GRAVE)}
    return _character_map(spelled, known, chr(_ONE_UNKNOWN))


def _fast_kernel(model: bytes, unknown_score: float) -> Any:
    """Returns the kernel for a model, and sees that added pieces do not lower what unknown
    characters score: ties are decided by the last bit of sums."""
    kernel = tf_text.FastSentencepieceTokenizer(model)
    buffer = kernel._converted_model.numpy()
    root = encode.Get(packer.uoffset, buffer, 0)
    at = root + Table(buffer, root).Offset(_PENALTY_SLOT)
    found = buffer[at : at + 4].view(np.float32)
    if not unknown_score - 2 * _UNKNOWN_PENALTY < found[0] <= unknown_score:
        raise RuntimeError(
            f"tensorflow-text {tf_text.__version__} converts SentencePiece models in a way that "
            "is not known here, expected 2.20"
        )
    found[0] = unknown_score
    kernel._converted_model = tf.constant(buffer)
    return kernel


def _stranger(known: np.ndarray) -> str:
    """Returns a character that the vocabulary lacks."""
    # Not among these: tab, line feed and carriage return, which the kernel takes for spaces.
    return next(chr(code) for code in range(1, 9) if not known[code])


def _staged_normalizer(
    rules: Rules, prepared: Mapping[int, str], known: np.ndarray, stand_ins: Mapping[int, str]
) -> np.ndarray:
    """Returns the character map that goes before rules which stay as they are.

    Adds a rule that lets the sign for unknown characters be.
    """
    stranger, joined = _stranger(known), rules.joined()
    kept = known.copy()
    singles = {ord(char): char for char in rules.singles()}
    kept[[*map(ord, joined), *singles]] = True
    # Where the rules drop the sign itself, another that they drop takes its place: a text of which
    # nothing is left is not the same as no text.
    dropped = [chr(code) for code in singles if not rules.apply(chr(code)) and chr(code) > stranger]
    alias = rules.apply(stranger) or min(dropped, default="")
    changes = singles | {ord(stranger): alias, **prepared}
    rules.add(stranger.encode(), stranger.encode())
    texts = dict(stand_ins)
    for code, text in changes.items():
        text = "".join(char if kept[ord(char)] else stranger for char in text)
        # The fewer bytes an unknown character has, the truer is what the kernel counts it as.
        result = rules.apply(text)
        if result and joined.isdisjoint(text) and not any(known[ord(char)] for char in result):
            text = stranger * len(result)
        texts[code] = text
    return _character_map(texts, kept, stranger)


def _character_map(changes: Mapping[int, str], kept: np.ndarray, unknown: str) -> np.ndarray:
    """Returns a FastBertNormalize model that replaces characters.

    Args:
        changes: their texts.
        kept: bool [CODEPOINTS], which of all others stay as they are.
        unknown: what the rest becomes.
    """
    texts: dict[str, int] = {unknown: 1}
    choice = np.where(kept, 0, 1)
    for code, text in changes.items():
        choice[code] = texts.setdefault(text, len(texts) + 1)
    strings = [b"", *(text.encode("utf-8") for text in texts)]
    replacement = strings[choice[0xFFFD]] if choice[0xFFFD] else "\ufffd".encode()
    return _models.normalizer_model(strings, choice, replacement)


def _adapt_pieces(proto: Any, letters: _Letters, unknown_score: float) -> None:
    """Gives pieces the form that both kernels read as SentencePiece reads the original, and adds
    rare letters at the end."""

    def written(text: str) -> str:
        text = text.translate(letters.stand_ins)
        return text.replace(_SPACE, " ") if letters.spaced else text

    for piece in proto.pieces:
        if piece.type == _USER_DEFINED:
            # What SentencePiece 0.2.3 counts them as, whatever score they have.
            piece.score = np.float32(0.1) * np.float32(len(piece.piece.encode("utf-8")) - 1)
        if _is_findable(piece):
            piece.type = _NORMAL
            piece.piece = written(piece.piece)
        elif piece.type in (*_FOUND, _UNUSED):
            piece.type = _CONTROL
    # SentencePiece goes by the kind of the piece, FastSentencepiece by this.
    proto.trainer_spec.unk_id = [piece.type for piece in proto.pieces].index(_UNKNOWN)
    for char in letters.rare:
        proto.pieces.add(piece=written(char), score=unknown_score, type=_NORMAL)


def _character_model(content: bytes) -> bytes:
    """Returns a model that splits text into characters, after the same rules."""
    proto = model_pb.ModelProto()
    proto.ParseFromString(content)
    letters = {char for piece in proto.pieces if piece.type == _NORMAL for char in piece.piece}
    space = _SPACE if proto.normalizer_spec.escape_whitespaces else " "
    del proto.pieces[:]
    proto.trainer_spec.model_type = model_pb.TrainerSpec.CHAR
    proto.pieces.add(piece="<unk>", type=_UNKNOWN)
    for char in [space, *sorted(letters - {space})]:
        proto.pieces.add(piece=char, type=_NORMAL)
    return proto.SerializeToString()


# Files.


def _find_model(path: Path) -> Path:
    """Returns the model file of a directory."""
    found = [path / name for name in _MODEL_FILES if (path / name).is_file()]
    found = found or sorted(file for file in path.glob("*.model") if file.is_file())
    if not found:
        raise FileNotFoundError(
            f"{path}: found no SentencePiece model, expected {', '.join(_MODEL_FILES[:-1])} or "
            "another *.model"
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path}: found {names}, expected one SentencePiece model; name it")
    return found[0]


def _find_preset(path: Path, config: Mapping[str, Any], proto: Any) -> str:
    """Returns the published class whose files these are."""
    model = read_json(path / _WEIGHTS_FILE) if (path / _WEIGHTS_FILE).is_file() else {}
    for stated in (config.get("tokenizer_class"), model.get("tokenizer_class"),
                   CLASS_OF_MODEL.get(str(model.get("model_type", "")))):  # fmt: skip
        name = str(stated or "").removesuffix("Fast")
        if name == SentencePieceTokenizer.__name__:
            return ""
        if name in PRESETS:
            return name
    pieces = {piece.piece for piece in proto.pieces if piece.type != _NORMAL}
    for name, preset in PRESETS.items():
        tokens = {preset[f"{role}_token"] for role in ROLES}
        if tokens <= pieces or (preset["fairseq_ids"] and (path / _FAIRSEQ_FILE).is_file()):
            return name
    raise ValueError(
        f"{path}: nothing says which class the model belongs to, expected tokenizer_class in "
        f"{CONFIG_FILE} or preset, one of {', '.join(PRESETS)}, or '' for SentencePiece alone"
    )


def _read_config(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer_config.json states."""
    stated = stated_special_tokens(dict(config), path)
    for theirs, ours in (("do_lower_case", "lower_case"), ("remove_space", "unify_spaces")):
        if theirs in config:
            stated[ours] = bool(config[theirs])
    if "keep_accents" in config:
        stated["strip_accents"] = not config["keep_accents"]
    return stated | {name: bool(config[name]) for name in _TREATMENT if name in config}
