"""The arguments of published tokenizers, as the families define them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertfam_tf import models, registry  # noqa: F401  (importing models registers the families)
from bertfam_tf.names import truncated_repr
from bertfam_tf.parsing import read_object
from bertfam_tf.registry import TokenizerSpec
from bertfam_tf.text.files import CONFIG_FILE, MODEL_CONFIG_FILE
from bertfam_tf.text.special_tokens import SPECIAL_TOKEN_FIELDS, SpecialTokens

# Generic classes of transformers.
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "SentencePieceBackend", "PythonBackend")


def specs(kind: str | None = None) -> dict[str, TokenizerSpec]:
    """Returns the published tokenizers, of one kind or all, by class name."""
    result: dict[str, TokenizerSpec] = {}
    for family in registry.all_families():
        if kind in (None, family.tokenizer.kind):
            result.setdefault(family.tokenizer.class_name, family.tokenizer)
    return result


def options(class_name: str) -> dict[str, Any]:
    """Returns the arguments of a published class, for ``Tokenizer.from_config``."""
    return dict(specs()[class_name].options)


def stated_classes(folder: Path) -> dict[Path, str]:
    """Returns the tokenizer class named in each config file of a directory, "" for none.

    Raises:
        ValueError: if a file is damaged.
    """
    files = [folder / name for name in (CONFIG_FILE, MODEL_CONFIG_FILE)]
    classes = {file: read_object(file).get("tokenizer_class") for file in files if file.is_file()}
    return {file: str(name or "").removesuffix("Fast") for file, name in classes.items()}


def named_class(folder: Path) -> tuple[str, Path] | None:
    """Returns the class that a config file of a directory names, and that file; None for generic
    classes, which run a tokenizer.json of any kind."""
    for file, name in stated_classes(folder).items():
        if name and name not in _GENERIC:
            return name, file
    return None


def is_generic(folder: Path) -> bool:
    """Returns whether the first class named in a directory is a generic one.

    Without a name, it is the class of the ``model_type``, or a generic one for an unknown type.
    """
    names = [name for name in stated_classes(folder).values() if name]
    if not names:
        return registry.of_model_type(stated_model(folder)) is None
    return names[0] in _GENERIC


def stated_model(folder: Path) -> str | None:
    """Returns the ``model_type`` in ``config.json``, or None.

    Raises:
        ValueError: if the file is damaged.
    """
    file = folder / MODEL_CONFIG_FILE
    model = read_object(file).get("model_type") if file.is_file() else None
    if model is not None and not isinstance(model, str):
        raise ValueError(f"{file}: model_type is {truncated_repr(model)}, expected a string.")
    return model


def find(
    kind: str,
    tokenizer_class: str,
    folder: Path,
    preset: str | None,
    fits: Callable[[SpecialTokens], bool],
    *,
    required: bool = False,
) -> Mapping[str, Any]:
    """Returns the arguments of the published class that a tokenizer's files belong to.

    Args:
        kind: the tokenizer's algorithm.
        tokenizer_class: the name of our class, with which no published arguments are associated.
        folder: the directory of the files.
        preset: the name of the published class, "" for none, None to detect it.
        fits: returns whether the vocabulary has these special tokens.
        required: whether finding no published class is an error.

    Raises:
        ValueError: if the preset is unknown, a config file is damaged, or a required class is not
            found.
    """
    known = specs(kind)
    if preset is not None:
        if preset and preset not in known:
            raise ValueError(f"preset must be one of {', '.join(known)} or '', got {preset!r}.")
        return known[preset].options if preset else {}
    names = list(stated_classes(folder).values())
    family = registry.of_model_type(stated_model(folder))
    if family is not None:
        names.append(family.tokenizer.class_name)
    for name in names:
        if name == tokenizer_class:
            return {}
        if name in known:
            return known[name].options
    candidates = {name: _special_tokens(spec) for name, spec in known.items()}
    # The special tokens of one class may be a subset of another's.
    for name in sorted(candidates, key=lambda name: -len(list(candidates[name]))):
        if fits(candidates[name]):
            return known[name].options
    if required:
        raise ValueError(
            f"{folder}: cannot tell which tokenizer class the model belongs to; expected "
            f"tokenizer_class in {CONFIG_FILE}, or preset, one of {', '.join(known)}, or ''."
        )
    return {}


def class_name(kind: str, matches: Callable[[Mapping[str, Any]], bool]) -> str | None:
    """Returns the first published class of a kind whose options match; None if there is none."""
    return next((name for name, spec in specs(kind).items() if matches(spec.options)), None)


def _special_tokens(spec: TokenizerSpec) -> SpecialTokens:
    fields = {name: spec.options[name] for name in SPECIAL_TOKEN_FIELDS & spec.options.keys()}
    return SpecialTokens(**fields)
