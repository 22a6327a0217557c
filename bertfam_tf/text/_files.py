"""Readers of the files that published tokenizers come in."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertfam_tf import files, parsing
from bertfam_tf.names import short, shown
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


def read_lines(path: Path) -> list[str]:
    """Returns a UTF-8 file's lines without their ends, or raises ValueError."""
    # Only "\n" ends a line: some vocabularies hold other characters that Python counts as ends.
    lines = parsing.read_text(path).split("\n")
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
    content = parsing.read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: found a {type(content).__name__}, expected a JSON object")
    return content


# What a tokenizer_config.json may say under these keys; null is what leaving the key out is.
_CONFIG_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        """
        add_eos add_prefix_space clean_text do_lower_case do_lowercase_and_remove_accent fairseq_ids
        keep_accents lower_case remove_space split_digit_comma split_special_tokens strip_accents
        tokenize_chinese_chars trim_offsets unify_quotes unify_spaces
        """.split(),
        bool,
    ),
    **{f"{role}_token": (str, dict) for role in ROLES},
    "additional_special_tokens": list,
    "cutoffs": list,
    "language": str,
    "layout": dict,
    "max_input_chars_per_word": int,
    "nonbreaking_prefixes": list,
    "tokenizer_class": str,
}


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Returns what a `tokenizer_config.json` says, or raises ValueError for values of other types
    than the published files have."""
    config = read_json(path)
    for name, kind in _CONFIG_TYPES.items():
        value = config.get(name)
        if value is not None and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            expected = " or ".join(_JSON_NAMES[each] for each in kinds)
            raise ValueError(f"{path}: {name} is {shown(value)}, expected {expected}")
    return config


_JSON_NAMES = {
    bool: "true or false", str: "a string", dict: "an object", list: "a list", int: "a number",
}  # fmt: skip


def section(content: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Returns an object in a JSON object, empty if there is none, or raises ValueError."""
    value = content.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{path}: {name} is {shown(value)}, expected an object")
    return value or {}


def read_ids(content: dict[str, Any], path: Path) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Returns the ids of the pieces of a `tokenizer.json`, those of added tokens among them, and
    these tokens, or raises ValueError."""
    ids = dict(section(section(content, "model", path), "vocab", path))
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError(f"{path}: added_tokens is {shown(added)}, expected a list of objects")
    for token in added:
        text, number = token_text(token, path), token.get("id")
        if ids.setdefault(text, number) != number:
            raise ValueError(f"{path}: {text!r} has the ids {shown(ids[text])} and {shown(number)}")
    return ids, added


def read_merge_lines(content: dict[str, Any], path: Path) -> list[str]:
    """Returns the merges of a `tokenizer.json`, with a space between two parts, or raises
    ValueError."""
    merges = section(content, "model", path).get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"{path}: merges is {shown(merges)}, expected a list")
    lines = []
    for number, pair in enumerate(merges):
        parts = [pair] if isinstance(pair, str) else pair
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{path}: merge {number} is {shown(pair)}, expected two strings")
        lines.append(" ".join(parts))
    return lines


Load = TypeVar("Load", bound=Callable[..., Any])


def naming_files(load: Load) -> Load:
    """A tokenizer's `load`, for which files that say what makes no sense are a ValueError too."""

    @functools.wraps(load)
    def guarded(cls: Any, directory: str | os.PathLike[str], **options: Any) -> Any:
        try:
            return load(cls, directory, **options)
        except (ValueError, FileNotFoundError):
            raise
        except Exception as error:  # Python's, and those of the kernels that are made of the files
            raise ValueError(
                f"{directory}: its files describe no {cls.__name__} ({type(error).__name__}: "
                f"{short(error)}); they may be damaged, or of another tokenizer"
            ) from error

    return guarded  # type: ignore[return-value]


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
        raise ValueError(f"{path}: special token {shown(token)}, expected a string")
    return text


def read_vocabulary_json(path: Path) -> list[str]:
    """Returns the pieces of a `vocab.json` in the order of their ids, or raises ValueError."""
    return in_order(read_json(path), path)


def in_order(ids: dict[str, int], source: str | Path) -> list[str]:
    """Returns the pieces of a map to ids in their order, or raises ValueError for gaps."""
    odd = next((each for each in ids.values() if type(each) is not int), None)
    if odd is not None:
        raise ValueError(f"{source}: a piece has {shown(odd)}, expected each with a number")
    pieces = sorted(ids, key=lambda piece: ids[piece])
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
            raise ValueError(f"{source}: piece {index} is {shown(piece)}, expected a string")
        if not piece:
            raise ValueError(
                f"{source}: line {index + 1} is blank, expected one piece a line (each line is "
                "an id, so none can be skipped)"
            )
        if piece in ids:
            raise ValueError(
                f"{source}: line {index + 1} repeats {shown(piece)} of line {ids[piece] + 1}, "
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
    if config.get("layout") is not None:
        try:
            layout = Layout(**config["layout"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: layout {shown(config['layout'])}: {error}") from error
        stated["layout"] = layout
    return stated
