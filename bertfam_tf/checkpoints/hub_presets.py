"""KerasHub's presets: the names of classes, and the files of a tokenizer.

The families define the names (``registry.FormatNames``); KerasHub itself is not needed.
"""

from pathlib import Path
from typing import Any

from bertfam_tf import parsing, registry
from bertfam_tf.names import truncated_repr
from bertfam_tf.registry import Family
from bertfam_tf.sources import CheckpointError

FORMAT = "keras_hub"
BACKBONE = "Backbone"
_CLASS = "Tokenizer"
_TOKENIZER = "tokenizer.json"
_ASSETS = Path("assets/tokenizer")
# Options that change tokens -> the only values that are supported.
_REQUIRED = {
    "split": True,
    "split_on_cjk": True,
    "suffix_indicator": "##",
    "oov_token": "[UNK]",
}
# Normalizations before SentencePiece's own, which KerasHub does not have.
_BEFORE = ("lower_case", "strip_accents", "unify_spaces", "unify_quotes", "split_digit_comma")
_SPECIAL = "unsplittable_tokens"
# Options with an equivalent in ``tokenizer_config.json``.
_OPTIONS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "add_prefix_space": "add_prefix_space",
}


def class_name(stored: dict[str, Any]) -> str:
    """Returns the class of an object that Keras serialized, without its package."""
    return str(stored.get("registered_name") or stored.get("class_name")).rpartition(">")[2]


def family(file: Path, name: str, suffix: str) -> Family:
    """Returns the family of a class whose name ends in ``suffix``.

    Raises:
        CheckpointError: if the class is unknown; the message names ``file`` and the known classes.
    """
    families = registry.of_format(FORMAT)
    kind = name.removesuffix(suffix)
    if kind not in families or not name.endswith(suffix):
        known = ", ".join(sorted(kind + suffix for kind in families))
        raise CheckpointError(f"{file} is for KerasHub's {truncated_repr(name)}. Known: {known}.")
    return families[kind]


def tokenizer(directory: Path) -> tuple[dict[str, Path], dict[str, Any]] | None:
    """Returns a preset's tokenizer under Hugging Face's names; None for a preset without one.

    Returns:
        A dict from file names to files, and the entries of ``tokenizer_config.json``.

    Raises:
        CheckpointError: if a class or option is unknown, or files are missing or damaged.
    """
    file = directory / _TOKENIZER
    if not (directory / _ASSETS).is_dir() or not file.is_file():
        return None
    stored = parsing.read_json(file, CheckpointError)
    try:
        name = str(stored["class_name"]).rpartition(">")[2]
        config = dict(stored["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} is not the config of a KerasHub tokenizer: {error!r}"
        ) from error
    record = family(file, name, _CLASS)
    for key, supported in _REQUIRED.items():
        if config.get(key, supported) != supported:
            raise CheckpointError(
                f"{file} has {key} = {truncated_repr(config[key])}, which is not supported; "
                f"supported: {supported!r}."
            )
    special = [v for v in record.tokenizer.options.values() if isinstance(v, str)]
    stated = config.get(_SPECIAL) or []
    if not isinstance(stated, list) or not all(token in special for token in stated):
        raise CheckpointError(
            f"{file} has {_SPECIAL} = {truncated_repr(stated)}, expected some of "
            f"{', '.join(special)}."
        )
    files_by_name = {}
    for theirs, ours in record.formats[FORMAT].tokenizer.items():
        files_by_name[ours] = directory / _ASSETS / theirs
        if not files_by_name[ours].is_file():
            raise CheckpointError(f"{files_by_name[ours]} is missing.")
    options = {name: False for name in _BEFORE if record.tokenizer.options.get(name)}
    options |= {ours: config[theirs] for theirs, ours in _OPTIONS.items() if theirs in config}
    return files_by_name, {"tokenizer_class": record.tokenizer.class_name, **options}
