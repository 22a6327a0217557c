"""SentencePiece as a TensorFlow graph: the tokenizer of ALBERT, XLNet, XLM-R and DeBERTa-v3.

Kudo and Richardson, "SentencePiece" (arXiv 1808.06226); Kudo, "Subword Regularization" (arXiv
1804.10959) for the unigram model. The kernel FastSentencepiece of tensorflow-text finds the
pieces. The Python preprocessing of the published tokenizers (quotation marks, accents, case) and
the rules in the model file are combined into one set of rules, which the kernel applies in the same
pass; if that is impossible (see ``charsmap.compose``), FastBertNormalize applies the preprocessing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf import files, parsing
from bertfam_tf.text.kernels.charsmap import is_digit, preparation
from bertfam_tf.text.kernels.graph import Pieces, flags, following, previous, unlikely
from bertfam_tf.text.special_tokens import CLS_A_SEP, NO_SPECIAL_TOKENS, Layout, SpecialTokens
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.matching import SpecialTokenMatcher, with_spellings
from bertfam_tf.text.tokenizers.sentencepiece_model import (
    CONTROL,
    FAIRSEQ_HEAD,
    FAIRSEQ_TAIL,
    FOUND,
    NORMAL,
    SPACE,
    UNKNOWN,
    build_kernels,
    fairseq_vocabulary,
    parse_model,
)
from bertfam_tf.text.tokenizers.sentencepiece_offsets import PieceLocator
from bertfam_tf.text.tokenizers.sentencepiece_pieces import Replacements, Surface

_MODEL_FILE, _FAIRSEQ_FILE = "spiece.model", "sentencepiece.bpe.model"
_MODEL_FILES = (_MODEL_FILE, _FAIRSEQ_FILE, "30k-clean.model")
# Arguments that published classes do and do not write into their files.
_TREATMENT = ("lower_case", "strip_accents", "unify_spaces", "unify_quotes", "split_digit_comma",
              "fairseq_ids")  # fmt: skip


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece's unigram model: converts text to piece ids and byte offsets in the graph.

    By default the ids are the same as SentencePiece's. With the options of a published class (see
    ``Tokenizer.load``) they are the same as from the Python tokenizers that ALBERT, XLNet and XLM-R
    were published with, without the special tokens around them.

    If a text has two equally good segmentations (99|9, 9|99), the rounding of sums decides, as in
    SentencePiece, whose releases differ from each other in this case.

    Offsets exclude white space: "▁world" covers "world". A single "▁" covers the first character of
    its word. Offsets are the same as in Hugging Face's fast tokenizers, except for characters that
    normalization replaces by several (½) or removes. If ``split_digit_comma`` splits a piece in
    which normalization changed a character, each part covers the whole piece.

    ``detokenize`` returns the same as SentencePiece's decoder: the normalized text, in which
    control symbols are empty and unknown pieces are " ⁇ ". It is the original text if the model
    does not normalize.

    Files: one SentencePiece model, ``spiece.model``, ``sentencepiece.bpe.model`` or another
    ``*.model``. It does not contain the arguments below, so ``load`` needs a published class, or
    ``preset=""``.

    Args:
        model: the content of a SentencePiece model file, or its path.
        lower_case: whether to lower-case.
        strip_accents: whether to apply NFKD and remove combining characters.
        unify_spaces: whether all white space (as in Python) becomes a space; otherwise only the
            model's rules apply.
        unify_quotes: whether `` and '' become ".
        split_digit_comma: whether a comma is split from the preceding digit, and the rest of the
            piece is tokenized again.
        fairseq_ids: whether ids follow fairseq: <s>, <pad>, </s>, <unk>, the model's pieces
            except the first three, <mask>.
        appended_pieces: special pieces with ids after the model's, unless the model has them.
        special_tokens: the special tokens; None for ``unk_token`` uses the model's. With
            ``lower_case``, lower-case special tokens are also found in upper case, as in the
            reference.
        layout: the positions of the special tokens.

    Raises:
        FileNotFoundError: if the model is a path and there is no such file.
        ValueError: if the model is damaged or of a kind that is not supported (BPE, byte fallback,
            white space at the ends of words); or as ``Tokenizer``.
    """

    kind = "sentencepiece"
    has_tflite_kernels = True
    _needs_preset = True

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
        appended_pieces: Sequence[str] = (),
        special_tokens: SpecialTokens = NO_SPECIAL_TOKENS,
        layout: Layout = CLS_A_SEP,
    ) -> None:
        source = "the model"
        if isinstance(model, str | os.PathLike):
            source = os.fspath(model)
            model = parsing.read_bytes(Path(model))
        proto = parse_model(model, source)
        pieces = [piece.piece for piece in proto.pieces]
        kinds = [piece.type for piece in proto.pieces]
        unk = kinds.index(UNKNOWN)
        if special_tokens.unk_token is None:
            special_tokens = replace(special_tokens, unk_token=pieces[unk])
        ids = np.arange(len(pieces), dtype=np.int32)
        if fairseq_ids:
            pieces, ids = fairseq_vocabulary(pieces, kinds, source)
            kinds = [CONTROL] * 3 + [UNKNOWN, *kinds[3:], CONTROL]
        appended = [piece for piece in appended_pieces if piece not in pieces]
        pieces, kinds = pieces + appended, kinds + [CONTROL] * len(appended)
        options: dict[str, Any] = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "unify_spaces": unify_spaces,
            "unify_quotes": unify_quotes,
            "split_digit_comma": split_digit_comma,
            "fairseq_ids": fairseq_ids,
            "appended_pieces": tuple(appended_pieces),
        }
        self._model = _Bytes(bytes(model))
        self._kinds = _Bytes(bytes(kinds))
        super().__init__(
            pieces, special_tokens, layout, options, name="sentence_piece_tokenizer", source=source
        )
        openings: set[str] = set()
        if self._matcher is not None:
            openings = {text[:1].decode() for text in self._matcher.texts}
        prepared = preparation(unify_spaces, strip_accents, lower_case)
        spec = proto.normalizer_spec
        may_end_in_space = not spec.remove_extra_whitespaces
        with tf.init_scope():
            self._surface = Surface(pieces, kinds, spec)
            kernels = build_kernels(proto, prepared, unify_quotes, openings)
            self._kernel = kernels.tokenizer
            self._normalizer = kernels.normalizer
            self._locator = PieceLocator(kernels, unify_quotes, may_end_in_space)
            self._to_id = None
            if fairseq_ids or appended:
                unknown = np.full(kernels.unknown_pieces, ids[unk], np.int32)
                self._to_id = tf.constant(np.concatenate([ids, unknown]))
        self._blank = kernels.blank
        self._kernel_pieces = len(kernels.byte_counts)
        self._has_unknown_pieces = kernels.unknown_pieces > 0
        self._replacements: Replacements | None = None
        self._irregular: np.ndarray | None = None
        if split_digit_comma:
            self._replacements = self._make_replacements()
        self._irregular = self._irregular_pieces(ids, openings)

    def _vocabulary_config(self) -> dict[str, Any]:
        return {"model": self._model.content}

    # Files.

    def _write_files(self, directory: Path) -> dict[str, Any]:
        options = self._state.options
        name = _FAIRSEQ_FILE if options["fairseq_ids"] else _MODEL_FILE
        files.write(directory / name, self._model.content)
        return {
            "do_lower_case": options["lower_case"],
            "keep_accents": not options["strip_accents"],
            "remove_space": options["unify_spaces"],
            **{name: options[name] for name in _TREATMENT},
            **(
                {"appended_pieces": options["appended_pieces"]}
                if options["appended_pieces"]
                else {}
            ),
        }

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        model = path if path.suffix == ".model" else _find_model(folder)
        return {"model": parsing.read_bytes(model)}, model

    @classmethod
    def _stated(
        cls, config: dict[str, Any], path: Path, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        stated = super()._stated(config, path, arguments)
        # Not of XLM-RoBERTa's class, whose files may have them from other classes.
        theirs = {} if arguments.get("fairseq_ids") else config
        for key, ours in (("do_lower_case", "lower_case"), ("remove_space", "unify_spaces")):
            if key in theirs:
                stated[ours] = bool(theirs[key])
        if "keep_accents" in theirs:
            stated["strip_accents"] = not theirs["keep_accents"]
        if config.get("split_by_punct"):
            raise ValueError(f"{path}: split_by_punct is true, which is not supported.")
        if "appended_pieces" in config:
            stated["appended_pieces"] = tuple(config["appended_pieces"])
        return stated | {name: bool(config[name]) for name in _TREATMENT if name in config}

    @classmethod
    def _fits(cls, special: SpecialTokens, arguments: Mapping[str, Any], folder: Path) -> bool:
        proto = parse_model(arguments["model"], str(folder))
        pieces = {piece.piece for piece in proto.pieces if piece.type != NORMAL}
        # The model contains only some of fairseq's special tokens; its file has a specific name.
        if (folder / _FAIRSEQ_FILE).is_file():
            pieces.update((*FAIRSEQ_HEAD, FAIRSEQ_TAIL))
        return set(special) <= pieces

    def _is_preset(self, options: Mapping[str, Any]) -> bool:
        treatment = {name: options.get(name, False) for name in _TREATMENT}
        additional = options.get("additional_special_tokens", ())
        appended = tuple(options.get("appended_pieces", ()))
        return (
            treatment.items() <= self._state.options.items()
            and appended == self._state.options["appended_pieces"]
            and all(token in self._state.ids for token in additional)
        )

    # The graph.

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        # One table lookup determines whether the kernel's pieces are the final result.
        kernel_pieces = self._find(texts, offsets)
        pieces = self._with_ids(kernel_pieces)
        if self._irregular is not None:

            def encode(texts: tf.Tensor) -> Pieces:
                return self._encode(texts, offsets)

            def rest(*tensors: tf.Tensor) -> list[tf.Tensor]:
                processed = self._postprocessed(Pieces.from_tensors(tensors[:-1]))
                texts = tensors[-1]
                return self._with_special_tokens(processed, texts, encode).tensors()

            irregular = tf.reduce_any(tf.gather(self._irregular, kernel_pieces.ids))
            pieces = Pieces.from_tensors(unlikely(irregular, rest, pieces.tensors(), [texts]))
        if not offsets:
            return (pieces.ragged(pieces.ids),)
        return tuple(pieces.ragged(part) for part in (pieces.ids, pieces.starts, pieces.ends))

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        return self._postprocessed(self._with_ids(self._find(texts, offsets)))

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
        return self._locator(pieces, texts, prepared, source) if offsets else pieces

    def _with_ids(self, pieces: Pieces) -> Pieces:
        """Maps the kernel's ids to the vocabulary's; ids beyond its end are kept."""
        if self._to_id is None:
            return pieces
        return pieces._replace(ids=tf.gather(self._to_id, pieces.ids))

    def _postprocessed(self, pieces: Pieces) -> Pieces:
        """Joins unknown pieces, and splits those that ``split_digit_comma`` affects."""
        if self._has_unknown_pieces:
            pieces = self._join_unknown(pieces)
        return pieces if self._replacements is None else self._replacements.apply(pieces)

    def _without_trailing_blanks(self, pieces: Pieces) -> Pieces:
        """Removes the pieces that the kernel leaves at the end of texts that contain "▁"."""
        shown = ~tf.gather(self._blank, pieces.ids)
        count = tf.concat([[0], tf.cumsum(tf.cast(shown, tf.int64))], 0)
        total = tf.gather(tf.gather(count, pieces.splits[1:]), pieces.rows())
        return pieces.keep(count[:-1] < total)

    def _join_unknown(self, pieces: Pieces) -> Pieces:
        """Joins adjacent unknown pieces into one; ids beyond the vocabulary are unknown too."""
        unknown = (pieces.ids == self.unk_id) | (pieces.ids >= self.vocab_size)
        pieces = pieces._replace(ids=tf.where(unknown, self.unk_id, pieces.ids))
        size = tf.size(pieces.ids, tf.int64)
        opens = ~(unknown & previous(unknown, False)) | flags(pieces.splits, size)
        joined = pieces.keep(opens)
        if pieces.ends is None:
            return joined
        return joined._replace(ends=tf.boolean_mask(pieces.ends, following(opens, True)))

    def _make_matcher(self) -> SpecialTokenMatcher | None:
        exact = super()._make_matcher()
        if exact is None or not self._state.options["lower_case"]:
            return exact
        return with_spellings(exact)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return self._surface.join(ids)

    def _irregular_pieces(self, ids: np.ndarray, openings: set[str]) -> np.ndarray | None:
        """Returns bool [kernel's vocabulary], which pieces need further processing: unknown pieces,
        parts of special tokens, pieces to split. None if there are none.

        Args:
            ids: int32 [vocabulary], the ids of the kernel's pieces.
            openings: the first characters of special tokens.
        """
        irregular = np.ones(self._kernel_pieces, bool)
        irregular[: len(ids)] = [
            self._kinds.content[index] in FOUND
            and not openings.isdisjoint(self._state.pieces[index])
            for index in ids
        ]
        if self._replacements is not None:
            irregular[: len(ids)] |= self._replacements.replaced[ids]
        return irregular if irregular.any() else None

    def _make_replacements(self) -> Replacements:
        """Returns the replacements of pieces that end in a digit and a comma."""
        pieces, ids = self._state.pieces, self._state.ids
        if "," not in ids:
            raise ValueError("split_digit_comma needs a piece ',', which the vocabulary lacks.")
        kinds = self._kinds.content
        selected = [index for index, piece in enumerate(pieces)
                     if kinds[index] in FOUND
                     and len(piece) > 1 and piece[-1] == ","
                     and is_digit(piece[-2])]  # fmt: skip
        with tf.init_scope():
            texts = tf.constant([pieces[i][:-1].replace(SPACE, "") for i in selected], tf.string)
            rows = self._encode(texts, offsets=False)
            segmented = rows.ragged(rows.ids).to_list()
        parts: dict[int, list[int]] = {}
        for index, row in zip(selected, segmented, strict=True):
            opening = pieces[row[0]]
            if not pieces[index].startswith(SPACE) and opening.startswith(SPACE):
                glued = ids.get(opening[1:], self.unk_id)
                row = row[1:] if opening == SPACE else [glued, *row[1:]]
            parts[index] = [*row, ids[","]]
        return Replacements(pieces, parts)


class _Bytes:
    """Holds bytes that tf.Module would otherwise track and copy."""

    def __init__(self, content: bytes) -> None:
        self.content = content


def _find_model(path: Path) -> Path:
    """Returns the model file of a directory."""
    models = [path / name for name in _MODEL_FILES if (path / name).is_file()]
    models = models or sorted(file for file in path.glob("*.model") if file.is_file())
    if not models:
        raise FileNotFoundError(
            f"{path}: found no SentencePiece model, expected {', '.join(_MODEL_FILES[:-1])} or "
            "another *.model."
        )
    if len(models) > 1:
        names = ", ".join(file.name for file in models)
        raise ValueError(
            f"{path}: found {names}, expected one SentencePiece model; pass the path of the file."
        )
    return models[0]
