"""The files of byte-pair encodings with marked word ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertfam_tf.parsing import read_object
from bertfam_tf.text.files import (
    ADDED_FILE,
    JSON_FILE,
    MERGES_FILE,
    MODEL_CONFIG_FILE,
    VOCABULARY_JSON,
    missing_files,
    read_lines,
    read_merges,
    read_vocabulary_json,
)
from bertfam_tf.text.tokenizer_json import Pipeline, read

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
    """Returns the arguments of ``BPETokenizer`` that the files in a directory define.

    Args:
        path: the directory.
        max_pieces: the maximum number of pieces of a fastBPE vocabulary, or None.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged or describes another kind of tokenizer.
    """
    whole = path / JSON_FILE
    # The library's file has the tokens that were added; these lists never have them.
    if whole.is_file() and (path / ADDED_FILE).is_file():
        return _of_pipeline(read(whole, "BPE"))
    for names in _PAIRS_OF_FILES:
        vocabulary, merges = (path / name for name in names)
        if vocabulary.is_file() and merges.is_file():
            lines = read_lines(merges)
            # XLM's merges.txt is a list of fastBPE.
            counted = bool(lines) and len(lines[0].split(" ")) == 3
            pairs = _read_codes(merges) if counted else read_merges(lines, str(merges))
            return {"vocabulary": read_vocabulary_json(vocabulary), "merges": pairs}
    if whole.is_file():
        return _of_pipeline(read(whole, "BPE"))
    vocabularies = [file for file in sorted(path.glob("vocab*")) if not file.suffix]
    codes = [file for file in sorted(path.glob("codes*")) if not file.suffix]
    if len(vocabularies) == len(codes) == 1:
        if max_pieces is None:
            model = path / MODEL_CONFIG_FILE
            stated = read_object(model).get("n_words") if model.is_file() else None
            max_pieces = stated or _PUBLISHED_SIZES.get(vocabularies[0].name)
        pieces = _read_fast_bpe_vocabulary(vocabularies[0])[:max_pieces]
        return {"vocabulary": pieces, "merges": _read_codes(codes[0])}
    both = f"{VOCABULARY_JSON} with {MERGES_FILE}"
    raise missing_files(path, both, JSON_FILE, "one vocab… and one codes… of fastBPE")


def _read_fast_bpe_vocabulary(path: Path) -> list[str]:
    """Returns the pieces of a list with counts, in which pieces inside words end in "@@"."""
    pieces = list(_BEFORE_PIECES)
    for number, line in enumerate(read_lines(path), 1):
        piece, _, count = line.rpartition(" ")
        if not piece or not count.isdigit():
            raise ValueError(f"{path}: line {number} is {line[:40]!r}, expected a piece, a count.")
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
                f"{path}: line {number} is {line[:40]!r}, expected two symbols and a count."
            )
        merges.append((parts[0], parts[1]))
    return merges


def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer.json defines."""
    check_merging(pipeline, END)
    pipeline.expect("unknown piece", pipeline.model["unk_token"] is None, False)
    rules = pipeline.bert_rules()
    pipeline.expect("stripping of accents", rules["strip_accents"], rules["lower_case"], None)
    pipeline.expect("cleaning of text", rules["clean_text"], True)
    pipeline.expect("splitting of Chinese", rules["split_chinese"], True)
    pipeline.splitter("BertPreTokenizer")
    pipeline.without_normalized_tokens()
    return {
        **pipeline.arguments(),
        "merges": pipeline.merges(),
        "lower_case": rules["lower_case"],
        "fast": True,
    }


def check_merging(pipeline: Pipeline, suffix: str) -> None:
    """Raises ValueError for options of a BPE model other than plain merges with a suffix."""
    model = pipeline.model
    for what, actual, expected in (
        ("suffix of words", model["end_of_word_suffix"] or "", suffix),
        ("prefix inside words", model["continuing_subword_prefix"] or "", ""),
        ("dropout of merges", model["dropout"] or 0, 0),
        ("joining of unknown pieces", model["fuse_unk"] and bool(suffix), False),
        ("byte fallback", model["byte_fallback"], False),
        ("ignoring of merges", model["ignore_merges"], False),
    ):
        pipeline.expect(what, actual, expected)
