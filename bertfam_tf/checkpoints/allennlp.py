"""AllenNLP's bidirectional language models: ``options.json`` and HDF5 weights.

AllenNLP itself is not needed. The names of the published files end in these words.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertfam_tf import parsing, registry
from bertfam_tf.checkpoints import hdf5, huggingface
from bertfam_tf.checkpoints.source import Format, Source, requested_family
from bertfam_tf.checkpoints.tensors import Stored, Tensors
from bertfam_tf.names import join_names, truncated_repr
from bertfam_tf.registry import FormatNames
from bertfam_tf.sources import CheckpointError

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
_NAME = "allennlp"
_REMEDY = "Download the file again."
_SKIP = "lstm.use_skip_connections"
_FILTERS = "char_cnn.filters"
# Our table has one more row than theirs, the first, for characters at padding.
_CHARACTERS = "char_embed"


def matches(directory: Path) -> bool:
    """Returns whether the directory has options and weights, and no ``config.json``."""
    both = all(_files(directory, name) for name in (OPTIONS, WEIGHTS))
    return both and not huggingface.matches(directory)


def _files(directory: Path, name: str) -> list[Path]:
    return sorted(file for file in directory.glob(f"*{name}") if file.is_file())


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a model; arguments and errors as for ``Format.read``."""
    for name in (OPTIONS, WEIGHTS):
        if len(found := _files(directory, name)) != 1:
            raise CheckpointError(
                f"Expected one *{name} in {directory}, found {join_names([x.name for x in found])}."
            )
    (file,), (weights,) = _files(directory, OPTIONS), _files(directory, WEIGHTS)
    record = requested_family(family, next(iter(registry.of_format(_NAME).values())), _NAME, file)
    names = record.formats[_NAME]
    config = huggingface.config_from(record, _fields(file, names), file)
    tensors = Tensors(_named_tensors(weights, names, config))
    return Source(record, config, tensors, {**names.weights, **{p: p for p in names.absent}})


FORMAT = Format(f"{OPTIONS} with {WEIGHTS} (AllenNLP's ELMo)", matches, read)


def _fields(file: Path, names: FormatNames) -> dict[str, Any]:
    """Returns the fields of the family's config in a file of options."""
    options = _flat(parsing.read_object(file, CheckpointError), file)
    filters = options.pop(_FILTERS, None)
    if not isinstance(filters, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in filters
    ):
        raise CheckpointError(
            f"{file}: {_FILTERS} must be a list of pairs of numbers, got {truncated_repr(filters)}."
        )
    for i, column in enumerate(("widths", "counts")):
        options[f"{_FILTERS}.{column}"] = [pair[i] for pair in filters]
    if options.pop(_SKIP, None) is not True:
        raise CheckpointError(f"{file}: {_SKIP} must be true; other models are not supported.")
    unknown = sorted(options.keys() - names.config.keys())
    if unknown:
        raise CheckpointError(f"{file} has options that are not supported: {join_names(unknown)}.")
    missing = sorted(names.config.keys() - options.keys())
    if missing:
        raise CheckpointError(f"{file} lacks {join_names(missing)}.")
    fields = {field: options[key] for key, ours in names.config.items() for field in ours}
    # AllenNLP's value is the width of one direction.
    if type(fields["hidden_size"]) is int:
        fields["hidden_size"] *= 2
    return fields


def _flat(options: dict[str, Any], file: Path) -> dict[str, Any]:
    """Returns entries by their keys joined with dots, of the model only, without its training."""
    flat: dict[str, Any] = {}
    for part in ("lstm", "char_cnn"):
        entries = options.get(part)
        if not isinstance(entries, dict):
            raise CheckpointError(f"{file}: {part} must be an object.")
        for key, value in entries.items():
            inner = {key: value} if not isinstance(value, dict) else {}
            inner |= {f"{key}.{k}": v for k, v in value.items()} if not inner else {}
            flat |= {f"{part}.{k}": v for k, v in inner.items()}
    return flat


def _named_tensors(file: Path, names: FormatNames, config: Any) -> Iterator[tuple[str, Stored]]:
    """Returns the file's tensors, and initial values for weights that each task learns."""
    for name, tensor in hdf5.read(file, _REMEDY):
        yield name, _shaped(name, tensor)
    for path, fields in names.absent.items():
        shape = tuple(getattr(config, field) for field in fields)
        make = np.ones if path.endswith("/gamma") else np.zeros
        yield path, Stored(file, path, shape, "F32", functools.partial(make, shape, "float32"))


def _shaped(name: str, tensor: Stored) -> Stored:
    shape = tensor.shape
    if name == _CHARACTERS and len(shape) == 2:
        return tensor.reshaped((shape[0] + 1, shape[1]), lambda x: np.pad(x, ((1, 0), (0, 0))))
    if len(shape) == 4 and shape[0] == 1:  # a convolution over an axis of height 1
        return tensor.reshaped(shape[1:], lambda x: x[0])
    return tensor
