"""Converts our tokenizers to Hugging Face's ``tokenizer.json``.

The library ``tokenizers`` and transformers' fast classes run the file: normalizer,
pre-tokenizer, model, and a template with the special tokens.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf.text.kernels.charsmap import assigned
from bertfam_tf.text.kernels.unicode import CODEPOINTS, SPACES, classes, mask_of, python_classes
from bertfam_tf.text.special_tokens import ROLES
from bertfam_tf.text.tokenizer_json_tokens import added_section
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.bpe import BPETokenizer
from bertfam_tf.text.tokenizers.bpe_files import END
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer
from bertfam_tf.text.tokenizers.sentencepiece import SentencePieceTokenizer
from bertfam_tf.text.tokenizers.unigram import UnigramTokenizer
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer, beyond_model

_SPACE = "▁"
_PIECE = model_pb.ModelProto.SentencePiece
# Lower than any sum of log-probabilities: the score of pieces that never match in text.
_NEVER = -1e6
# Added to the score of pieces that the Python classes split, as in transformers' own conversion.
_SPLIT = -100.0


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the content of ``tokenizer.json``.

    Raises:
        ValueError: if the format cannot express the tokenizer.
    """
    options = tokenizer.get_config()
    parts = _parts(tokenizer, options)
    template = _template(tokenizer)
    before = parts.pop("before_template", None)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokenizer, options),
        "normalizer": None,
        **parts,
        "post_processor": (
            {"type": "Sequence", "processors": [before, template]} if before else template
        ),
    }


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens that the vocabulary has, by name: ``cls_token``, …"""
    return {f"{role}_token": tokenizer.id_to_token(i) for role, i in tokenizer.special_ids.items()}


def _added_tokens(tokenizer: Tokenizer, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    # The Python classes look for special tokens in the lower-cased text.
    python = isinstance(tokenizer, SentencePieceTokenizer | BPETokenizer)
    folded = python and options["lower_case"] and not options.get("fast")
    names = [name for name in tokenizer.special_tokens if folded and name == name.lower()]
    ids = {name: index for index, name in enumerate(tokenizer.vocabulary)}
    return added_section(tokenizer.special_tokens, ids, names)


def _template(tokenizer: Tokenizer) -> dict[str, Any]:
    names, used = special_names(tokenizer), {}

    def entries(count: int) -> list[dict[str, Any]]:
        result = []
        for entry, segment in tokenizer.layout.entries(count):
            if entry in ROLES:
                token = names.get(f"{entry}_token")
                if token is None:
                    raise ValueError(f"its layout uses the {entry} token, which it does not have.")
                used[token] = tokenizer.token_to_id(token)
                result.append({"SpecialToken": {"id": token, "type_id": segment}})
            else:
                result.append({"Sequence": {"id": entry.upper(), "type_id": segment}})
        return result

    return {
        "type": "TemplateProcessing",
        "single": entries(1),
        "pair": entries(2),
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]} for token, index in used.items()
        },
    }


@singledispatch
def _parts(tokenizer: Tokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of the file that depend on the kind of tokenizer."""
    raise ValueError(f"tokenizer.json cannot express a {type(tokenizer).__name__}.")


@_parts.register
def _(tokenizer: WordPieceTokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    added = beyond_model(tokenizer.vocabulary, tokenizer.special_tokens)
    return {
        "normalizer": _bert_normalizer(
            options["lower_case"],
            strip_accents=options["strip_accents"],
            clean_text=options["clean_text"],
            split_chinese=options["split_chinese"],
        ),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": options["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": options["max_chars_per_word"],
            "vocab": {piece: i for piece, i in _ids(tokenizer).items() if piece not in added},
        },
    }


@_parts.register
def _(tokenizer: ByteBPETokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": options["add_prefix_space"],
        "trim_offsets": options["trim_offsets"],
        "use_regex": True,
    }
    return {
        "normalizer": {"type": "NFC"} if options["compose"] else None,
        "pre_tokenizer": byte_level,
        "before_template": byte_level,
        "decoder": byte_level,
        "model": _bpe_model(tokenizer, options["merges"], unk_token=None, suffix=""),
    }


@_parts.register
def _(tokenizer: BPETokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    if options["splitter"] != "bert":
        raise ValueError(f"tokenizer.json cannot express splitter = {options['splitter']!r}.")
    normalizer = _bert_normalizer(options["lower_case"])
    if not options["fast"]:
        unknown = _replace(_unknown_to_rust(options["lower_case"]), "")
        normalizer = {"type": "Sequence", "normalizers": [unknown, normalizer]}
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "BPEDecoder", "suffix": END},
        "model": _bpe_model(tokenizer, options["merges"], options["unk_token"], END),
    }


@_parts.register
def _(tokenizer: SentencePieceTokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    proto = model_pb.ModelProto.FromString(options["model"])
    rules = proto.normalizer_spec
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        if not getattr(rules, name):
            raise ValueError(f"tokenizer.json cannot express {name} = False.")
    normalizers: list[dict[str, Any]] = []
    if options["unify_quotes"]:
        normalizers += [
            {"type": "Replace", "pattern": {"String": quotes}, "content": '"'}
            for quotes in ("``", "''")
        ]
    if options["unify_spaces"]:
        normalizers.append(_replace(mask_of(SPACES), " "))
    if options["strip_accents"]:
        # StripAccents removes all nonspacing marks, the Python classes combining characters.
        combining = [i for i in range(CODEPOINTS) if unicodedata.combining(chr(i))]
        normalizers += [{"type": "NFKD"}, _replace(mask_of(combining) & assigned(), "")]
    if options["lower_case"]:
        normalizers.append({"type": "Lowercase"})
    if rules.precompiled_charsmap:
        table = base64.b64encode(rules.precompiled_charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": table})
    spaces = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, spaces],
        },
        "decoder": spaces,
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.unk_id,
            "vocab": _scores(tokenizer, proto, options["split_digit_comma"]),
            "byte_fallback": False,
        },
    }


@_parts.register
def _(tokenizer: UnigramTokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    return tokenizer.sections()


def _unknown_to_rust(strip_accents: bool) -> np.ndarray:
    """Returns the characters that only the Python class removes, bool [0x110000]."""
    python, rust = python_classes(), classes()
    removed = python.removed & ~rust.removed & ~python.space
    return removed | (python.mark & ~rust.mark) if strip_accents else removed


def _replace(mask: np.ndarray, content: str) -> dict[str, Any]:
    """Returns the normalizer that replaces each character of ``mask``, bool [0x110000]."""
    edges = np.flatnonzero(np.diff(mask.astype("i1"), prepend=0, append=0))
    spans = (rf"\x{{{start:X}}}-\x{{{end - 1:X}}}" for start, end in edges.reshape(-1, 2).tolist())
    return {"type": "Replace", "pattern": {"Regex": f"[{''.join(spans)}]"}, "content": content}


def _scores(
    tokenizer: SentencePieceTokenizer, proto: Any, split_digit_comma: bool
) -> list[tuple[str, float]]:
    """Returns the pieces of the vocabulary with their scores, in the order of ids."""
    best = max(piece.score for piece in proto.pieces if piece.type == _PIECE.NORMAL)
    scores = {}
    for piece in proto.pieces:
        score = piece.score
        if piece.type == _PIECE.USER_DEFINED:  # as SentencePiece does
            score = len(piece.piece.encode("utf-8")) * best - 0.1
        elif piece.type != _PIECE.NORMAL:
            score = _NEVER
        elif split_digit_comma and piece.piece[-1:] == "," and piece.piece[-2:-1].isdigit():
            score += _SPLIT
        scores[piece.piece] = score
    return [(piece, scores.get(piece, _NEVER)) for piece in tokenizer.vocabulary]


def _bert_normalizer(
    lower_case: bool,
    *,
    strip_accents: bool | None = None,
    clean_text: bool = True,
    split_chinese: bool = True,
) -> dict[str, Any]:
    return {
        "type": "BertNormalizer",
        "clean_text": clean_text,
        "handle_chinese_chars": split_chinese,
        "strip_accents": strip_accents,
        "lowercase": lower_case,
    }


def _bpe_model(
    tokenizer: Tokenizer, merges: Sequence[Sequence[str]], unk_token: str | None, suffix: str
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": suffix,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": _ids(tokenizer),
        "merges": [list(pair) for pair in merges],
    }


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
