"""Reads recipes: YAML in, one key for one dataclass field, unknown keys refused."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import typing
import warnings
from pathlib import Path
from typing import Any

import dacite

from bertfam_tf import parsing
from bertfam_tf.names import unknown
from bertfam_tf.recipes.renamed import with_new_names
from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe


def load_recipe(
    file: str | Path, overrides: list[str] | tuple[str, ...] = (), kind: type = Recipe
) -> Any:
    """Reads a recipe.

    Args:
        file: YAML.
        kind: ``Recipe``, ``PretrainRecipe`` or ``DistillRecipe``.
        overrides: ``key=value`` with dots into sections and lists, such as ``train.epochs=1`` or
            ``stages.0.steps=10``; the value is YAML.

    Raises:
        ValueError: when the file is missing or not a YAML mapping, a key is unknown (the text
            names the nearest one), missing, or has a value of another type.
    """
    path = Path(file)
    values = read_values(path)
    for override in overrides:
        _override(values, override)
    return build(values, path, kind)


def read_values(path: Path) -> dict[str, Any]:
    """Returns the keys and values of a recipe's file, without checking them.

    Raises:
        ValueError: when the file is missing or not a YAML mapping.
    """
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}.")
    values = parsing.read_yaml(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a mapping of keys to values.")
    return values


def kind_of(values: dict[str, Any]) -> type:
    """Returns the class of a recipe with these keys and values."""
    model = values.get("model")
    if "teacher" in values or "student" in values:
        return DistillRecipe
    if "tasks" in values:
        return MultiTaskRecipe
    return PretrainRecipe if isinstance(model, dict) and "path" not in model else Recipe


def load_run(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Any:
    """The ``Recipe``, ``MultiTaskRecipe`` or ``DistillRecipe`` in a file, as ``load_recipe``."""
    values = parsing.read_yaml(Path(file)) if Path(file).is_file() else None
    kinds = {"teacher": DistillRecipe, "tasks": MultiTaskRecipe}
    found = [kinds[key] for key in kinds if isinstance(values, dict) and key in values]
    return load_recipe(file, overrides, found[0] if found else Recipe)


def with_defaults(text: str, kind: type) -> str:
    """Returns the YAML of a recipe with every default written out.

    Recipes of an earlier version lack fields that were added since. What is not a valid recipe is
    returned unchanged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of names that were changed since
            return build(parsing.parse_yaml(text, "recipe"), Path("recipe"), kind).to_yaml()
    except (ValueError, AttributeError):
        return text


def expand(path: str) -> Path:
    """A path of a recipe, with ``$NAME`` and ``~`` replaced.

    Raises:
        ValueError: when a variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise ValueError(f"The environment variable {unset[1]} in {path!r} is not set.")
    return Path(expanded)


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(
            f"An override must be key=value, such as train.epochs=1, got {override!r}."
        )
    value = parsing.parse_yaml(text, f"The value of {override!r}")
    try:
        set_value(values, key, value)
    except ValueError as error:
        raise ValueError(f"{override!r}: {error}") from None


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value in place.

    Args:
        values: keys and values of a recipe.
        key: its key, with dots into sections and lists, such as ``stages.0.steps``.
        value: the value.

    Raises:
        ValueError: for a key into what is neither a section nor a list, and an item that a list
            does not have.
    """
    *sections, last = key.split(".")
    place: Any = values
    for section in sections:
        place = place[_index(place, section)] if isinstance(place, list) else _open(place, section)
        if not isinstance(place, dict | list):
            raise ValueError(f"{section} is not a section.")
    place[_index(place, last) if isinstance(place, list) else last] = value


def _open(values: dict[str, Any], section: str) -> Any:
    """A section, created where it is missing or null."""
    if values.get(section) is None:
        values[section] = {}
    return values[section]


def _index(items: list[Any], text: str) -> int:
    if not text.isdecimal() or int(text) >= len(items):
        raise ValueError(f"{text} is no item of a list of {len(items)}, which are numbered from 0.")
    return int(text)


def build_section(values: dict[str, Any], kind: type, name: str) -> Any:
    """Returns the dataclass of a section whose type the recipe does not know.

    Args:
        values: the section.
        kind: the dataclass.
        name: the section's name, for errors.

    Raises:
        ValueError: for unknown keys or values of another type.
    """
    _check_keys(values, kind, None, name)
    try:
        return dacite.from_dict(kind, values, dacite.Config(type_hooks={float: _number}))
    except dacite.DaciteError as error:
        raise ValueError(f"{name}: {error}") from None


def build(values: dict[str, Any], path: Path, kind: type) -> Any:
    """Returns the dataclass of a recipe.

    Args:
        values: keys and values.
        path: their file, for errors.
        kind: the dataclass.

    Raises:
        ValueError: as for ``load_recipe``.
    """
    try:
        values = with_new_names(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_keys(values, kind, path)
    try:
        return dacite.from_dict(kind, values, dacite.Config(type_hooks={float: _number}))
    except (dacite.DaciteError, ValueError) as error:
        hint = ""
        if getattr(error, "field_path", None) == "data.labels":
            hint = '; numbers need quotes, as in {"0": negative}'
        raise ValueError(f"{path}: {error}{hint}") from None


def _check_keys(values: dict[str, Any], kind: type, path: Path | None, section: str = "") -> None:
    """Raises ValueError for a key that is no field of ``kind``, in sections and lists of them."""
    types = typing.get_type_hints(kind)
    file = "" if path is None else f"{path}: "
    for key, value in values.items():
        if key not in types:
            where = f"key in section {section}" if section else "key"
            raise ValueError(f"{file}{unknown(where, str(key), types)}")
        name = f"{section}.{key}" if section else key
        # To Python a bool is an integer, and to YAML a bare "no" is a bool.
        if isinstance(value, bool) and types[key] is not bool:
            raise ValueError(f"{file}{name} is {value}; a name such as no needs quotes.")
        inner = [each for each in (types[key], *typing.get_args(types[key])) if _is_section(each)]
        if inner:
            for at, each in _sections(value, types[key], name):
                _check_keys(each, inner[0], path, at)


def _sections(value: Any, kind: Any, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The sections in a value, a list of them or a table of them, with their names."""
    if typing.get_origin(kind) is dict and isinstance(value, dict):
        found = [(f"{name}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list):
        found = [(f"{name}.{i}", each) for i, each in enumerate(value)]
    else:
        found = [(name, value)]
    return [(at, each) for at, each in found if isinstance(each, dict)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _number(value: Any) -> Any:
    # YAML 1.1 reads 5e-5 as a string and 1 as an integer where a float is meant. Other
    # values are kept, and dacite names the field that does not take them.
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number.")
    return number
