"""JSON files of sentence-transformers' modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.names import truncated_repr

LIBRARY = "sentence_transformers."


def listed(file: Path) -> list[tuple[str, Path]]:
    """The kind and folder of each module that ``modules.json`` lists."""
    modules = parsing.read_json(file, CheckpointError)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict)
        and isinstance(module.get("type"), str)
        and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise CheckpointError(
            f"{file} is not sentence-transformers' list of modules, each with type, path."
        )
    entries = []
    for module in modules:
        path = PurePosixPath(module["path"].replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in module["path"]:
            raise CheckpointError(
                f"{file} names the path {truncated_repr(module['path'])}, outside of it."
            )
        if not module["type"].startswith(LIBRARY):
            raise CheckpointError(
                f"{file} has the module {truncated_repr(module['type'])}, which is code outside of "
                "sentence-transformers and is not run."
            )
        entries.append((module["type"].rpartition(".")[2], file.parent / path))
    return entries


def check_names(file: Path, said: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a module reads or writes anything but sentence embeddings."""
    for key in ("module_input_name", "module_output_name"):
        if said.get(key) not in (None, "sentence_embedding"):
            raise CheckpointError(
                f"{file} has {key} = {truncated_repr(said[key])}, expected 'sentence_embedding'."
            )


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    return parsing.read_object(file, CheckpointError) if file.exists() else {}


def typed(file: Path, said: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """A value of a JSON object; ``default`` if it is missing or null."""
    value = said.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise CheckpointError(
            f"{file} has {key} = {truncated_repr(value)}, expected {kind.__name__}."
        )
    return value


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
