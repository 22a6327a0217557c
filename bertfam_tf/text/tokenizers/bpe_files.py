"""The files of byte-pair encodings with marked word ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.files import (
    JSON_FILE,
    MERGES_FILE,
    MODEL_CONFIG_FILE,
    VOCABULARY_JSON,
    in_order,
    read_ids,
    read_json,
    read_lines,
    read_merge_lines,
    read_merges,
    read_vocabulary_json,
    section,
    token_text,
)

# Marks the end of a word.
END = "</w>"
_PAIRS_OF_FILES = (
    (VOCABULARY_JSON, MERGES_FILE),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)
# Special tokens that XLM's code puts before the pieces of a fastBPE vocabulary.
_BEFORE_PIECES = ("<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10)))
# The suffix of fastBPE pieces that do not end a word.
_UNFINISHED = "@@"
_PUBLISHED_SIZES = {"vocab_xnli_15": 95_000}


def read_files(path: Path, max_pieces: int | None) -> dict[str, Any]:
    """Returns the arguments of `BPETokenizer` that the files in a directory define.

    Args:
        path: the directory.
        max_pieces: the maximum number of pieces of a fastBPE vocabulary, or None.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: a file is damaged or describes another kind of tokenizer.
    """
    for names in _PAIRS_OF_FILES:
        vocabulary, merges = (path / name for name in names)
        if vocabulary.is_file() and merges.is_file():
            lines = read_lines(merges)
            # XLM's merges.txt is a list of fastBPE.
            counted = bool(lines) and len(lines[0].split(" ")) == 3
            pairs = _read_codes(merges) if counted else read_merges(lines, str(merges))
            return {"vocabulary": read_vocabulary_json(vocabulary), "merges": pairs}
    if (path / JSON_FILE).is_file():
        return _read_tokenizer_json(path / JSON_FILE)
    vocabularies = [file for file in sorted(path.glob("vocab*")) if not file.suffix]
    codes = [file for file in sorted(path.glob("codes*")) if not file.suffix]
    if len(vocabularies) == len(codes) == 1:
        if max_pieces is None:
            model = path / MODEL_CONFIG_FILE
            stated = read_json(model).get("n_words") if model.is_file() else None
            max_pieces = stated or _PUBLISHED_SIZES.get(vocabularies[0].name)
        pieces = _read_fast_bpe_vocabulary(vocabularies[0])[:max_pieces]
        return {"vocabulary": pieces, "merges": _read_codes(codes[0])}
    raise FileNotFoundError(
        f"{path}: found neither {VOCABULARY_JSON} with {MERGES_FILE} nor {JSON_FILE} nor one "
        "vocab… and one codes… of fastBPE, expected them next to the weights"
    )


def _read_fast_bpe_vocabulary(path: Path) -> list[str]:
    """Returns the pieces of a list with counts, in which pieces inside words end in "@@"."""
    pieces = list(_BEFORE_PIECES)
    for number, line in enumerate(read_lines(path), 1):
        piece, _, count = line.rpartition(" ")
        if not piece or not count.isdigit():
            raise ValueError(f"{path}: line {number} is {line[:40]!r}, expected a piece, a count")
        unfinished = piece.endswith(_UNFINISHED)
        pieces.append(piece.removesuffix(_UNFINISHED) if unfinished else piece + END)
    return pieces


def _read_codes(path: Path) -> list[tuple[str, str]]:
    """Returns the merges of fastBPE's list of pairs with counts."""
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split(" ")
        if len(parts) != 3 or not all(parts) or not parts[2].isdigit():
            raise ValueError(
                f"{path}: line {number} is {line[:40]!r}, expected two symbols and a count"
            )
        merges.append((parts[0], parts[1]))
    return merges


def _read_tokenizer_json(path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer.json defines."""
    content = read_json(path)
    model, normalizer = (section(content, name, path) for name in ("model", "normalizer"))
    lower_case = bool(normalizer.get("lowercase", True))
    accents = normalizer.get("strip_accents")
    for what, found, expected in (
        ("model", model.get("type"), "BPE"),
        ("suffix of words", model.get("end_of_word_suffix"), END),
        ("prefix inside words", model.get("continuing_subword_prefix") or None, None),
        ("joining of unknown pieces", bool(model.get("fuse_unk")), False),
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("stripping of accents", lower_case if accents is None else accents, lower_case),
        ("cleaning of text", normalizer.get("clean_text", True), True),
        ("splitting of Chinese", normalizer.get("handle_chinese_chars", True), True),
        ("pre-tokenizer", section(content, "pre_tokenizer", path).get("type"), "BertPreTokenizer"),
    ):
        if found != expected:
            raise ValueError(
                f"{path}: the {what} is {truncated_repr(found)}, expected {expected!r}"
            )
    ids, added = read_ids(content, path)
    special = [token_text(token, path) for token in added]
    unk_token = model.get("unk_token") or "<unk>"
    return {
        "vocabulary": in_order(ids, path),
        "merges": read_merges(read_merge_lines(content, path), str(path)),
        "lower_case": lower_case,
        "unk_token": unk_token,
        "additional_special_tokens": tuple(token for token in special if token != unk_token),
    }
