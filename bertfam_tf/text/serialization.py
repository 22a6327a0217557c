"""Tokenizers inside of configs: the files that ``Tokenizer.save`` writes, as strings."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.loading import load_tokenizer
from bertfam_tf.text.tokenizers.base import Tokenizer

_BINARY = "data:;base64,"
_LONGEST_NAME = 100


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the tokenizer's files by name: their text, or a data URL if they are not UTF-8."""
    with TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return {file.name: _as_string(file.read_bytes()) for file in sorted(Path(folder).iterdir())}


def tokenizer_from_files(files: Mapping[str, str]) -> Tokenizer:
    """Returns the tokenizer of ``tokenizer_files``.

    Raises:
        ValueError: for names that no file in a directory has, or other values.
        CheckpointError: as ``load_tokenizer`` raises it.
    """
    if not isinstance(files, Mapping):
        raise ValueError(
            f"A tokenizer must be a dict of its files' texts, got {truncated_repr(files)}."
        )
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            if Path(name).name != name or name in ("", "..") or len(name) > _LONGEST_NAME:
                raise ValueError(f"A tokenizer's file has the name {truncated_repr(name)}.")
            if not isinstance(content, str):
                raise ValueError(
                    f"A tokenizer's file {name} must be a string, got {truncated_repr(content)}."
                )
            (Path(folder) / name).write_bytes(_as_bytes(content))
        return load_tokenizer(folder)


def _as_string(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = _BINARY
    if text.startswith(_BINARY):
        return _BINARY + base64.b64encode(content).decode("ascii")
    return text


def _as_bytes(content: str) -> bytes:
    if content.startswith(_BINARY):
        return base64.b64decode(content.removeprefix(_BINARY), validate=True)
    return content.encode("utf-8")
