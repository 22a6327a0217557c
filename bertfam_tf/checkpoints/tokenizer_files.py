"""Copies a checkpoint's tokenizer files, under Hugging Face's names."""

import json
import shutil
from pathlib import Path

from bertfam_tf import parsing
from bertfam_tf.checkpoints import hub_presets
from bertfam_tf.sources import CheckpointError

_NAMES = (
    "vocab.txt",
    "vocab.pkl",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def copy(source: Path, target: Path, max_length: int | None = None) -> None:
    """Copies the tokenizer's files in ``source`` into ``target``.

    Args:
        source: the directory of a checkpoint.
        target: an existing directory.
        max_length: the number of tokens to which a KerasHub preset truncates texts; None for any.

    Raises:
        CheckpointError: if a KerasHub tokenizer is unknown or damaged.
    """
    preset = hub_presets.tokenizer(source)
    if preset is not None:
        by_name, options = preset
        for name, file in by_name.items():
            shutil.copyfile(file, target / name)
        length = {} if max_length is None else {"model_max_length": max_length}
        _write_config(target, options | length)
        return
    for name in _NAMES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (target / "vocab.txt").is_file():
        _infer_lower_case(source, target)
    models = sorted(file for file in source.glob("*.model") if file.is_file())
    if len(models) == 1 and models[0].name not in _NAMES:  # as in ALBERT's archives
        shutil.copyfile(models[0], target / "spiece.model")


def _infer_lower_case(source: Path, target: Path) -> None:
    """Infers from the vocabulary whether text is lower-cased, which TF1 archives do not store."""
    if (target / "tokenizer_config.json").exists() or (target / "tokenizer.json").exists():
        return
    pieces = parsing.read_text(source / "vocab.txt", CheckpointError).split("\n")
    cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    _write_config(target, {"do_lower_case": not cased})


def _write_config(target: Path, options: dict) -> None:
    text = json.dumps(options, indent=2) + "\n"
    (target / "tokenizer_config.json").write_text(text, "utf-8")
