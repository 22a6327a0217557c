"""Readers and writers of tokenizer files."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertfam_tf import files, parsing
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.text.special_tokens import NO_SPECIAL_TOKENS, ROLES, TOKEN_LISTS, Layout
from bertfam_tf.validation import one_of

CONFIG_FILE = "tokenizer_config.json"
JSON_FILE = "tokenizer.json"
ADDED_FILE = "added_tokens.json"
MODEL_CONFIG_FILE = "config.json"
SPECIAL_FILE = "special_tokens_map.json"
_LEFT = re.compile(rb'"direction"\s*:\s*"Left"')


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a UTF-8 file without their ends, or raises ValueError."""
    # Some vocabularies contain other characters at which ``str.splitlines`` would split.
    lines = parsing.read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


# The types of values in tokenizer_config.json; null is the same as a missing key.
_CONFIG_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        """
        add_eos add_prefix_space clean_text compose do_lower_case do_lowercase_and_remove_accent
        fairseq_ids fast keep_accents lower_case remove_space split_by_punct split_digit_comma
        split_special_tokens
        strip_accents tokenize_chinese_chars trim_offsets unify_quotes unify_spaces
        """.split(),
        bool,
    ),
    **{f"{role}_token": (str, dict) for role in ROLES},
    "added_tokens": list,
    "additional_special_tokens": list,
    "appended_pieces": list,
    "cutoffs": list,
    "language": str,
    "layout": dict,
    "max_input_chars_per_word": int,
    "nonbreaking_prefixes": list,
    "normalized_tokens": list,
    "tokenizer_class": str,
    "truncation_side": str,
}


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Returns the content of a ``tokenizer_config.json``, or raises ValueError for wrong types."""
    config = parsing.read_object(path)
    for name, kind in _CONFIG_TYPES.items():
        value = config.get(name)
        if value is not None and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            expected = " or ".join(_JSON_NAMES[kind] for kind in kinds)
            raise ValueError(f"{path}: {name} is {truncated_repr(value)}, expected {expected}.")
    if config.get("truncation_side") is not None:
        one_of(f"{path}: truncation_side", config["truncation_side"], ("left", "right"))
    return config


_JSON_NAMES = {
    bool: "true or false", str: "a string", dict: "an object", list: "a list", int: "a number",
}  # fmt: skip


def section(content: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Returns an object in a JSON object, {} if it is missing, or raises ValueError."""
    value = content.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{path}: {name} is {truncated_repr(value)}, expected an object.")
    return value or {}


VOCABULARY_JSON, MERGES_FILE = "vocab.json", "merges.txt"


def read_merges(lines: Sequence[str], source: str) -> list[tuple[str, str]]:
    """Returns the pairs of a merges file, best first.

    Args:
        lines: two symbols per line, separated by a space; the first may be "#version: …".
        source: the name of the file, for error messages.

    Raises:
        ValueError: if a line does not have two parts.
    """
    merges = []
    for number, line in enumerate(lines, 1):
        if not line.strip(" ") or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(
                f"{source}: line {number} is {line[:40]!r}, expected two symbols and one space."
            )
        merges.append((parts[0], parts[1]))
    return merges


def vocabulary_and_merges(
    vocabulary: Sequence[str] | str | os.PathLike[str],
    merges: Sequence[Sequence[str]] | str | os.PathLike[str],
) -> tuple[Sequence[str], list[tuple[str, str]], tuple[str, str]]:
    """Returns a vocabulary and merges, read from files where the arguments are paths.

    Returns:
        The pieces in the order of their ids, the pairs, and the names of both for error messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a file is damaged.
    """
    names = ["the vocabulary", "the merges"]
    if isinstance(vocabulary, str | os.PathLike):
        names[0] = os.fspath(vocabulary)
        vocabulary = read_vocabulary_json(Path(vocabulary))
    if isinstance(merges, str | os.PathLike):
        names[1] = os.fspath(merges)
        merges = read_merges(read_lines(Path(merges)), names[1])
    return vocabulary, [(left, right) for left, right in merges], (names[0], names[1])


def write_merges(
    directory: Path,
    ids: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    header: Sequence[str] = ("#version: 0.2",),
) -> None:
    """Writes ``vocab.json``, and ``merges.txt`` with the lines of ``header`` first."""
    vocabulary = json.dumps(ids, ensure_ascii=False) + "\n"
    files.write(directory / VOCABULARY_JSON, vocabulary)
    lines = [*header, *(f"{left} {right}" for left, right in merges)]
    files.write(directory / MERGES_FILE, "".join(f"{line}\n" for line in lines))


Load = TypeVar("Load", bound=Callable[..., Any])


def errors_name_files(load: Load) -> Load:
    """Decorates a tokenizer's ``load`` to raise any failure caused by the files as ValueError."""

    @functools.wraps(load)
    def wrapper(cls: Any, directory: str | os.PathLike[str], **options: Any) -> Any:
        try:
            return load(cls, directory, **options)
        except (ValueError, FileNotFoundError):
            raise
        except Exception as error:  # of any type, raised by Python or the kernels
            raise ValueError(
                f"{directory}: cannot load a {cls.__name__} from its files "
                f"({type(error).__name__}: {truncated(error)}); they may be damaged or belong to "
                "another tokenizer."
            ) from error

    return wrapper  # type: ignore[return-value]


def missing_files(folder: Path, *names: str) -> FileNotFoundError:
    """Returns the error for a directory that has none of these files."""
    return FileNotFoundError(
        f"{folder}: found neither {' nor '.join(names)}, expected one of them next to the weights."
    )


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON object, indented, in UTF-8."""
    files.write(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def token_text(token: Any, path: Path) -> str:
    """Returns the text of a special token, stored as a string or as an object with settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"{path}: special token {truncated_repr(token)}, expected a string.")
    return text


def read_vocabulary_json(path: Path) -> list[str]:
    """Returns the pieces of a ``vocab.json`` in the order of their ids, or raises ValueError."""
    return in_order(parsing.read_object(path), path)


def in_order(ids: dict[str, int], source: str | Path) -> list[str]:
    """Returns pieces in the order of their ids, or raises ValueError if an id is missing."""
    odd = next((value for value in ids.values() if type(value) is not int), None)
    if odd is not None:
        raise ValueError(
            f"{source}: a piece has {truncated_repr(odd)}, expected a number as its id."
        )
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(
            f"{source}: the ids of {len(pieces)} pieces are not 0 to {len(pieces) - 1}."
        )
    return pieces


def index_of_pieces(
    pieces: Sequence[str], source: str, unk_token: str | None = None
) -> dict[str, int]:
    """Returns the ids of pieces, or raises ValueError for an invalid vocabulary."""
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not isinstance(piece, str):
            raise ValueError(
                f"{source}: piece {index} is {truncated_repr(piece)}, expected a string."
            )
        if not piece:
            raise ValueError(
                f"{source}: line {index + 1} is blank, expected one piece per line (each line "
                "is an id, so none can be skipped)."
            )
        if piece in ids:
            raise ValueError(
                f"{source}: line {index + 1} repeats {truncated_repr(piece)} of line "
                f"{ids[piece] + 1}, expected each piece once."
            )
        ids[piece] = index
    if unk_token is not None and unk_token not in ids:
        raise ValueError(
            f"{source}: found {len(pieces)} pieces but no {unk_token!r}, expected the piece for "
            "unknown words among them."
        )
    return ids


def check_added_tokens(folder: Path, ids: Mapping[str, int]) -> None:
    """Raises ValueError if the vocabulary lacks tokens of ``added_tokens.json``."""
    file = folder / ADDED_FILE
    added = parsing.read_object(file) if file.is_file() else {}
    lost = [token for token, index in added.items() if ids.get(token) != index]
    if lost:
        raise ValueError(
            f"{file}: {truncated_repr(lost[0])} and {len(lost) - 1} more tokens are not in the "
            f"vocabulary; expected a {JSON_FILE} that has them."
        )


def read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns special tokens that only ``special_tokens_map.json`` has, as the config's entries.

    Versions of transformers before 4.34 stored there alone what was changed after loading.

    Args:
        folder: the directory.
        config: the content of its ``tokenizer_config.json``.

    Raises:
        ValueError: if the file is damaged.
    """
    file = folder / SPECIAL_FILE
    if not file.is_file() or not {"added_tokens_decoder", "layout"}.isdisjoint(config):
        return {}
    names = [f"{role}_token" for role in ROLES if role != "unk"]
    tokens = parsing.read_object(file)
    found = {name: tokens[name] for name in names if config.get(name) is None and tokens.get(name)}
    for token in found.values():
        token_text(token, file)
    return found


def truncates_left(folder: Path, config: Mapping[str, Any]) -> bool:
    """Returns whether texts that are too long lose their beginnings.

    Args:
        folder: the directory, whose ``tokenizer.json`` counts if the config has no side.
        config: the content of its ``tokenizer_config.json``.

    Raises:
        ValueError: if the file is damaged.
    """
    side, file = config.get("truncation_side"), folder / JSON_FILE
    # Vocabularies are large, and most files have no such truncation.
    if side is None and file.is_file() and _LEFT.search(parsing.read_bytes(file)):
        return section(parsing.read_object(file), "truncation", file).get("direction") == "Left"
    return side == "left"


def stated_special_tokens(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the special tokens and layout in a ``tokenizer_config.json``.

    Args:
        config: its content.
        path: the file.

    Returns:
        Fields of ``SpecialTokens``, and ``layout``.

    Raises:
        ValueError: if a special token or the layout is invalid.
    """
    roles = {f"{role}_token": config.get(f"{role}_token") for role in ROLES}
    present = {name: token for name, token in roles.items() if token is not None}
    lists = {name: config.get(name) or [] for name in TOKEN_LISTS if name != "lstrip_tokens"}
    stated: dict[str, Any] = {name: token_text(token, path) for name, token in present.items()}
    for name, tokens in lists.items():
        if tokens:
            stated[name] = tuple(token_text(token, path) for token in tokens)
    lstrip = dict.fromkeys(
        token["content"]
        for token in itertools.chain(present.values(), *lists.values())
        if isinstance(token, dict) and token.get("lstrip")
    )
    if lstrip:
        stated["lstrip_tokens"] = tuple(lstrip)
    if "split_special_tokens" in config:
        stated["special_tokens_in_text"] = not config["split_special_tokens"]
    if config.get("layout") is not None:
        # Our own files have all tokens: one that is missing does not exist, whatever is usual.
        stated = dataclasses.asdict(NO_SPECIAL_TOKENS) | stated
        try:
            stated["layout"] = Layout(**config["layout"])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: layout {truncated_repr(config['layout'])}: {error}"
            ) from error
    return stated
