"""Which tokenizer a checkpoint's directory holds."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bertfam_tf.names import shown
from bertfam_tf.sources import CheckpointError, resolve
from bertfam_tf.text._files import (
    CLASS_OF_MODEL,
    CONFIG_FILE,
    JSON_FILE,
    read_json,
    read_lines,
    section,
)
from bertfam_tf.text.tokenizer import Tokenizer

_MODEL_FILE = "config.json"


class Format(NamedTuple):
    """How a published class of tokenizers is loaded.

    Fields:
        module: the module of `bertfam_tf.text`.
        name: the class in it.
        options: arguments of its `load`, for what the class fixes and its files do not say.
    """

    module: str
    name: str
    options: Mapping[str, Any] = {}


_WORD_PIECE = Format("wordpiece", "WordPieceTokenizer")
_BYTE_BPE = Format("byte_bpe", "ByteBPETokenizer")
_BPE = Format("bpe", "BPETokenizer")
_SENTENCE_PIECE = Format("sentencepiece", "SentencePieceTokenizer")
_WORDS = Format("words", "WordTokenizer")

# By the class that `tokenizer_config.json` names; each also with "Fast" behind it.
FORMATS = {
    "BertTokenizer": _WORD_PIECE,
    "DistilBertTokenizer": _WORD_PIECE,
    "ElectraTokenizer": _WORD_PIECE,
    "MobileBertTokenizer": _WORD_PIECE,
    "RobertaTokenizer": _BYTE_BPE,
    "GPT2Tokenizer": _BYTE_BPE,
    "OpenAIGPTTokenizer": _BPE,
    "XLMTokenizer": _BPE,
    "AlbertTokenizer": _SENTENCE_PIECE._replace(options={"preset": "AlbertTokenizer"}),
    "XLNetTokenizer": _SENTENCE_PIECE._replace(options={"preset": "XLNetTokenizer"}),
    "XLMRobertaTokenizer": _SENTENCE_PIECE._replace(options={"preset": "XLMRobertaTokenizer"}),
    "TransfoXLTokenizer": _WORDS,
    # SentencePiece alone, which no published class is.
    "SentencePieceTokenizer": _SENTENCE_PIECE,
}
# Classes that read whatever a tokenizer.json describes, and so say nothing.
_ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend")


def load_tokenizer(path: str | Path, **options: Any) -> Tokenizer:
    """The tokenizer stored with a checkpoint, whichever of the supported kinds it is.

    What kind is said by ``tokenizer_class`` in tokenizer_config.json; else by ``tokenizer_class``
    or ``model_type`` in config.json; else by the files that are there.

    Args:
        path: a directory, ``package:NAME``, or a hub id.
        **options: keyword arguments of the tokenizer, which go before what the files say.

    Raises:
        CheckpointError: when there is no such checkpoint, or its tokenizer files are missing,
            damaged or of a kind that is not supported.
    """
    directory = resolve(path)
    try:
        chosen = find_format(directory)
        try:
            return _load(chosen, directory, options)
        except FileNotFoundError:
            # Some models were trained with another tokenizer than is usual for theirs.
            other = None if _stated_class(directory) else _file_format(directory)
            if other is None or other.module == chosen.module:
                raise
            return _load(other, directory, options)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"The tokenizer of {directory}: {error}") from error


def _load(chosen: Format, directory: Path, options: dict[str, Any]) -> Tokenizer:
    kind = getattr(import_module(f"bertfam_tf.text.{chosen.module}"), chosen.name)
    return kind.load(directory, **_unstated(chosen.options, directory) | options)


def find_format(directory: Path) -> Format:
    """Returns how the tokenizer in a directory is loaded.

    Raises:
        FileNotFoundError: the directory has no file that tells.
        ValueError: a file names a class or model that is not supported, or is damaged.
    """
    stated = _stated_class(directory)
    if stated:
        return _by_class(*stated)
    anything = any(_classes(directory).values())
    file = directory / _MODEL_FILE
    model = read_json(file).get("model_type") if file.is_file() else None
    if model is not None and not isinstance(model, str):
        raise ValueError(f"{file}: model_type is {shown(model)}, expected a string")
    if model in CLASS_OF_MODEL:
        return _by_class(CLASS_OF_MODEL[model], directory / _MODEL_FILE)
    if anything or model is None:
        return _by_files(directory)
    raise ValueError(
        f"{directory / _MODEL_FILE}: no tokenizer is known for the model_type {shown(model)}, "
        f"expected one of {', '.join(CLASS_OF_MODEL)}, or a tokenizer_class in {CONFIG_FILE}"
    )


def _classes(directory: Path) -> dict[Path, str]:
    """What each file that is there says of the class."""
    files = [directory / name for name in (CONFIG_FILE, _MODEL_FILE)]
    said = {file: read_json(file).get("tokenizer_class") for file in files if file.is_file()}
    return {file: str(name or "").removesuffix("Fast") for file, name in said.items()}


def _stated_class(directory: Path) -> tuple[str, Path] | None:
    """The class that the files name, and the file that does."""
    for file, name in _classes(directory).items():
        if name and name not in _ANY_CLASS:
            return name, file
    return None


def _by_class(name: str, source: Path) -> Format:
    if name not in FORMATS:
        raise ValueError(
            f"{source}: the tokenizer_class {shown(name)} is not supported, "
            f"expected one of {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def _by_files(directory: Path) -> Format:
    found = _file_format(directory)
    if found:
        return found
    raise FileNotFoundError(
        f"{directory}: found no tokenizer, expected {CONFIG_FILE} or {_MODEL_FILE} that names its "
        f"kind, or one of vocab.txt, vocab.json with merges.txt, {JSON_FILE}, *.model, *.bpe, "
        "codes*, vocab.pkl"
    )


def _file_format(directory: Path) -> Format | None:
    def has(*names: str) -> bool:
        return all((directory / name).is_file() for name in names)

    if has("vocab.txt"):
        return _WORD_PIECE
    if has("vocab.json", "merges.txt"):
        # Some lists have a third column, of counts.
        pairs = (line.split(" ")[:2] for line in read_lines(directory / "merges.txt"))
        ends = any(pair[-1].endswith("</w>") for pair in pairs)
        return _BPE if ends else _BYTE_BPE
    if has(JSON_FILE):
        return _by_tokenizer_json(directory / JSON_FILE)
    if any(directory.glob("*.model")):
        return _SENTENCE_PIECE
    # As OpenAI and fastBPE name them.
    if any(directory.glob("*.bpe")) or any(directory.glob("codes*")):
        return _BPE
    return _WORDS if has("vocab.pkl") else None


def _by_tokenizer_json(path: Path) -> Format:
    content = read_json(path)
    model = section(content, "model", path)
    # Early files state no type.
    kind = model.get("type")
    if kind == "WordPiece" or (kind is None and "continuing_subword_prefix" in model):
        return _WORD_PIECE
    if kind == "Unigram":
        return _SENTENCE_PIECE
    if kind == "BPE" and model.get("end_of_word_suffix"):
        return _BPE
    if kind == "BPE" and "ByteLevel" in str(content.get("pre_tokenizer")):
        return _BYTE_BPE
    raise ValueError(
        f"{path}: the model is {shown(kind)}, expected WordPiece, Unigram, or BPE that is "
        "byte-level or marks the ends of words"
    )


def _unstated(options: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Returns the options that tokenizer_config.json does not state under the same name."""
    path = directory / CONFIG_FILE
    stated = read_json(path) if path.is_file() else {}
    return {name: value for name, value in options.items() if name not in stated}
