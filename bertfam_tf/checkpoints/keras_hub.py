"""KerasHub presets: ``config.json`` with a ``registered_name``, and ``model.weights.h5``.

KerasHub itself is not needed. The families define the names of its classes and the values that the
classes hard-code.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf import parsing, registry
from bertfam_tf.checkpoints import hdf5, huggingface
from bertfam_tf.checkpoints.source import Format, Source, requested_family
from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.names import join_names, truncated_repr
from bertfam_tf.registry import Family, FormatNames
from bertfam_tf.sources import CheckpointError

WEIGHTS = "model.weights.h5"
_BACKBONE, _TOKENIZER_CLASS = "Backbone", "Tokenizer"
_REMEDY = "Download the preset again, or save it again with KerasHub."

_NAME = "keras_hub"
# Keys of all Keras models, which do not affect the computation.
_IGNORED = {"name", "trainable", "dtype"}
# Keys that some classes lack, or have under different names.
_OPTIONAL = {"vocabulary_size", "vocab_size", "num_segments"}


def matches(directory: Path) -> bool:
    """Whether ``config.json`` belongs to a preset."""
    if not huggingface.matches(directory):
        return False
    values = huggingface.read_config(directory)
    return "registered_name" in values or "class_name" in values


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a preset; arguments and errors as for ``Format.read``."""
    file = directory / huggingface.CONFIG
    given = huggingface.read_config(directory)
    name = str(given.get("registered_name") or given.get("class_name")).rpartition(">")[2]
    record = requested_family(family, _family(file, name, _BACKBONE), _NAME, file)
    names = record.formats[_NAME]
    options = given.get("config")
    if not isinstance(options, dict):
        raise CheckpointError(f"{file} has no 'config' of the backbone.")
    config: Any = huggingface.config_from(record, _fields(file, options, names), file)
    weights = _weight_files(directory)
    if len(weights) != 1:
        found = join_names([each.name for each in weights]) if weights else "none"
        raise CheckpointError(f"No weights in {directory}: expected {WEIGHTS}, found {found}.")
    tensors = Tensors(_named_tensors(weights[0], names, options, config))
    sources = {**names.weights, **{path: path for path in names.absent}}
    return Source(record, config, tensors, sources, names.ignored)


def _named_tensors(
    file: Path, names: FormatNames, options: dict[str, Any], config: Any
) -> Iterator[tuple[str, Stored]]:
    """The file's tensors, and zeros for those that the class lacks, by the names in the tables."""
    positions = names.weights["position_embedding/embeddings"]
    for name, tensor in hdf5.read(file, _REMEDY):
        path = _path(name, options.get("num_inner_repetitions"))
        yield path, _padded(tensor, names.offset) if path == positions else tensor
    for path, fields in names.absent.items():
        shape = tuple(getattr(config, each) for each in fields)
        yield path, Stored(file, path, shape, "F32", functools.partial(np.zeros, shape, "float32"))


FORMAT = Format(f"{huggingface.CONFIG} with {WEIGHTS} (KerasHub)", matches, read)


def _family(file: Path, name: str, suffix: str) -> Family:
    """The family of a KerasHub class, whose name ends in ``suffix``."""
    families = registry.of_format(_NAME)
    kind = name.removesuffix(suffix)
    if kind not in families or not name.endswith(suffix):
        known = ", ".join(sorted(kind + suffix for kind in families))
        raise CheckpointError(f"{file} is for KerasHub's {truncated_repr(name)}. Known: {known}.")
    return families[kind]


def _weight_files(directory: Path) -> list[Path]:
    """The weight files of a directory; exactly one is expected."""
    single = directory / WEIGHTS
    if single.is_file():
        return [single]
    return sorted(file for file in directory.glob("*.weights.h5") if file.is_file())


def _fields(file: Path, options: dict[str, Any], names: FormatNames) -> dict[str, Any]:
    unknown = sorted(options.keys() - names.config.keys() - _IGNORED)
    if unknown:
        raise CheckpointError(f"{file} has options that are not supported: {join_names(unknown)}.")
    missing = sorted(names.config.keys() - _OPTIONAL - options.keys())
    if missing:
        raise CheckpointError(f"{file} lacks {join_names(missing)}.")
    for key in sorted(names.config.keys() & options.keys() - {"dropout"}):
        if type(options[key]) is not int or options[key] < 1:
            raise CheckpointError(
                f"{file}: {key} must be a positive integer, got {truncated_repr(options[key])}."
            )
    ours = {
        field: options[key]
        for key, fields in names.config.items()
        if key in options
        for field in fields
    }
    return {**ours, **names.fixed}


def _path(name: str, repeats: int | None) -> str:
    """Converts a path to the form used in the families' tables.

    Each layer has its number, also the first (``dense_0``), or two numbers in groups of ``repeats``
    (``transformer_encoder_1.0``). Leading underscores, which differ between versions, are removed.
    """
    steps = [step.lstrip("_") for step in name.split("/")]
    # Files of early versions have a different name for the first component.
    steps[0] = "layers" if steps[0] == "layer_checkpoint_dependencies" else steps[0]
    if len(steps) > 1:
        match = re.fullmatch(r"(.*?)_(\d{1,6})", steps[1])
        stem, number = (match[1], int(match[2])) if match else (steps[1], 0)
        steps[1] = f"{stem}_{number}"
        if repeats and stem == "transformer_encoder":
            steps[1] = f"{stem}_{number // repeats}.{number % repeats}"
    return "/".join(steps)


def _padded(table: Stored, rows: int) -> Stored:
    """Prepends rows of zeros to an embedding table."""
    if not rows or len(table.shape) != 2:
        return table
    return table.reshaped(
        (table.shape[0] + rows, table.shape[1]), lambda array: np.pad(array, ((rows, 0), (0, 0)))
    )


_TOKENIZER = "tokenizer.json"
_ASSETS = Path("assets/tokenizer")


def tokenizer(directory: Path) -> tuple[dict[str, Path], dict[str, Any]] | None:
    """A preset's tokenizer under Hugging Face's names; None for a preset without one.

    Returns:
        A dict from file names to files, and the entries of ``tokenizer_config.json``.

    Raises:
        CheckpointError: for an unknown class, or files that are missing or damaged.
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
    files = _family(file, name, _TOKENIZER_CLASS).formats[_NAME].tokenizer
    found = {}
    for theirs, ours in files.items():
        found[ours] = directory / _ASSETS / theirs
        if not found[ours].is_file():
            raise CheckpointError(f"{found[ours]} is missing.")
    return found, {"do_lower_case": config["lowercase"]} if "lowercase" in config else {}
