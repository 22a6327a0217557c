"""Readers of the files that published tokenizers come in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertfam_tf import files
from bertfam_tf.text.packing import ROLES, Layout

CONFIG_FILE = "tokenizer_config.json"
JSON_FILE = "tokenizer.json"
# By the `model_type` in config.json, the published class that usually goes with it.
CLASS_OF_MODEL = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "xlm": "XLMTokenizer",
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "transfo-xl": "TransfoXLTokenizer",
}


def read_text(path: Path) -> str:
    """Returns a UTF-8 file's text without its byte order mark, or raises ValueError."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: line {line} holds the byte 0x{data[error.start]:02x}, expected UTF-8"
        ) from error


def read_lines(path: Path) -> list[str]:
    """Returns a UTF-8 file's lines without their ends, or raises ValueError."""
    # Only "\n" ends a line: some vocabularies hold other characters that Python counts as ends.
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def stream_lines(path: Path) -> Iterator[str]:
    """Yields a UTF-8 file's lines without their ends, one by one, or raises ValueError."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}: line {number} holds the byte 0x{data[error.start]:02x}, "
                    "expected UTF-8"
                ) from error
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield line.removesuffix("\n").removesuffix("\r")


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, or raises ValueError."""
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON in UTF-8 ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: found a {type(content).__name__}, expected a JSON object")
    return content


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8, whole or not at all, with line ends as they are in `text`."""
    files.write(path, text)


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON object, indented, in UTF-8."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def token_text(token: Any, path: Path) -> str:
    """Returns the text of a special token, stored plainly or with its settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"{path}: special token {token!r}, expected a string")
    return text


def read_vocabulary_json(path: Path) -> list[str]:
    """Returns the pieces of a `vocab.json` in the order of their ids, or raises ValueError."""
    return in_order(read_json(path), path)


def in_order(ids: dict[str, int], source: str | Path) -> list[str]:
    """Returns the pieces of a map to ids in their order, or raises ValueError for gaps."""
    try:
        pieces = sorted(ids, key=lambda piece: ids[piece])
    except TypeError as error:
        raise ValueError(f"{source}: expected each piece with a number ({error})") from error
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(
            f"{source}: the ids of {len(pieces)} pieces are not 0 to {len(pieces) - 1}"
        )
    return pieces


def index_of_pieces(
    pieces: Sequence[str], source: str, unk_token: str | None = None
) -> dict[str, int]:
    """Returns the ids of the pieces, or raises ValueError for a vocabulary that cannot be used."""
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not isinstance(piece, str):
            raise ValueError(f"{source}: piece {index} is {piece!r}, expected a string")
        if not piece:
            raise ValueError(
                f"{source}: line {index + 1} is blank, expected one piece a line (each line is "
                "an id, so none can be skipped)"
            )
        if piece in ids:
            raise ValueError(
                f"{source}: line {index + 1} repeats {piece!r} of line {ids[piece] + 1}, "
                "expected each piece once"
            )
        ids[piece] = index
    if unk_token is not None and unk_token not in ids:
        raise ValueError(
            f"{source}: found {len(pieces)} pieces but no {unk_token!r}, expected the piece for "
            "unknown words among them"
        )
    return ids


def stated_special_tokens(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments about special tokens in a tokenizer_config.json."""
    roles = {f"{role}_token": config.get(f"{role}_token") for role in ROLES}
    named = {name: token for name, token in roles.items() if token is not None}
    additional = config.get("additional_special_tokens") or []
    stated: dict[str, Any] = {name: token_text(token, path) for name, token in named.items()}
    if additional:
        stated["additional_special_tokens"] = tuple(token_text(each, path) for each in additional)
    lstrip = [
        token["content"]
        for token in (*named.values(), *additional)
        if isinstance(token, dict) and token.get("lstrip")
    ]
    if lstrip:
        stated["lstrip_tokens"] = tuple(lstrip)
    if "split_special_tokens" in config:
        stated["special_tokens_in_text"] = not config["split_special_tokens"]
    if "layout" in config:
        try:
            layout = Layout(**config["layout"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: layout {config['layout']!r}: {error}") from error
        stated["layout"] = layout
    return stated
