"""Determines the kind of a checkpoint's tokenizer, and loads it."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertfam_tf import registry
from bertfam_tf.checkpoints import hub_presets
from bertfam_tf.names import truncated_repr
from bertfam_tf.parsing import read_object
from bertfam_tf.sources import DESCRIPTION, TOKENIZER, CheckpointError, opened, resolve
from bertfam_tf.text import presets
from bertfam_tf.text.files import (
    ADDED_FILE,
    CONFIG_FILE,
    JSON_FILE,
    MODEL_CONFIG_FILE,
    read_lines,
    section,
)
from bertfam_tf.text.tokenizer_json import kind_of
from bertfam_tf.text.tokenizers.base import Tokenizer

# Class names by the ``kind`` of a ``TokenizerSpec``, which is also the name of the module.
CLASSES = {
    "wordpiece": "WordPieceTokenizer",
    "byte_bpe": "ByteBPETokenizer",
    "bpe": "BPETokenizer",
    "sentencepiece": "SentencePieceTokenizer",
    "unigram": "UnigramTokenizer",
    "words": "WordTokenizer",
    "characters": "CharacterTokenizer",
}


def load_tokenizer(path: Any, **options: Any) -> Tokenizer:
    """Loads the tokenizer of a checkpoint.

    Its kind is determined by tokenizer.json if that is the only vocabulary file, or the only one
    with the tokens of added_tokens.json; otherwise by ``tokenizer_class`` in tokenizer_config.json,
    otherwise by ``tokenizer_class`` or ``model_type`` in config.json, otherwise by which files are
    present.

    Args:
        path: a directory, such as one that ``Task.save`` wrote, ``package:NAME``, a hub id, the
            name or handle of a KerasHub preset; or a tokenizer or task of KerasHub.
        **options: arguments of the tokenizer, or fields of ``SpecialTokens``, which take precedence
            over the files.

    Raises:
        CheckpointError: if there is no such checkpoint, or its tokenizer files are missing, damaged
            or of a kind that is not supported.
        TypeError: for an argument that the tokenizer does not have.
    """
    with opened(path) as source:
        return _load(resolve(source), **options)


def _load(directory: Path, **options: Any) -> Tokenizer:
    if (directory / DESCRIPTION).is_file() and (directory / TOKENIZER).is_dir():
        directory /= TOKENIZER
    preset = hub_presets.tokenizer(directory)
    if preset is not None:
        return _load_preset(directory, *preset, **options)
    try:
        kind = find_kind(directory)
        try:
            return tokenizer_class(kind).load(directory, **options)
        except FileNotFoundError:
            # Some models were trained with another tokenizer than their family's.
            other = None if presets.named_class(directory) else _kind_of_files(directory)
            if other is None or other == kind:
                raise
            return tokenizer_class(other).load(directory, **options)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"The tokenizer of {directory}: {error}") from error


def _load_preset(
    directory: Path, files: dict[str, Path], config: dict[str, Any], **options: Any
) -> Tokenizer:
    """Loads the tokenizer of a KerasHub preset from its files by Hugging Face's names."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, file in files.items():
            shutil.copyfile(file, folder / name)
        (folder / CONFIG_FILE).write_text(json.dumps(config), "utf-8")
        try:
            return tokenizer_class(find_kind(folder)).load(folder, **options)
        except (ValueError, OSError) as error:
            message = str(error).replace(str(folder), str(directory))
            raise CheckpointError(f"The tokenizer of {directory}: {message}") from error


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Returns the class of tokenizers of a kind, one of ``CLASSES``."""
    return getattr(import_module(f"bertfam_tf.text.tokenizers.{kind}"), CLASSES[kind])


def find_kind(directory: Path) -> str:
    """Returns the kind of the tokenizer in a directory, one of ``CLASSES``.

    Raises:
        FileNotFoundError: if there are no files that determine the kind.
        ValueError: if a file names a class or model that is not supported, or is damaged.
    """
    if _only_json(directory) or _has_more_tokens(directory):
        return kind_of(directory / JSON_FILE)
    stated = presets.named_class(directory)
    if stated:
        return _kind_of_class(*stated)
    model = presets.stated_model(directory)
    family = registry.of_model_type(model)
    if family is not None:
        return family.tokenizer.kind
    if model is None or any(presets.stated_classes(directory).values()):
        kind = _kind_of_files(directory)
        if kind:
            return kind
        raise FileNotFoundError(
            f"{directory}: found no tokenizer, expected {CONFIG_FILE} or {MODEL_CONFIG_FILE} that "
            f"names its kind, or one of vocab.txt, vocab.json with merges.txt, {JSON_FILE}, "
            "*.model, *.bpe, codes*, vocab.pkl, *options.json."
        )
    formats = [family.huggingface for family in registry.all_families()]
    known = sorted({spec.model_type for spec in formats if spec is not None})
    raise ValueError(
        f"{directory / MODEL_CONFIG_FILE}: no tokenizer is known for the model_type "
        f"{truncated_repr(model)}, expected one of {', '.join(known)}, or a tokenizer_class "
        f"in {CONFIG_FILE}."
    )


def _only_json(directory: Path) -> bool:
    """Returns whether a tokenizer.json is the only vocabulary file."""
    patterns = ("vocab*", "*.model", "*.bpe", "codes*")
    others = (file for pattern in patterns for file in directory.glob(pattern))
    return (directory / JSON_FILE).is_file() and not any(file.is_file() for file in others)


def _has_more_tokens(directory: Path) -> bool:
    """Returns whether tokens were added that tokenizer.json has beyond its model's vocabulary."""
    files = directory / ADDED_FILE, directory / JSON_FILE
    if not all(file.is_file() for file in files):
        return False
    added, content = map(read_object, files)
    pieces = section(content, "model", files[1]).get("vocab")
    size = len(pieces) if isinstance(pieces, list | dict) else 0
    # DeBERTa's SentencePiece models never have the mask.
    usual = {
        piece
        for spec in presets.specs("sentencepiece").values()
        for piece in spec.options.get("appended_pieces", ())
    }
    return any(type(i) is int and i >= size for token, i in added.items() if token not in usual)


def _kind_of_class(name: str, source: Path) -> str:
    known = {name: spec.kind for name, spec in presets.specs().items()}
    known |= {own: kind for kind, own in CLASSES.items()}
    if name not in known:
        raise ValueError(
            f"{source}: the tokenizer_class {truncated_repr(name)} is not supported, "
            f"expected one of {', '.join(known)}."
        )
    return known[name]


def _kind_of_files(directory: Path) -> str | None:
    def has(*names: str) -> bool:
        return all((directory / name).is_file() for name in names)

    if has("vocab.txt"):
        return "wordpiece"
    if has("vocab.json", "merges.txt"):
        # Some lists have counts in a third column.
        pairs = (line.split(" ")[:2] for line in read_lines(directory / "merges.txt"))
        ends = any(pair[-1].endswith("</w>") for pair in pairs)
        return "bpe" if ends else "byte_bpe"
    if has(JSON_FILE):
        return kind_of(directory / JSON_FILE)
    if any(directory.glob("*.model")):
        return "sentencepiece"
    # The names of OpenAI and fastBPE.
    if any(directory.glob("*.bpe")) or any(directory.glob("codes*")):
        return "bpe"
    if has("vocab.pkl"):
        return "words"
    # AllenNLP's files of a model that reads characters.
    return "characters" if any(directory.glob("*options.json")) else None
