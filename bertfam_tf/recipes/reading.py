"""Reads recipes from YAML; each key is a field of a dataclass, and unknown keys are errors."""

from __future__ import annotations

import math
import os
import re
import typing
import warnings
from dataclasses import is_dataclass, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import dacite

from bertfam_tf import parsing
from bertfam_tf.names import unknown
from bertfam_tf.recipes.renamed import with_new_names
from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe

# What each kind of recipe describes, and the command that runs it.
_KINDS: dict[Any, tuple[str, str]] = {
    Recipe: ("fine-tuning", "train"),
    MultiTaskRecipe: ("several tasks", "train"),
    PretrainRecipe: ("pretraining", "pretrain"),
    DistillRecipe: ("distillation", "distill"),
}
# Recipes whose trained model is a task with examples to score.
_SCORED = Recipe | MultiTaskRecipe | DistillRecipe
# The keys that a use of the trained model reads, and those that recipes must have.
_OF_MODEL = ("output", "model", "data", "task", "trainer", "tasks", "teacher")


def load_recipe(
    file: str | Path, overrides: list[str] | tuple[str, ...] = (), kind: type | UnionType = Recipe
) -> Any:
    """Reads a recipe.

    Args:
        file: the YAML file.
        overrides: ``key=value`` with dotted keys into sections and lists, such as
            ``train.epochs=1`` or ``stages.0.steps=10``; the value is YAML.
        kind: the class of the recipe, such as ``PretrainRecipe``, or a union of classes.

    Raises:
        ValueError: if the file is missing, not a YAML mapping or a recipe of another kind; or a key
            is unknown (the error names the nearest one), missing, or has a value of another type.
    """
    path = Path(file)
    return build_with(read_values(path), overrides, path, kind)


def build_with(
    values: dict[str, Any],
    overrides: list[str] | tuple[str, ...],
    path: Path,
    kind: type | UnionType,
) -> Any:
    """Builds the dataclass of a recipe with overrides, which change ``values``.

    Args:
        values, path: the same as for ``build``.
        overrides, kind: the same as for ``load_recipe``.
    """
    _override(values, overrides)
    return build(values, path, _checked_kind(values, path, kind))


def _override(values: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> None:
    for override in overrides:
        key, value = parse_override(override)
        try:
            set_value(values, key, value)
        except ValueError as error:
            raise ValueError(f"{override!r}: {error}") from None


def _checked_kind(values: dict[str, Any], path: Path, kind: type | UnionType) -> type:
    """Returns the class of a recipe, or raises ValueError if it is none of ``kind``."""
    model, actual = values.get("model"), kind_of(values)
    if isinstance(kind, type) and not (isinstance(model, dict) and "path" in model):
        # Without a model the kind is open, and the error names what is missing.
        actual = kind if actual is Recipe else actual
    if not issubclass(actual, kind):
        expected = " or ".join(_KINDS[x][0] for x in typing.get_args(kind) or [kind])
        about, command = _KINDS[actual]
        raise ValueError(
            f"{path} is a recipe of {about}, which bertfam {command} runs; expected one of "
            f"{expected}."
        )
    return actual


def read_values(path: Path) -> dict[str, Any]:
    """Returns the keys and values of a recipe's file, without checking them.

    Raises:
        ValueError: if the file is missing or not a YAML mapping.
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
    if isinstance(model, dict) and "path" not in model and {"family", "size"} & model.keys():
        return PretrainRecipe
    return Recipe


def load_run(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Any:
    """Reads a ``Recipe``, ``MultiTaskRecipe`` or ``DistillRecipe``; see ``load_recipe``."""
    return load_recipe(file, overrides, _SCORED)


def load_finished(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Any:
    """Reads from a run's recipe what its trained model is used with: the task, data and metrics.

    Settings that only training reads are left out, and have their defaults in the result: a later
    version may refuse a setting that the run had.

    Args:
        file, overrides: the same as for ``load_run``.

    Raises:
        ValueError: as for ``load_run``.
    """
    path = Path(file)
    values = read_values(path)
    _override(values, overrides)
    kind = _checked_kind(values, path, _SCORED)
    values = _with_known_keys(values, path, kind)
    used = {key: value for key, value in values.items() if key in _OF_MODEL}
    if isinstance(stages := values.get("stages"), list):
        used["stages"] = [{"terms": {}, **_trained(stage)} for stage in stages]
    if kind is DistillRecipe:
        used["student"] = {}
    return build(used | _trained(values), path, kind)


def _trained(section: Any) -> dict[str, Any]:
    """Returns the section ``train`` of a recipe or stage with the settings that scoring reads."""
    train = section.get("train") if isinstance(section, dict) else None
    if not isinstance(train, dict):
        return {}
    return {"train": {key: train[key] for key in ("batch_size", "metrics") if key in train}}


def with_defaults(text: str, kind: type) -> str:
    """Returns the YAML of a recipe with all defaults, or invalid text unchanged.

    Recipes of an earlier version lack fields that were added since.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of renamed keys
            return build(parsing.parse_yaml(text, "recipe"), Path("recipe"), kind).to_yaml()
    except (ValueError, AttributeError):
        return text


def expand(path: str) -> Path:
    """Returns a path of a recipe, with ``$NAME`` and ``~`` expanded; errors as ``source``."""
    return Path(source(path))


def source(path: str) -> str:
    """Returns the path or name of a checkpoint, with ``$NAME`` and ``~`` expanded.

    It is not a ``Path``, which would change handles such as ``hf://organisation/name``.

    Raises:
        ValueError: if a variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise ValueError(f"The environment variable {unset[1]} in {path!r} is not set.")
    return expanded


def parse_override(override: str) -> tuple[str, Any]:
    """Returns the key and the value, parsed as YAML, of ``key=value``, or raises ValueError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(
            f"An override must be key=value, such as train.epochs=1, got {override!r}."
        )
    return key, parsing.parse_yaml(text, f"The value of {override!r}")


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value in place.

    Args:
        values: keys and values of a recipe.
        key: a dotted key into sections and lists, such as ``stages.0.steps``.
        value: the value.

    Raises:
        ValueError: if the key leads into a value that is neither a section nor a list, or a list
            has no such item.
    """
    *sections, last = key.split(".")
    parent: Any = values
    for section in sections:
        if isinstance(parent, list):
            parent = parent[_index(parent, section)]
        else:
            if parent.get(section) is None:
                parent[section] = {}
            parent = parent[section]
        if not isinstance(parent, dict | list):
            raise ValueError(f"{section} is not a section.")
    parent[_index(parent, last) if isinstance(parent, list) else last] = value


def _index(items: list[Any], text: str) -> int:
    if not text.isdecimal() or int(text) >= len(items):
        raise ValueError(
            f"{text} is not an item of a list of {len(items)}, which are numbered from 0."
        )
    return int(text)


def build_section(values: dict[str, Any], kind: type, name: str) -> Any:
    """Builds the dataclass of a section whose type depends on the task.

    Args:
        values: the section.
        kind: the dataclass.
        name: the section's name, for errors.

    Raises:
        ValueError: if a key is unknown or a value has another type.
    """
    _check_keys(values, kind, None, name)
    try:
        return dacite.from_dict(kind, values, _TYPES)
    except dacite.DaciteError as error:
        raise ValueError(f"{name}: {_explained(error)}") from None


def with_types(values: dict[str, Any], kind: type, name: str) -> dict[str, Any]:
    """Returns a section of arguments, after checking and converting its numbers and booleans.

    Args:
        values: the section.
        kind: the dataclass of the arguments, some of which the section may lack.
        name: the section's name, for errors.

    Raises:
        ValueError: if a value has another type.
    """
    types = {key: x for key, x in typing.get_type_hints(kind).items() if key in values}
    plain = {key: x for key, x in types.items() if {*(typing.get_args(x) or [x])} <= _PLAIN}
    section = {key: values[key] for key in plain}
    return values | vars(build_section(section, make_dataclass("Section", plain.items()), name))


def build(values: dict[str, Any], path: Path, kind: type) -> Any:
    """Builds the dataclass of a recipe.

    Args:
        values: keys and values.
        path: their file, for errors.
        kind: the dataclass.

    Raises:
        ValueError: as for ``load_recipe``.
    """
    values = _with_known_keys(values, path, kind)
    try:
        return dacite.from_dict(kind, values, _TYPES)
    except (dacite.DaciteError, ValueError) as error:
        raise ValueError(f"{path}: {_explained(error)}") from None


def _with_known_keys(values: dict[str, Any], path: Path, kind: type) -> dict[str, Any]:
    """Returns the values with the current names of keys; an unknown key is a ValueError."""
    try:
        values = with_new_names(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_keys(values, kind, path)
    return values


def _check_keys(values: dict[str, Any], kind: type, path: Path | None, section: str = "") -> None:
    """Raises ValueError for a key that is not a field of ``kind``, also in nested sections."""
    types = typing.get_type_hints(kind)
    file = "" if path is None else f"{path}: "
    for key, value in values.items():
        if key not in types:
            where = f"key in section {section}" if section else "key"
            raise ValueError(f"{file}{unknown(where, str(key), types)}")
        name = f"{section}.{key}" if section else key
        # In Python a bool is an integer, and in YAML a bare "no" is a bool.
        candidates = (types[key], *typing.get_args(types[key]))
        if isinstance(value, bool) and bool not in candidates:
            raise ValueError(f"{file}{name} is {value}; a name such as no needs quotes.")
        kinds = {typing.get_origin(x) or x for x in candidates}
        if isinstance(value, dict) and list in kinds and not {dict, str} & kinds:
            raise ValueError(
                f"{file}{name} must be a list, got the keys {', '.join(map(str, value))}."
            )
        section_types = [x for x in candidates if isinstance(x, type) and is_dataclass(x)]
        if section_types:
            for inner_name, inner in _sections(value, types[key], name):
                _check_keys(inner, section_types[0], path, inner_name)


def _sections(value: Any, kind: Any, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the sections in a value, a list or a table, with their names."""
    if typing.get_origin(kind) is dict and isinstance(value, dict):
        items = [(f"{name}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{name}.{i}", item) for i, item in enumerate(value)]
    else:
        items = [(name, value)]
    return [(item_name, item) for item_name, item in items if isinstance(item, dict)]


def _number(value: Any) -> Any:
    # YAML 1.1 reads 5e-5 as a string, and 1 as an integer. Other values are kept, so that dacite
    # names their field in its error.
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _untyped(value: Any) -> Any:
    """Returns 5e-5 of a section without types, such as ``overrides``, as a number too."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


_PLAIN = {int, float, bool, NoneType}
_EXPONENT = re.compile(r"[+-]?[0-9]+[eE][+-]?[0-9]+")
_TYPES = dacite.Config(type_hooks={float: _number, Any: _untyped})


def _explained(error: Exception) -> str:
    """Returns the message of an error, and how to quote the value if YAML has read another type."""
    # For a text instead of a list, dacite shows a generator of its characters.
    text = re.sub('value "<generator object .*>" of type "str"', "a single text", str(error))
    value: Any = getattr(error, "value", None)
    named = isinstance(value, dict | list) and "str" in str(getattr(error, "field_type", ""))
    if named and not all(isinstance(name, str) for name in value):
        return f'{text}; names such as 0 and no need quotes, as in {{"0": "no"}}'
    number: Any = _number(value) if isinstance(value, str) else None
    if not isinstance(number, float) or not math.isfinite(number):
        return text
    plain = int(number) if number.is_integer() else number
    return f"{text}; {value!r} is text, the number is {plain}"
