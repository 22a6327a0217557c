"""Reads Hugging Face's ``tokenizer.json``: normalizer, pre-tokenizer, model, post-processor.

Each section is read once, into plain values. A tokenizer accepts the options that it computes
exactly, and names others in an error. The reference is the library ``tokenizers``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from bertfam_tf.names import truncated_repr
from bertfam_tf.parsing import read_object
from bertfam_tf.text.files import in_order, section, token_text
from bertfam_tf.text.tokenizer_json_tokens import (
    PROCESSORS,
    AddedTokens,
    Step,
    added_list,
    added_tokens,
    joined_names,
)

# The default options of each step; a file with any other option raises an error.
_NORMALIZERS: dict[str, dict[str, Any]] = {
    "BertNormalizer": dict(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    ),
    "Lowercase": {},
    "NFC": {},
    "NFD": {},
    "NFKC": {},
    "NFKD": {},
    "Precompiled": dict(precompiled_charsmap=""),
    "Replace": dict(pattern=None, content=""),
    "Strip": dict(strip_left=True, strip_right=True),
    "StripAccents": {},
}
_SPLITTERS: dict[str, dict[str, Any]] = {
    "BertPreTokenizer": {},
    "ByteLevel": dict(add_prefix_space=True, trim_offsets=True, use_regex=True),
    "Metaspace": dict(
        replacement="▁", add_prefix_space=None, prepend_scheme=None, split=True, str_rep="▁"
    ),
    "WhitespaceSplit": {},
}
_MODELS: dict[str, dict[str, Any]] = {
    "WordPiece": dict(
        unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100
    ),
    "BPE": dict(
        dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
        fuse_unk=False, byte_fallback=False, ignore_merges=False, merges=None,
    ),
    "Unigram": dict(unk_id=None, byte_fallback=False),
    "WordLevel": dict(unk_token="<unk>"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The sections of a ``tokenizer.json``.

    Args:
        path: the file.
        normalizers, splitters, processors: the steps of the normalizer, the pre-tokenizer and the
            post-processor, in order.
        model: the type and the options of the model.
        pieces: the vocabulary in the order of the ids, added tokens included.
        scores: the scores of a unigram model's pieces, without added tokens beyond its end; None
            for other models.
        added: the added tokens.
    """

    path: Path
    normalizers: tuple[Step, ...]
    splitters: tuple[Step, ...]
    processors: tuple[Step, ...]
    model: Step
    pieces: list[str]
    scores: list[float] | None
    added: AddedTokens

    def refuse(self, what: str, value: Any, expected: Any) -> NoReturn:
        """Raises ValueError for an option that a tokenizer does not compute."""
        raise ValueError(
            f"{self.path}: the {what} is {truncated_repr(value)}, expected {expected}."
        )

    def expect(self, what: str, value: Any, *expected: Any) -> Any:
        """Returns ``value``, or raises ValueError if it is not one of the expected values."""
        if value not in expected:
            self.refuse(what, value, " or ".join(map(repr, expected)))
        return value

    def splitter(self, kind: str) -> Step:
        """Returns the only step of the pre-tokenizer, or raises ValueError if it is another."""
        kinds = [step.kind for step in self.splitters]
        if kinds != [kind]:
            self.refuse("pre-tokenizer", joined_names(kinds), repr(kind))
        return self.splitters[0]

    def bert_rules(self) -> dict[str, bool | None]:
        """Returns the options of the one BertNormalizer that equals the normalizer.

        Lower-casing before or after it gives the same text as its own, for every character; without
        it, all options are off.

        Raises:
            ValueError: if there is no such normalizer.
        """
        kinds = [step.kind for step in self.normalizers]
        if [kind for kind in kinds if kind != "Lowercase"] not in ([], ["BertNormalizer"]):
            self.refuse("normalizer", joined_names(kinds), "'BertNormalizer', 'Lowercase' or both")
        if "BertNormalizer" not in kinds:
            names = ("strip_accents", "split_chinese", "clean_text")
            return {"lower_case": bool(kinds), **dict.fromkeys(names, False)}
        step = self.normalizers[kinds.index("BertNormalizer")]
        accents, lower_case = step["strip_accents"], step["lowercase"] or len(kinds) > 1
        if accents is None and lower_case != step["lowercase"]:
            accents = step["lowercase"]
        return {
            "lower_case": lower_case,
            "strip_accents": accents,
            "split_chinese": step["handle_chinese_chars"],
            "clean_text": step["clean_text"],
        }

    def without_normalized_tokens(self) -> None:
        """Raises ValueError if the normalizer changes text before added tokens are looked for."""
        later = self.added.lists["normalized_tokens"]
        if later and self.normalizers:
            self.refuse("text in which an added token is found", later[0], "text as it is given")

    def merges(self) -> list[tuple[str, str]]:
        """Returns the pairs of a BPE model, best first, or raises ValueError."""
        merges = self.model["merges"]
        if not isinstance(merges, list):
            self.refuse("list of merges", merges, "a list")
        pairs = []
        for number, pair in enumerate(merges):
            parts = pair.split(" ") if isinstance(pair, str) else pair
            if (
                not isinstance(parts, list)
                or len(parts) != 2
                or not all(isinstance(part, str) and part for part in parts)
            ):
                self.refuse(f"merge {number}", pair, "two symbols")
            pairs.append((parts[0], parts[1]))
        return pairs

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of any tokenizer: vocabulary and added tokens."""
        return {"vocabulary": self.pieces, "added": self.added}


def read(path: Path, kind: str) -> Pipeline:
    """Reads a file.

    Args:
        path: the file.
        kind: the type that its model has to have.

    Raises:
        ValueError: if the file is damaged, of another model, or has an option that is not known
            here.
    """
    content = read_object(path)
    model = _model(section(content, "model", path), kind, path)
    pieces, scores = _vocabulary(content, model.kind, path)
    processors = _steps(content, "post_processor", "processors", PROCESSORS, path)
    return Pipeline(
        path,
        _steps(content, "normalizer", "normalizers", _NORMALIZERS, path),
        _steps(content, "pre_tokenizer", "pretokenizers", _SPLITTERS, path),
        processors,
        model,
        pieces,
        scores,
        added_tokens(content, model, pieces, processors, path),
    )


def kind_of(path: Path) -> str:
    """Returns the kind of tokenizer that a file describes, as in ``registry.TokenizerSpec``.

    Raises:
        ValueError: if the file is damaged, or of no such kind.
    """
    content = read_object(path)
    model = section(content, "model", path)
    kind = _model_kind(model)
    kinds = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    if kind == "BPE" and model.get("end_of_word_suffix"):
        return "bpe"
    if kind == "BPE" and "ByteLevel" in str(content.get("pre_tokenizer")):
        return "byte_bpe"
    raise ValueError(
        f"{path}: the model is {truncated_repr(kind)}, expected {', '.join(kinds)}, or BPE that is "
        "byte-level or marks the ends of words."
    )


def _model_kind(model: Mapping[str, Any]) -> Any:
    # Files of early versions have no type; only WordPiece has the prefix.
    implied = "WordPiece" if "continuing_subword_prefix" in model else None
    kind = model.get("type")
    return implied if kind is None else kind


def _model(model: Mapping[str, Any], kind: str, path: Path) -> Step:
    actual = _model_kind(model)
    if actual != kind:
        raise ValueError(f"{path}: the model is {truncated_repr(actual)}, expected {kind!r}.")
    known = {kind: {**_MODELS[kind], "vocab": None}}
    return _step({**model, "type": kind}, "model", known, path)


def _steps(
    content: dict[str, Any], name: str, inner: str, known: Mapping[str, Any], path: Path
) -> tuple[Step, ...]:
    """Returns the steps of a section, including the steps of sequences."""
    whole = section(content, name, path)
    if not whole:
        return ()
    if whole.get("type") != "Sequence":
        return (_step(whole, name, known, path),)
    steps = whole.get(inner)
    if not isinstance(steps, list):
        raise ValueError(f"{path}: {inner} of {name} is {truncated_repr(steps)}, expected a list.")
    return tuple(
        nested for step in steps for nested in _steps({name: step}, name, inner, known, path)
    )


def _step(options: Mapping[str, Any], part: str, known: Mapping[str, Any], path: Path) -> Step:
    """Returns a step with all its options; one of an unknown type has none."""
    kind = options.get("type")
    defaults = known.get(kind) if isinstance(kind, str) else None
    if defaults is None:
        return Step(str(kind), {})
    stated = {name: value for name, value in options.items() if name != "type"}
    strange = [name for name in stated if name not in defaults]
    if strange:
        raise ValueError(
            f"{path}: {kind} of {part} has the option {truncated_repr(strange[0])}, expected "
            f"{', '.join(defaults) or 'none'}."
        )
    options = {**defaults, **stated}
    for name, value in options.items():
        default = defaults[name]
        wrong = isinstance(default, bool) and not isinstance(value, bool)
        wrong |= isinstance(default, str) and not isinstance(value, str)
        wrong |= type(default) is int and type(value) is not int
        if name == "strip_accents":
            wrong = not isinstance(value, bool | None)
        if wrong:
            raise ValueError(
                f"{path}: {name} of {kind} is {truncated_repr(value)}, expected one like {default}."
            )
    return Step(kind, options)


def _vocabulary(
    content: dict[str, Any], kind: str | None, path: Path
) -> tuple[list[str], list[float] | None]:
    """Returns the pieces in the order of their ids, added tokens included, and their scores."""
    model = section(content, "model", path)
    scores = None
    ids: dict[str, Any]
    if kind == "Unigram":
        rows = model.get("vocab")
        if not isinstance(rows, list) or not all(map(_is_scored, rows)):
            raise ValueError(
                f"{path}: vocab is {truncated_repr(rows)}, expected pieces and their scores."
            )
        ids = {piece: index for index, (piece, _) in enumerate(rows)}
        scores = [float(score) for _, score in rows]
        if len(ids) != len(rows):
            raise ValueError(f"{path}: vocab repeats a piece, expected each piece once.")
    else:
        ids = dict(section(model, "vocab", path))
    for token in added_list(content, path):
        text, number = token_text(token, path), token.get("id")
        if ids.setdefault(text, number) != number:
            raise ValueError(
                f"{path}: {text!r} has the ids {truncated_repr(ids[text])} and "
                f"{truncated_repr(number)}."
            )
    return in_order(ids, path), scores


def _is_scored(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], int | float)
        and not isinstance(row[1], bool)
        and abs(row[1]) < float("inf")
    )
